# Cells: each in a process of its own, alone on the machine, or on one of its GPUs where several were asked for.


rule cell:
    input:
        needs_of,
    output:
        "results/cells/{cell}/runs.csv",  # with cell.json and memory.csv beside it, which are there when it is
    log:
        "results/logs/{cell}/cell.log",
    priority: priority_of
    threads: CELL_THREADS
    resources:
        gpus=GPUS,
        matrix=MATRIX_FILE,
    params:
        digest=digest_of,
    message:
        "Measuring {output}"
    shell:
        "python workflow/scripts/run_cell.py results/cells/{wildcards.cell}"
        " --matrix {resources.matrix:q}"
        " --digest {params.digest}"
        " --gpus {resources.gpus}"
        " --record-failure"
        " 2>&1 | tee {log:q} >&2"
