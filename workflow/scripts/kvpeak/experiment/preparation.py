"""What has to be made before a cell can run, and whether it could be made."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from kvpeak.base import layout
from kvpeak.base.axes import Cell
from kvpeak.base.errors import UserError
from kvpeak.base.made import FAILED, NotMade, is_imported, is_own_model, why_not_made
from kvpeak.base.untrusted import read_bytes
from kvpeak.experiment.engines import COMMAND
from kvpeak.experiment.matrix import Matrix
from kvpeak.system.host import missing_packages


@dataclass(frozen=True)
class Need:
    """One file that a step makes, and the log of that step."""

    made: Path
    log: Path


def needs(matrix: Matrix, cell: Cell) -> list[Need]:
    """What the cell runs from: its model, the prompt's token ids, and its engine.

    A replay needs no prompt's token ids, and no model where its shapes are given. An engine is a
    build of its own or an environment.
    """
    shapes = matrix.model_folder(cell) == str(layout.model_folder(cell.model, shapes=True))
    engine = matrix.commits[cell.commit]["engine"]
    options = matrix.variants[cell.variant]
    pool = engine == "mlx" and any(options.get(key) for key in ("pool", "record", "wait"))
    return _needs(engine, cell.commit, cell.model, shapes, cell.prompt, pool)


@cache
def _needs(
    engine: str, commit: str, model: str, shapes: bool, prompt: str, pool: bool
) -> list[Need]:
    log = f"{model}.shapes" if shapes else model
    found = [Need(layout.model_record(model, shapes), layout.log_of("models", log))]
    if engine != "candle-replay":
        found.append(
            Need(layout.prompt_file(model, prompt), layout.log_of("prompts", model, prompt))
        )
    if engine == COMMAND:
        return [*found, Need(layout.engine_record(commit), layout.log_of("engines", commit))]
    found.append(Need(layout.environment_record(commit), layout.log_of("envs", commit)))
    if pool:
        found.append(Need(layout.pool_record(commit), layout.log_of("pools", commit)))
    return found


def not_made(matrix: Matrix, cell: Cell, known: dict | None = None) -> NotMade | None:
    """Why one of the cell's needs was not made, as far as it has been tried.

    known: what was read of files before, for a call for each of many cells.
    """
    known = {} if known is None else known
    for need in needs(matrix, cell):
        if need.made not in known:
            known[need.made] = why_not_made(need.made)
        if known[need.made]:
            return known[need.made]
    return None


def lacks_its_programs(record: Path, packages: dict[str, str] | None = None) -> bool:
    """Whether what is recorded as made was made elsewhere, so that its programs are not here.

    Programs lie below .kvpeak/, with a copy of their record; one that is not equal is not theirs.
    packages: what an environment is to have. One that this Python lacks is among its programs,
    whatever the record says.
    """
    if record.name not in layout.PROGRAM_RECORDS:
        return False
    local = layout.local_copy(record)
    try:
        said = read_bytes(record)
    except FileNotFoundError:
        return False
    except (OSError, UserError):
        return True
    try:
        needed = record.name == "engine.json" or missing_packages(packages or {})
        return bool(needed or _is_of_its_own(said)) and read_bytes(local) != said
    except (OSError, UserError):
        return True


def _is_of_its_own(record: bytes) -> bool:
    """Whether a record is that of an environment of its own."""
    try:
        said = json.loads(record)
    except (ValueError, RecursionError):
        return True
    return isinstance(said, dict) and bool(said.get("own"))


def to_be_tried_again(path: Path, packages: dict[str, str] | None = None) -> bool:
    """Whether the step at `path` is to run again although its file is there; `packages` is what
    lacks_its_programs takes.
    """
    if path.name == layout.MODEL_RECORD and path.exists() and not is_own_model(path):
        return True  # a folder that was handed over, whose files nobody here has checked
    return bool(why_not_made(path)) or is_imported(path) or lacks_its_programs(path, packages)


def failures(paths: Iterable[Path]) -> list[str]:
    """Of files that preparing steps make: why those that failed did, a line each."""
    found = ((path, why_not_made(path)) for path in paths)
    return [f"{path}: {why.reason}" for path, why in found if why and why.outcome == FAILED]
