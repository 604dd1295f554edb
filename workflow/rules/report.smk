# The finding and its figures.


rule figures:
    input:
        matrix=MATRIX_FILE,
        plan="results/plan.csv",
        runs="results/runs.csv",
        summary="results/summary.csv",
        replay=REPLAY,
    output:
        report(
            directory("report/figures"),
            patterns=["{name}.svg"],
            category="Figures",
            labels={"figure": "{name}"},
            caption="../report/figures.rst",
        ),
    log:
        "results/logs/figures.log",
    message:
        "Drawing the figures"
    shell:
        "python workflow/scripts/plot.py --matrix {input.matrix:q} --out {output:q}"
        " 2>&1 | tee {log:q} >&2"


rule render:
    input:
        matrix=MATRIX_FILE,
        plan="results/plan.csv",
        runs="results/runs.csv",
        summary="results/summary.csv",
        checks="results/checks.csv",
        figures="report/figures",
        processes="results/processes.csv",
        templates=expand(
            "report/templates/{name}.md.j2", name=["finding", "details", "missing", "replay"]
        ),
        replay=REPLAY,
        pools=PYTORCH,
        calibrations=calibrations_here(),
        instruments=calibrations_here("instruments"),
    output:
        details="report/details.md",
        finding=report("report/finding.md", category="Finding", caption="../report/finding.rst"),
    log:
        "results/logs/render.log",
    message:
        "Rendering {output.finding}"
    shell:
        "python workflow/scripts/render.py"
        " --matrix {input.matrix:q}"
        " --out {output.finding:q}"
        " 2>&1 | tee {log:q} >&2"


rule page:
    input:
        finding="report/finding.md",
        details="report/details.md",
        tables=["results/plan.csv", "results/runs.csv", "results/summary.csv", "results/checks.csv"],
        fits="results/fits.csv",
        replay=REPLAY,
        pools=PYTORCH,
        templates=expand("report/templates/page.{ending}", ending=["html.j2", "css", "js"]),
    output:
        "report/finding.html",
    log:
        "results/logs/page.log",
    message:
        "Making one page of {input.finding}"
    shell:
        "python workflow/scripts/page.py --finding {input.finding:q} --out {output:q}"
        " 2>&1 | tee {log:q} >&2"


rule check:
    input:
        "results/checks.csv",
    log:
        "results/logs/check.log",
    message:
        "Failing if a claim fails"
    shell:
        "python workflow/scripts/check.py --read {input:q} 2>&1 | tee {log:q} >&2"
