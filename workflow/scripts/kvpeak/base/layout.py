"""Where everything of a project lies, relative to its root. The Snakefile's header explains the
grammar.
"""

from collections.abc import Mapping
from pathlib import Path

from kvpeak.base.axes import AXES
from kvpeak.base.files import inside, unlinked

MATRIX = Path("config/matrix.yaml")
EXPECTED = "expected.yaml"  # beside the matrix
RESULTS = Path("results")
PLAN = RESULTS / "plan.csv"
RUNS = RESULTS / "runs.csv"
SUMMARY = RESULTS / "summary.csv"
CHECKS = RESULTS / "checks.csv"
CELLS = RESULTS / "cells"
LOGS = RESULTS / "logs"
REPLAY = RESULTS / "replay"
PYTORCH = RESULTS / "pools/pytorch.csv"
CALIBRATION = RESULTS / "calibration"
LOCAL = Path(".kvpeak")  # made here and for this machine: nothing that is run lies in results/
MADE = LOCAL / "made"  # an empty file for each record of a model, and each file that was hashed
IMPORTED = LOCAL / "imported"  # an empty file for each record that came from somebody else
AGAIN = Path(".snakemake/kvpeak/again")  # renewed for what is to be tried again
FINDING = Path("report/finding.md")
FIGURES = Path("report/figures")
MODELS = Path("models")
PROMPTS = Path("prompts")

# A cell's result; the last one is its marker. A copy of each lies in the folder of the start that
# gave it.
MEMORY_FILE, RECORD_FILE, RUNS_FILE = RESULT_FILES = ("memory.csv", "cell.json", "runs.csv")
MODEL_RECORD = "model.json"  # in the folder of a model
NOW_FILE = (
    "now.txt"  # in the folder of a cell's starts while it runs: its phase and its memory in MiB
)
FAILURE_FILE = "failure.txt"  # in the folder of a start that failed: the cause in one line


def cell_folder(cells: Path, names: Mapping[str, str], number: int | str = 1) -> Path:
    """The folder below `cells` of a process whose names on the axes a table says. Raises UserError
    if it leads out or to another's, by a name or a link, `cells` itself being none.
    """
    name = Path(*(names[axis] for axis in AXES), f"r{number}")
    inside(cells, name)  # whose line says so
    return unlinked(cells.parent, cells.name / name)


def shown_folder(cells: Path, row: Mapping) -> Path:
    """The folder of the process that stands for a cell: the first whose record was taken, as
    read_results says in a row of the summary. Raises what cell_folder does.
    """
    return cell_folder(cells, row, row.get("shown_round", 1))


def model_folder(model: str, shapes: bool = False) -> Path:
    """The model's folder, or that of its shapes alone, which is what a replay needs."""
    return MODELS / "shapes" / model if shapes else MODELS / model


def model_record(model: str, shapes: bool = False) -> Path:
    """What the model is, with the hash of every file."""
    return model_folder(model, shapes) / MODEL_RECORD


def prompt_file(model: str, prompt: str) -> Path:
    """The prompt's token ids for that model."""
    return PROMPTS / model / f"{prompt}.json"


def local_prompt(file: Path) -> Path:
    """The copy of a prompt that was cut here."""
    return LOCAL / file


PROGRAM_RECORDS = (
    "environment.json",
    "engine.json",
)  # each has a copy beside the programs, in LOCAL


def environment_record(commit: str) -> Path:
    """What the commit's engine runs in."""
    return RESULTS / "envs" / commit / "environment.json"


def resolution(commit: str) -> Path:
    """Which versions and hashes the commit's environment is to have, or why there are none. It
    decides what is installed, so that it does not lie in results/, which may come from somebody
    else.
    """
    return LOCAL / "resolutions" / f"{commit}.json"


def pool_record(commit: str) -> Path:
    """What the library of buffer pools was built of for the commit's environment."""
    return RESULTS / "pools" / f"{commit}.json"


def local_copy(record: Path) -> Path:
    """Where the copy of a record in results/ lies that is beside the programs that it describes."""
    return LOCAL / record.relative_to(RESULTS)


def local_model(folder: Path) -> Path:
    """Where the copy of the model.json of a folder of this project lies."""
    return LOCAL / folder / MODEL_RECORD


def environment_python(commit: str) -> Path:
    """The interpreter of an environment that was made for the commit."""
    return LOCAL / "envs" / commit / "venv/bin/python"


def engine_record(commit: str) -> Path:
    """Which revision of an external engine was built, and with what."""
    return RESULTS / "engines" / commit / "engine.json"


def engine_source(commit: str) -> Path:
    """The checkout in which an external engine was built and runs."""
    return LOCAL / "engines" / commit / "source"


def log_of(*names: str) -> Path:
    """The log of a step that is not a cell: models/NAME, prompts/MODEL/NAME, envs/NAME,
    engines/NAME.
    """
    return LOGS.joinpath(*names[:-1], f"{names[-1]}.log")
