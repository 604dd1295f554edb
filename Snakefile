# kvpeak: from config/matrix.yaml to report/finding.md.
#
#   snakemake --cores 1 report/finding.md    run what is missing, render the finding
#   snakemake -n                             show what would run
#   snakemake --cores 1 --config partial=true    measure nothing, render what there is, list what is missing
#   snakemake --cores 1 plan                 write results/plan.csv: every cell, and why it does not run here
#   snakemake --cores 1 check                exit 1 if a claim of config/expected.yaml fails
#
# Paths:
#   models/{model}/model.json                what the model is, with the hash of each file
#   models/shapes/{model}/model.json         its shapes alone, for a replay
#   prompts/{model}/{prompt}.json            the prompt's token ids for that model
#   results/envs/{commit}/environment.json   what the engine runs in
#   results/engines/{commit}/engine.json     which revision was built, and with what
#   results/cells/{commit}/{model}/{prompt}/{kv_cache}/{cap}/{variant}/r{round}/
#       runs.csv cell.json memory.csv        one process: its runs, its record, its memory over time
#   results/logs/…                           every start of every engine, never overwritten
#   results/plan.csv runs.csv summary.csv checks.csv fits.csv
#   results/replay/*.csv                     Candle's pool, replayed
#   results/pools/pytorch.csv                recordings of PyTorch, replayed
#   report/finding.md report/finding.html report/figures/*.svg
#
# There are no per-rule conda environments or containers (snakemake --lint asks for them): every step runs in the one
# pinned environment that `make` sets up, and a container would stand between the engine and the GPU being measured.

from snakemake.utils import min_version

min_version("9.27")


include: "workflow/rules/common.smk"


# With partial=true what they make is input as it is: nothing is measured, fetched or built.
if not PARTIAL:

    include: "workflow/rules/models.smk"
    include: "workflow/rules/prompts.smk"
    include: "workflow/rules/engines.smk"
    include: "workflow/rules/cells.smk"


include: "workflow/rules/analysis.smk"
include: "workflow/rules/report.smk"


# Under a cluster's executor only the cells and the calibration are sent to its nodes.
localrules:
    finding,
    plan,
    planned,
    aggregate,
    checks,
    fits,
    replay,
    figures,
    render,
    page,
    check,


rule finding:
    default_target: True
    input:
        "report/finding.md",
        "report/finding.html",
