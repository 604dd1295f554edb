# Cells: each in a process of its own, alone on the machine, or on one of its GPUs where several were asked for.


rule cell:
    input:
        model=model_of,
        prompt=prompt_of,
        engine=engine_of,
    output:
        runs=f"results/cells/{CELL_PATH}/runs.csv",
        record=f"results/cells/{CELL_PATH}/cell.json",
        memory=f"results/cells/{CELL_PATH}/memory.csv",
    log:
        f"results/logs/{CELL_PATH}/cell.log",
    priority: lambda wildcards: -position_of(wildcards)
    threads: CELL_THREADS
    resources:
        gpus=GPUS,
        position=progress_of,
        matrix=MATRIX_FILE,
    params:
        digest=digest_of,
        folder=subpath(output.runs, parent=True),
    message:
        "Measuring {params.folder}"
    shell:
        "python workflow/scripts/run_cell.py {params.folder:q}"
        " --matrix {resources.matrix:q}"
        " --digest {params.digest}"
        " --position {resources.position}"
        " --gpus {resources.gpus}"
        " 2>&1 | tee {log:q} >&2"
