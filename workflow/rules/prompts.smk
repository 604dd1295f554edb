# Prompts: the corpus cut to an exact number of tokens of each model.


localrules:
    prompt,


rule prompt:
    input:
        corpus=lambda wildcards: MATRIX.prompts[wildcards.prompt]["corpus"],
        model="models/{model}/model.json",
        again=lambda wildcards: again(f"prompts/{wildcards.model}/{wildcards.prompt}.json"),
    output:
        "prompts/{model}/{prompt}.json",
    log:
        "results/logs/prompts/{model}/{prompt}.log",
    threads: workflow.cores
    params:
        tokens=lambda wildcards: MATRIX.prompts[wildcards.prompt]["tokens"],
        longest=lambda wildcards: longest(
            MATRIX.prompts[wildcards.prompt], MATRIX.generate(wildcards.model)
        ),
    message:
        "Cutting {wildcards.prompt} to {params.tokens} tokens of {wildcards.model}"
    shell:
        "python workflow/scripts/try_step.py --out {output:q} --limit 900 --needs {input.model:q} --"
        " python workflow/scripts/cut_prompt.py"
        " --corpus {input.corpus:q}"
        " --model-folder models/{wildcards.model}"
        " --tokens {params.tokens}"
        " --longest {params.longest}"
        " --out {output:q}"
        " 2>&1 | tee {log:q} >&2"
