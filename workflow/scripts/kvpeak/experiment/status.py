"""How cells ended, as far as results/ tells, and what follows from it for others."""

import hashlib
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from kvpeak.base import layout
from kvpeak.base.axes import Cell
from kvpeak.base.errors import UserError
from kvpeak.base.files import inside, write_together
from kvpeak.base.made import FAILED, UNAVAILABLE, is_imported, why_not_made
from kvpeak.base.text import plain
from kvpeak.base.untrusted import holds, open_regular, read_bytes, read_object
from kvpeak.experiment.matrix import Matrix
from kvpeak.experiment.preparation import needs

DID_NOT_FIT = ("oom", "guard")
NOT_MEASURED = ("oom", "guard", "timeout", "unsupported", "skipped", UNAVAILABLE)
TO_BE_TRIED = (
    None,
    FAILED,
    UNAVAILABLE,
)  # outcomes that the next invocation does not leave as they are
HEAD = 2048  # bytes; cell.json begins with the cell and its outcome
# As kvpeak writes it, which reads in one way only.
_BEGINNING = re.compile(
    rb'\{\n "cell": \{\n(?:  "\w+": (?:"[^"\\\n]*"|\d+),?\n)* \},\n "outcome": "(\w+)"'
)


@dataclass(frozen=True)
class Missing:
    """A cell without a result: why, in one line, and the log (a file or a folder), None if nothing
    was started.
    """

    cell: Cell
    cause: str
    log: Path | None


def outcome_of(cell: Cell) -> str | None:
    """How the cell ended; None if it has no result."""
    return outcome_in(layout.CELLS / cell.path)


def outcome_in(folder: Path) -> str | None:
    """The outcome of the result in a folder; None if there is none. Reads only the head of
    cell.json, or all of one that is written in another way, such as a published one.
    """
    try:
        if not (folder / layout.RUNS_FILE).exists():
            return None
        with open_regular(folder / layout.RECORD_FILE) as file:
            if found := _BEGINNING.match(file.read(HEAD)):
                return found[1].decode()
        outcome = read_object(folder / layout.RECORD_FILE).get("outcome")
    except (OSError, UserError):
        return None
    return outcome if isinstance(outcome, str) else None


def failed_cells(paths: Iterable[Path]) -> list[str]:
    """Of the markers of cells' results: those of cells that failed, with the cause, a line each."""
    found = []
    for path in paths:
        if path.name == layout.RUNS_FILE and outcome_in(path.parent) == FAILED:
            cell = path.parent.relative_to(layout.CELLS)
            found.append(f"{cell}: {recorded(path.parent)[0]}")
    return found


def would_exceed(matrix: Matrix, cell: Cell) -> str:
    """Why the cell need not be tried: with a shorter prompt it ended with oom or guard; '' if it
    has to be.

    Only results of what the matrix asks now count.
    """
    if not matrix.protocol["skip_longer"]:
        return ""
    shorter = ((other, outcome_of(other)) for other in matrix.shorter(cell))
    return next(
        (_too_long(other, end) for other, end in shorter if _did_not_fit(matrix, other, end)), ""
    )


def to_be_skipped(matrix: Matrix) -> dict[Cell, str]:
    """The cells without a result that will get the outcome `skipped`, each with the reason.

    The same as would_exceed of every one, but it looks at each result once.
    """
    if not matrix.protocol["skip_longer"] or not layout.CELLS.exists():
        return {}
    outcomes = {cell: outcome_of(cell) for cell in matrix.cells_here}
    did_not_fit = {cell for cell, end in outcomes.items() if _did_not_fit(matrix, cell, end)}
    kinds = {replace(cell, prompt="", round=1) for cell in did_not_fit}
    found = {}
    for cell, outcome in outcomes.items():
        if outcome in TO_BE_TRIED and replace(cell, prompt="", round=1) in kinds:
            for shorter in filter(did_not_fit.__contains__, matrix.shorter(cell)):
                found[cell] = _too_long(shorter, outcomes[shorter])
                break
    return found


def missing_cells(matrix: Matrix) -> Iterator[Missing]:
    """The cells that run here and have no result or a failure, in the order of measurement."""
    for cell in matrix.cells_here:
        there = (layout.CELLS / cell.path / layout.RUNS_FILE).exists()
        if not there or outcome_of(cell) == FAILED:
            yield Missing(cell, *_cause(matrix, cell))


def forget(cell: Cell) -> None:
    """Take the cell's result away, after there is a copy of it. Raises UserError."""
    _keep(cell)
    for name in reversed(layout.RESULT_FILES):  # the marker first
        (layout.CELLS / cell.path / name).unlink(missing_ok=True)


