# Cells: each in a process of its own, alone on the machine, or on one of its GPUs where several were asked for. Each start has
# a log of its own, which the runner makes.


rule cell:
    input:
        needs_of,
    output:
        "results/cells/{cell}/runs.csv",  # with cell.json and memory.csv beside it, which are there when it is
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
