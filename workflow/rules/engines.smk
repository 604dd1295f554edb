# Engines: an environment for each commit.


rule environment:
    output:
        "results/envs/{commit}/environment.json",
    params:
        packages=lambda wildcards: json.dumps(MATRIX.commits[wildcards.commit].get("packages", {})),
    log:
        "results/logs/envs/{commit}.log",
    message:
        "Making the environment of {wildcards.commit}"
    shell:
        "{PYTHON:q} {SCRIPTS}/make_env.py"
        " --commit {wildcards.commit}"
        " --packages {params.packages:q}"
        " --out {output:q}"
        " 2>&1 | tee {log:q} >&2"
