# Models: one folder each, with a model.json that names its source and the hash of every file.


localrules:
    model,
    shapes,


rule model:
    input:
        config=lambda wildcards: MATRIX.models[wildcards.model].get("config", []),
        again=lambda wildcards: again(f"models/{wildcards.model}/model.json"),
    output:
        "models/{model}/model.json",
    log:
        "results/logs/models/{model}.log",
    threads: workflow.cores
    params:
        entry=lambda wildcards: json.dumps(MATRIX.models[wildcards.model]),
    message:
        "Making models/{wildcards.model}"
    shell:
        "python workflow/scripts/try_step.py --out {output:q} --limit 21600 --"
        " python workflow/scripts/make_model.py"
        " --name {wildcards.model}"
        " --entry {params.entry:q}"
        " --out {output:q}"
        " 2>&1 | tee {log:q} >&2"


rule shapes:
    input:
        config=lambda wildcards: MATRIX.models[wildcards.model]["config"],
        again=lambda wildcards: again(f"models/shapes/{wildcards.model}/model.json"),
    output:
        "models/shapes/{model}/model.json",
    log:
        "results/logs/models/{model}.shapes.log",
    params:
        entry=lambda wildcards: json.dumps(MATRIX.models[wildcards.model] | {"weights": "random"}),
    message:
        "Taking the shapes of {wildcards.model}"
    shell:
        "python workflow/scripts/try_step.py --out {output:q} --limit 21600 --"
        " python workflow/scripts/make_model.py"
        " --name {wildcards.model}"
        " --entry {params.entry:q}"
        " --out {output:q}"
        " 2>&1 | tee {log:q} >&2"
