# Analysis: the plan, the tables, and the claims.


def cells_here(name):
    """The paths of one of the files of every cell that runs here."""
    return [f"results/cells/{cell.path}/{name}" for cell in MATRIX.cells_here]


rule plan:
    input:
        MATRIX_FILE,
    output:
        "results/plan.csv",
    params:
        here=str(MATRIX.accelerator),
    log:
        "results/logs/plan.log",
    message:
        "Planning every cell of {input}"
    shell:
        "{PYTHON:q} {SCRIPTS}/expand.py --matrix {input:q} --out {output:q} 2>&1 | tee {log:q} >&2"


rule aggregate:
    input:
        cells_here("runs.csv"),
        plan="results/plan.csv",
    output:
        runs="results/runs.csv",
        summary="results/summary.csv",
    log:
        "results/logs/aggregate.log",
    message:
        "Gathering the cells"
    shell:
        "{PYTHON:q} {SCRIPTS}/aggregate.py"
        " --plan {input.plan:q}"
        " --runs {output.runs:q}"
        " --summary {output.summary:q}"
        " 2>&1 | tee {log:q} >&2"


rule checks:
    input:
        runs="results/runs.csv",
        summary="results/summary.csv",
        plan="results/plan.csv",
        expected="config/expected.yaml",
    output:
        "results/checks.csv",
    log:
        "results/logs/checks.log",
    message:
        "Checking the claims of {input.expected}"
    shell:
        "{PYTHON:q} {SCRIPTS}/check.py"
        " --runs {input.runs:q}"
        " --summary {input.summary:q}"
        " --plan {input.plan:q}"
        " --expected {input.expected:q}"
        " --out {output:q}"
        " 2>&1 | tee {log:q} >&2"
