# The matrix, and what the rules ask of it.

import functools
import gc
import json
import os
import shlex
import sys
import time

sys.path.insert(0, str(Path(workflow.basedir) / "workflow/scripts"))

from kvpeak.display.screen import open_screen
from kvpeak.base.program import shows_all
from kvpeak.display.verbose import is_display

# Snakemake gives each of these the rule's threads, which is 1 with --cores 1: then an engine on a CPU computes
# with one thread. The steps get back what the user has set, or nothing.
THREAD_LIMITS = (
    "GOTO_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
)  # fmt: skip
AS_SET_BY_USER = "; ".join(
    f"export {name}={shlex.quote(os.environ[name])}" if name in os.environ else f"unset {name}"
    for name in THREAD_LIMITS
)

MESSAGES = ".snakemake/kvpeak.messages"

# What the steps print is in their logs. It is shown as well where nothing else says how the run goes on: with V=1, and
# on the nodes of a cluster.
SHOWN = (
    ""
    if shows_all()
    or not any(is_display(each) for each in workflow.logger_manager.get_log_handlers())
    else f"exec 2>>{MESSAGES}; "
)

# The steps run with the interpreter that runs Snakemake, whether or not its environment is active. A prefix
# replaces Snakemake's own, which is the strict mode: without it a failed step before a pipe would pass. By KVPEAK_RUN
# a cell that runs beside others knows which processes belong to the same run. Snakemake formats the prefix, so that
# its braces are doubled.
PREFIX = (
    f"set -euo pipefail; {AS_SET_BY_USER}; export KVPEAK_RUN={os.getpid()}; "
    f'PATH={shlex.quote(str(Path(sys.executable).parent))}:"$PATH"; {SHOWN}'
)
shell.prefix(PREFIX.replace("{", "{{").replace("}", "}}"))
from kvpeak.commands.calibrate import DTYPES
from kvpeak.base.axes import AXES, NAME, ROUND, Cell
from kvpeak.base.errors import UserError
from kvpeak.commands.resolve_env import resolve_all
from kvpeak.base.files import check_time, write_text
from kvpeak.base.roots import check_own, ROOTS, check_root
from kvpeak.base.layout import environment_python, model_folder, prompt_file
from kvpeak.base.made import FAILED, UNAVAILABLE, tried_again
from kvpeak.system.host import gpus_asked_for, missing_packages
from kvpeak.system import mac
from kvpeak.system.lock import hold_project
from kvpeak.experiment.checks import files_of
from kvpeak.experiment.matrix import load_matrix
from kvpeak.inputs.make_model import restore
from kvpeak.inputs.prompts import restore_prompt
from kvpeak.experiment.plan import executed, plan_summary
from kvpeak.experiment.preparation import failures, needs, to_be_tried_again
from kvpeak.experiment.status import failed_cells, keep_results, outcome_in
from kvpeak.experiment.requests import build_entry, digest
from kvpeak.experiment.workloads import longest

gc.set_threshold(
    1_000_000
)  # planning makes many objects and no rubbish: a fifth faster with 10,000 cells

MATRIX_FILE = config.get("matrix", "config/matrix.yaml")
EXPECTED_FILE = str(Path(MATRIX_FILE).with_name("expected.yaml"))


def switched_on(given: object) -> bool:
    """What --config partial says. Raises UserError."""
    if str(given).lower() not in ("true", "false"):
        raise UserError(f"--config partial: {given}; expected true or false")
    return str(given).lower() == "true"


try:
    for name in config:
        if name not in ("matrix", "partial", "gpus"):
            raise UserError(f"--config {name}: unknown key; expected matrix, partial or gpus")
    PARTIAL = switched_on(config.get("partial", False))
    MATRIX = load_matrix(MATRIX_FILE, measured=PARTIAL)
    if workflow.is_main_process:
        for root in ROOTS:
            check_root(root)
        check_own(Path(".snakemake"))
        write_text(Path(MESSAGES), "")  # a new file, whatever was there
    if not os.path.exists(EXPECTED_FILE):
        raise UserError(
            f"{EXPECTED_FILE}: no such file; expected the claims beside the matrix (none: claims: [])"
        )
    if workflow.is_main_process:
        for file in filter(os.path.exists, {MATRIX_FILE, EXPECTED_FILE, *files_of(MATRIX)}):
            check_time(Path(file))
        for name, entry in MATRIX.models.items():
            restore(name, entry, model_folder(name))
            restore(name, entry | {"weights": "random"}, model_folder(name, shapes=True))
        for model, prompt in {(cell.model, cell.prompt) for cell in MATRIX.cells_here}:
            restore_prompt(prompt_file(model, prompt))
    GPUS = gpus_asked_for(config.get("gpus", 0), MATRIX.accelerator)
    if workflow.is_main_process:
        for line in executed(MATRIX):
            open_screen().line(line)
        if not PARTIAL:
            resolve_all({n: entry.get("packages", {}) for n, entry in MATRIX.commits.items()})
        for line in plan_summary(MATRIX).splitlines():
            open_screen().line(line)
except (UserError, OSError) as error:
    print(error, file=sys.stderr)
    sys.exit(1)