def keep_results(cells: Iterable[Cell]) -> None:
    """Copy each result of which there is no copy, such as a published one, before Snakemake may
    remove it to measure the cell again. Raises UserError.
    """
    for cell in cells:
        _keep(cell)


def _keep(cell: Cell) -> None:
    """Copy what was measured of the cell beside its starts, unless one of them holds the same."""
    result, logs = _measured(layout.CELLS / cell.path), layout.LOGS / cell.path
    if not result or any(
        _holds(kept.parent, result) for kept in logs.glob(f"*/{layout.RUNS_FILE}")
    ):
        return
    digest = hashlib.sha256(b"".join(result.values())).hexdigest()
    try:
        write_together(inside(layout.LOGS, f"{cell.path}/kept-{digest[:16]}"), result)
    except OSError as error:
        raise UserError(f"{error.filename or logs}: {error.strerror}; no result is lost") from None


def _measured(folder: Path) -> dict[str, bytes]:
    """The files of a result as they are; {} if it is none, or holds no figure below the heads of
    its tables. Whatever its record says, what cannot be read is none.
    """
    found = {}
    for name in layout.RESULT_FILES:
        with suppress(OSError, UserError):
            if not (folder / name).is_symlink():
                found[name] = read_bytes(folder / name)
    tables = [found.get(name, b"") for name in (layout.RUNS_FILE, layout.MEMORY_FILE)]
    return found if any(b"\n" in table.strip() for table in tables) else {}


def _holds(folder: Path, result: dict[str, bytes]) -> bool:
    """Whether the files of a result lie in a folder, not links to them, with the same content."""
    return not any((folder / name).is_symlink() for name in result) and holds(folder, result)


def _read_record(folder: Path) -> dict:
    """A cell's cell.json: its outcome, detail, log and request. Raises UserError if it is none."""
    file, again = folder / layout.RECORD_FILE, "delete the folder to measure the cell again"
    try:
        found = read_object(file)
    except OSError as error:
        raise UserError(f"{file}: {error.strerror}; {again}") from None
    except UserError as error:
        raise UserError(f"{error}; {again}") from None
    for key in ("outcome", "detail", "log"):
        if not isinstance(found.setdefault(key, None), str | None):
            raise UserError(f"{file}: {key}: expected text; {again}")
        found[key] = found[key] and plain(found[key])
    return found


def starts_of(cell: Cell) -> list[Path]:
    """The folders of all starts of the cell, oldest first."""
    return sorted(folder for folder in (layout.LOGS / cell.path).glob("*Z-*") if folder.is_dir())


def _cause(matrix: Matrix, cell: Cell) -> tuple[str, Path | None]:
    for need in needs(matrix, cell):
        if why := why_not_made(need.made):
            return why.reason, need.log
        if not need.made.exists() and need.log.exists() and need.log.stat().st_size:
            return f"{need.made} was not made: {_last_line(need.log)}", need.log
    if outcome_of(cell) == FAILED:
        return recorded(layout.CELLS / cell.path)
    starts = starts_of(cell)
    if not starts:
        return "not run yet", None
    failure = starts[-1] / layout.FAILURE_FILE
    if failure.exists():
        return _last_line(failure), starts[-1]
    if (starts[-1] / layout.RUNS_FILE).exists():
        return "not run again since it was deleted", starts[-1]
    return "stopped before its end", starts[-1]


def recorded(folder: Path) -> tuple[str, Path]:
    """What the record in a cell's folder says of how it ended, and the log of its start; of one
    that failed before any, that of its step.
    """
    file = folder / layout.RECORD_FILE
    step = layout.LOGS / folder.relative_to(layout.CELLS) / "cell.log"
    try:
        record = _read_record(folder)
    except UserError as error:
        return str(error), file
    log = Path(record["log"]) if record["log"] else step if step.exists() else file
    return record["detail"] or "no message", log


def _did_not_fit(matrix: Matrix, cell: Cell, outcome: str | None) -> bool:
    """Whether the cell did not fit here. A record that is damaged, or of another machine, says
    nothing of others.
    """
    folder = layout.CELLS / cell.path
    if outcome not in DID_NOT_FIT or is_imported(folder / layout.RECORD_FILE):
        return False
    try:
        return _read_record(folder).get("request") == matrix.request(cell)
    except UserError:
        return False


def _too_long(shorter: Cell, outcome: str) -> str:
    return f"would exceed the memory: {shorter.prompt} ended with {outcome} in r{shorter.round}"


def _last_line(file: Path) -> str:
    try:
        lines = read_bytes(file).decode(errors="replace").split("\n")
    except (OSError, UserError) as error:
        return plain(str(error))
    return next((plain(line) for line in reversed(lines) if line.strip()), "no message")
