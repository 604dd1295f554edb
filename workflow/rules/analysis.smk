# Analysis: the plan, the tables, and the claims.


rule plan:
    input:
        MATRIX_FILE,
    output:
        "results/plan.csv",
    log:
        "results/logs/plan.log",
    params:
        here=str(MATRIX.accelerator),
    message:
        "Planning every cell of {input}"
    shell:
        "python workflow/scripts/expand.py --matrix {input:q} --out {output:q} 2>&1 | tee {log:q} >&2"


rule aggregate:
    input:
        cells_here("runs.csv"),
        missing=note_missing(),
        plan="results/plan.csv",
    output:
        runs="results/runs.csv",
        summary="results/summary.csv",
    log:
        "results/logs/aggregate.log",
    message:
        "Gathering the cells"
    shell:
        "python workflow/scripts/aggregate.py"
        " --plan {input.plan:q}"
        " --out results"
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
        "python workflow/scripts/check.py"
        " --runs {input.runs:q}"
        " --summary {input.summary:q}"
        " --plan {input.plan:q}"
        " --expected {input.expected:q}"
        " --out {output:q}"
        " 2>&1 | tee {log:q} >&2"


rule replay:
    input:
        cells="config/fornace-2026-11-04.csv",
        log="config/fornace-alloc-log-cat-contiguous-4096.csv",
    output:
        multiext(
            "results/replay/",
            *("cells.csv", "figure.csv", "fit.csv", "holders.csv", "left_out.csv", "length.csv"),
            *("log.csv", "mlx.csv", "models.csv", "other_cases.csv", "questions.csv"),
            *("slack.csv", "too_large.csv", "peak-against-length.svg"),
        ),
    log:
        "results/logs/replay.log",
    params:
        folder=subpath(output[0], parent=True),
    message:
        "Replaying Candle's pool, and holding it against the finding"
    shell:
        "python workflow/scripts/replay_finding.py"
        " --cells {input.cells:q}"
        " --log {input.log:q}"
        " --out {params.folder:q}"
        " 2>&1 | tee {log:q} >&2"