# A cell takes all the cores, so that nothing runs beside it; on n GPUs as many cells as there are GPUs do.
CELL_THREADS = max(1, workflow.cores // GPUS) if GPUS else workflow.cores


wildcard_constraints:
    **{axis: NAME for axis in AXES},
    cell=rf"({NAME}/){{{len(AXES)}}}{ROUND}",


def cell_of(wildcards) -> Cell:
    *names, last = wildcards.cell.split("/")
    return Cell(*names, int(last.removeprefix("r")))


POSITION = {cell: number for number, cell in enumerate(MATRIX.cells_here)}


def digest_of(wildcards):
    """What the cell's engine is asked, in short. A cell reruns when its own request changes, not when
    another line of the matrix does."""
    return digest(MATRIX.request(cell_of(wildcards)))


def needs_of(wildcards):
    """What the cell runs from: its model, the prompt's token ids (a replay needs only their number), and the
    engine, which is a build of its own or an environment. One function for all: calling
    one for each of 10,000 cells takes Snakemake a second."""
    cell = cell_of(wildcards)
    return [str(need.made) for need in needs(MATRIX, cell)] + again(
        f"results/cells/{cell.path}/runs.csv"
    )


@functools.cache
def again(path, packages=()):
    """An input for the step that makes `path`, if that has failed before: it is then newer than what the step
    left, so that it runs again. Decided once: what fails now is for the next invocation.

    packages: (name, version) of each that the environment at `path` is to have."""
    path = Path(path)
    if path.name == "runs.csv":
        renew = outcome_in(path.parent) in (FAILED, UNAVAILABLE)
    else:
        renew = to_be_tried_again(path, dict(packages))
    return tried_again(path, renew and workflow.is_main_process)


def tried_here():
    """What was made, or could not be made, for the cells that run here."""
    paths = {str(need.made) for cell in MATRIX.cells_here for need in needs(MATRIX, cell)}
    return sorted(path for path in paths if not PARTIAL or os.path.exists(path))


def priority_of(wildcards):
    """Cells that come first in the order of measurement have the higher priority."""
    return -POSITION.get(cell_of(wildcards), 0)


def cells_here(name):
    """The paths of one of the files of every cell that runs here; with --config partial=true of those that are there."""
    paths = [f"results/cells/{cell.path}/{name}" for cell in MATRIX.cells_here]
    return [path for path in paths if not PARTIAL or os.path.exists(path)]


def note_missing(file=Path(".snakemake/kvpeak.missing")):
    """Renew the file, on which the tables depend, if the result of a cell is not there.

    Snakemake does not make a missing file again when what was made from it is newer; a deleted result is
    meant to be measured again.
    """
    missing = [path for path in cells_here("runs.csv") if not os.path.exists(path)]
    if workflow.is_main_process and (missing or not file.exists()):
        write_text(file, "\n".join([str(time.time_ns()), *missing]) + "\n")
    return str(file)


# What failed is in the finding, and the exit code says so.
onsuccess:
    made = [Path(file) for job in workflow.dag.jobs for file in job.output]
    if failed := failed_cells(made) + failures(made):
        for line in failed:
            print(f"failed: {line}", file=sys.stderr)
        print(f"{len(failed)} failed; kvpeak failed lists every log", file=sys.stderr)
        sys.exit(1)


# Snakemake's own lock outlives a killed run, so profiles/default switches it off; this one does not.
onstart:
    try:
        hold_project(Path(".snakemake/kvpeak.lock"))
        if not PARTIAL:  # which removes no result
            keep_results(MATRIX.cells_here)
    except UserError as error:
        print(error, file=sys.stderr)
        sys.exit(1)
    mac.keep_awake(os.getpid())


def calibrations_here(kind="calibration"):
    """What the environments of the live cells can do at most on this machine; with `instruments` what the
    check of their counters found."""
    live = {name for name, entry in MATRIX.commits.items() if entry["engine"] == "mlx"}
    paths = {f"results/{kind}/{c.commit}.json" for c in MATRIX.cells_here if c.commit in live}
    return sorted(path for path in paths if not PARTIAL or os.path.exists(path))


def packages_of(wildcards):
    """The packages of the commit's environment, each with its version."""
    return MATRIX.commits[wildcards.commit].get("packages", {})


def dtypes_of(wildcards):
    """The types that the commit's cells compute in; every one if a model's own files have to say it."""
    models = {cell.model for cell in MATRIX.cells_here if cell.commit == wildcards.commit}
    dtypes = {MATRIX.models[model]["dtype"] for model in models}
    return DTYPES if None in dtypes else sorted(dtypes)


def python_of(wildcards):
    """The interpreter of the commit's environment."""
    own = missing_packages(packages_of(wildcards))
    return str(environment_python(wildcards.commit)) if own else "python"


REPLAY_FILES = [
    *(
        "cells.csv",
        "choices.csv",
        "figure.csv",
        "fit.csv",
        "holders.csv",
        "left_out.csv",
        "length.csv",
        "log.csv",
        "longest.csv",
    ),
    *("models.csv", "other_cases.csv", "questions.csv", "slack.csv", "too_large.csv"),
    "peak-against-length.svg",
]
# Candle's pool is part of the finding where the matrix has an engine that replays it.
REPLAY = (
    ["results/replay/cells.csv", "results/replay/peak-against-length.svg"]
    if any(entry["engine"] == "candle-replay" for entry in MATRIX.commits.values())
    else []
)
# And PyTorch's where the matrix names recordings of it.
RECORDINGS = MATRIX.recordings
PYTORCH = "results/pools/pytorch.csv" if RECORDINGS else []
