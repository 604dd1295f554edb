# Engines: an environment for each commit.


rule environment:
    output:
        "results/envs/{commit}/environment.json",
    log:
        "results/logs/envs/{commit}.log",
    params:
        packages=lambda wildcards: json.dumps(MATRIX.commits[wildcards.commit].get("packages", {})),
    message:
        "Making the environment of {wildcards.commit}"
    shell:
        "python workflow/scripts/make_env.py"
        " --commit {wildcards.commit}"
        " --packages {params.packages:q}"
        " --out {output:q}"
        " 2>&1 | tee {log:q} >&2"
