# Engines: an environment for each commit, a build for each external program.


rule environment:
    output:
        "results/envs/{commit}/environment.json",
    log:
        "results/logs/envs/{commit}.log",
    threads: workflow.cores
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


rule engine:
    output:
        "results/engines/{commit}/engine.json",
    log:
        "results/logs/engines/{commit}.log",
    threads: workflow.cores
    params:
        entry=lambda wildcards: json.dumps(build_entry(MATRIX.commits[wildcards.commit])),
    message:
        "Building {wildcards.commit}"
    shell:
        "python workflow/scripts/build_engine.py"
        " --commit {wildcards.commit}"
        " --entry {params.entry:q}"
        " --out {output:q}"
        " 2>&1 | tee {log:q} >&2"


rule pool:
    input:
        "results/envs/{commit}/environment.json",
    output:
        "results/pools/{commit}.json",
    log:
        "results/logs/pools/{commit}.log",
    threads: workflow.cores
    params:
        python=python_of,
    message:
        "Building the library of buffer pools for {wildcards.commit}"
    shell:
        "{params.python} workflow/scripts/build_pool.py"
        " --out {output:q}"
        " 2>&1 | tee {log:q} >&2"


rule calibration:
    input:
        "results/envs/{commit}/environment.json",
    output:
        "results/calibration/{commit}.json",
    log:
        "results/logs/calibration/{commit}.log",
    threads: workflow.cores
    params:
        python=python_of,
        dtypes=dtypes_of,
    message:
        "Measuring what {wildcards.commit} can do at most on this machine"
    shell:
        "python workflow/scripts/calibrate.py"
        " --commit {wildcards.commit}"
        " --python {params.python:q}"
        " --dtypes {params.dtypes}"
        " --out {output:q}"
        " 2>&1 | tee {log:q} >&2"


rule instruments:
    input:
        "results/envs/{commit}/environment.json",
    output:
        "results/instruments/{commit}.json",
    log:
        "results/logs/instruments/{commit}.log",
    threads: workflow.cores
    params:
        python=python_of,
    message:
        "Checking the instruments with {wildcards.commit}"
    shell:
        "python workflow/scripts/doctor.py"
        " --environment {wildcards.commit}"
        " --python {params.python:q}"
        " --out {output:q}"
        " 2>&1 | tee {log:q} >&2"
