# Cells: each in a process of its own, alone on the machine.

POSITION = {cell: number for number, cell in enumerate(MATRIX.cells_here, start=1)}


def request_of(wildcards):
    """What the cell's engine is asked, as JSON. A cell reruns when its own request changes, not when
    another line of the matrix does."""
    return json.dumps(MATRIX.request(cell_of(wildcards)))


def position_of(wildcards):
    """The cell's place in the order of measurement, counted from 1."""
    return POSITION.get(cell_of(wildcards), 0)


def progress_of(wildcards):
    """'k/n' for the progress lines; a resource, because a changed parameter or command reruns the cell."""
    return f"{position_of(wildcards)}/{len(POSITION)}"


rule cell:
    input:
        model="models/{model}/model.json",
        prompt="prompts/{model}/{prompt}.json",
        environment="results/envs/{commit}/environment.json",
    output:
        runs=f"results/cells/{CELL_PATH}/runs.csv",
        record=f"results/cells/{CELL_PATH}/cell.json",
        memory=f"results/cells/{CELL_PATH}/memory.csv",
    params:
        request=request_of,
        folder=subpath(output.runs, parent=True),
    log:
        f"results/logs/{CELL_PATH}/cell.log",
    threads: workflow.cores
    resources:
        position=progress_of,
    priority: lambda wildcards: -position_of(wildcards)
    message:
        "Measuring {params.folder}"
    shell:
        "{PYTHON:q} {SCRIPTS}/run_cell.py"
        " --request {params.request:q}"
        " --out {params.folder:q}"
        " --position {resources.position}"
        " --log {log:q}"
