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
    priority: priority_of
    threads: CELL_THREADS
    resources:
        gpus=GPUS,
        matrix=MATRIX_FILE,
    params:
        digest=digest_of,
    message:
        "Measuring {output.runs}"
    shell:
        f"python workflow/scripts/run_cell.py {CELL_FOLDER}"
        " --matrix {resources.matrix:q}"
        " --digest {params.digest}"
        " --gpus {resources.gpus}"
        " 2>&1 | tee {log:q} >&2"
