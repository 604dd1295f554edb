# Analysis: the plan, the tables, and the claims.


rule plan:
    input:
        MATRIX_FILE,
    log:
        "results/logs/plan.log",
    message:
        "Planning every cell of {input}, trying nothing"
    shell:
        "python workflow/scripts/plan.py --matrix {input:q} --out results/plan.csv 2>&1 | tee {log:q} >&2"


rule planned:
    input:
        matrix=MATRIX_FILE,
        tried=tried_here(),
    output:
        report("results/plan.csv", category="Tables", caption="../report/plan.rst"),
    log:
        "results/logs/planned.log",
    params:
        here=str(MATRIX.accelerator),
        measured="--measured" if PARTIAL else "",
    message:
        "Listing every cell of {input.matrix}, and why it did not run here"
    shell:
        "python workflow/scripts/plan.py --matrix {input.matrix:q} {params.measured} --out {output:q}"
        " 2>&1 | tee {log:q} >&2"


rule aggregate:
    input:
        cells_here("runs.csv"),
        missing=note_missing(),
        plan="results/plan.csv",
        matrix=MATRIX_FILE,
    output:
        runs=report("results/runs.csv", category="Tables", caption="../report/runs.rst"),
        processes=report(
            "results/processes.csv", category="Tables", caption="../report/processes.rst"
        ),
        summary=report("results/summary.csv", category="Tables", caption="../report/summary.rst"),
    log:
        "results/logs/aggregate.log",
    message:
        "Gathering the cells"
    shell:
        "python workflow/scripts/aggregate.py"
        " --plan {input.plan:q}"
        " --matrix {input.matrix:q}"
        " --out results"
        " 2>&1 | tee {log:q} >&2"


rule checks:
    input:
        runs="results/runs.csv",
        summary="results/summary.csv",
        plan="results/plan.csv",
        expected=EXPECTED_FILE,
    output:
        report("results/checks.csv", category="Tables", caption="../report/checks.rst"),
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
        cells="config/fornace/fornace-2026-11-04.csv",
        log="config/fornace/fornace-alloc-log-cat-contiguous-4096.csv",
    output:
        [
            report(
                f"results/replay/{name}",
                category="Candle's pool, replayed",
                labels={"table": name},
                caption="../report/replay.rst",
            )
            for name in REPLAY_FILES
        ],
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


rule recordings:
    input:
        peaks=f"{RECORDINGS}/peaks.json",
        snapshots=f"{RECORDINGS}/snapshots.zip",
    output:
        report("results/pools/pytorch.csv", category="Tables", caption="../report/pools.rst"),
    log:
        "results/logs/recordings.log",
    params:
        folder=RECORDINGS,
    message:
        "Replaying the recordings of {params.folder}"
    shell:
        "python workflow/scripts/replay_recordings.py {params.folder:q} --out {output:q}"
        " 2>&1 | tee {log:q} >&2"


rule fits:
    input:
        runs="results/runs.csv",
        summary="results/summary.csv",
        plan="results/plan.csv",
    output:
        report("results/fits.csv", category="Tables", caption="../report/fits.rst"),
    log:
        "results/logs/fits.log",
    message:
        "Predicting the longest prompts that fit"
    shell:
        "python workflow/scripts/fits.py --out {output:q} 2>&1 | tee {log:q} >&2"
