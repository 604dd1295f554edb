# Engines: an environment for each commit, a build for each external program.


localrules:
    environment,
    engine,


rule environment:
    input:
        again=lambda wildcards: again(
            f"results/envs/{wildcards.commit}/environment.json",
            tuple(packages_of(wildcards).items()),
        ),
    output:
        "results/envs/{commit}/environment.json",
    log:
        "results/logs/envs/{commit}.log",
    threads: workflow.cores
    params:
        packages=lambda wildcards: json.dumps(packages_of(wildcards)),
    message:
        "Making the environment of {wildcards.commit}"
    shell:
        "python workflow/scripts/try_step.py --out {output:q} --limit 3600 --"
        " python workflow/scripts/make_env.py"
        " --commit {wildcards.commit}"
        " --packages {params.packages:q}"
        " --out {output:q}"
        " 2>&1 | tee {log:q} >&2"


rule engine:
    input:
        again=lambda wildcards: again(f"results/engines/{wildcards.commit}/engine.json"),
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
        "python workflow/scripts/try_step.py --out {output:q} --limit 14400 --"
        " python workflow/scripts/build_engine.py"
        " --commit {wildcards.commit}"
        " --entry {params.entry:q}"
        " --out {output:q}"
        " 2>&1 | tee {log:q} >&2"


rule pool:
    input:
        environment="results/envs/{commit}/environment.json",
        again=lambda wildcards: again(f"results/pools/{wildcards.commit}.json"),
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
        "python workflow/scripts/try_step.py --out {output:q} --limit 900 --as-engine"
        " --needs {input.environment:q} --"
        " {params.python:q} workflow/scripts/build_pool.py"
        " --out {output:q}"
        " 2>&1 | tee {log:q} >&2"


rule calibration:
    input:
        environment="results/envs/{commit}/environment.json",
        again=lambda wildcards: again(f"results/calibration/{wildcards.commit}.json"),
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
        "python workflow/scripts/try_step.py --out {output:q} --limit 1800"
        " --needs {input.environment:q} --"
        " python workflow/scripts/calibrate.py"
        " --commit {wildcards.commit}"
        " --python {params.python:q}"
        " --dtypes {params.dtypes}"
        " --out {output:q}"
        " 2>&1 | tee {log:q} >&2"


rule instruments:
    input:
        environment="results/envs/{commit}/environment.json",
        again=lambda wildcards: again(f"results/instruments/{wildcards.commit}.json"),
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
        "python workflow/scripts/try_step.py --out {output:q} --limit 1800"
        " --needs {input.environment:q} --"
        " python workflow/scripts/doctor.py"
        " --environment {wildcards.commit}"
        " --python {params.python:q}"
        " --out {output:q}"
        " 2>&1 | tee {log:q} >&2"
