"""What a finished cell and a finished run have to say, read from their files."""

import re
from collections import Counter
from pathlib import Path

from kvpeak.base.axes import AXES
from kvpeak.base.columns import LOWER_BOUND
from kvpeak.base.errors import UserError
from kvpeak.base.layout import CELLS, CHECKS, FINDING, LOGS, NOW_FILE, RECORD_FILE
from kvpeak.base.numbers import GIB, MIB
from kvpeak.base.text import plain
from kvpeak.base.untrusted import read_csv, read_object, read_text

MOST_CAUSE = 400  # characters of a message


def labels(cells: list[str]) -> dict[str, str]:
    """Cell → a name for the terminal: what tells it apart from the others.

    An axis on which all are the same is left out; a single cell keeps its whole path.
    """
    parts = {cell: cell.split("/") for cell in cells}
    if len(cells) < 2:
        return {cell: " ".join(names) for cell, names in parts.items()}
    kept = [k for k in range(len(AXES) + 1) if len({names[k] for names in parts.values()}) > 1]
    return {cell: " ".join(names[k] for k in kept) for cell, names in parts.items()}


def outcome_of(cell: str) -> tuple[str, str]:
    """(outcome, what to say of it: the peak, or why there is none)."""
    try:
        record = read_object(CELLS / cell / RECORD_FILE)
        outcome, memory = str(record["outcome"]), record["memory"]
        peak, source = memory["peak_footprint_mib"], memory.get("peak_footprint_source")
    except (OSError, UserError, KeyError, TypeError) as error:
        return "damaged", plain(str(error), MOST_CAUSE)
    if outcome != "ok":
        return outcome, plain(str(record.get("detail") or ""), MOST_CAUSE)
    least = "at least " if LOWER_BOUND in str(source) and size(peak) else ""
    return outcome, least + size(peak)


def size(mib: float | None) -> str:
    """412 MiB, 14.5 GiB; nothing where it is not known."""
    if not isinstance(mib, int | float):
        return ""
    return f"{mib:,.0f} MiB" if mib < 10_000 else f"{mib * MIB / GIB:,.1f} GiB"


def doing(cell: str, log: str) -> str:
    """What a cell does now: its phase and memory, or else the last line of its log."""
    try:
        phase, mib = plain(read_text(LOGS / cell / NOW_FILE)).split()
        return f"{phase_words(phase)}, {size(float(mib))}" if float(mib) else phase_words(phase)
    except (OSError, UserError, ValueError):
        return last_line(Path(log)) or "starts"


def phase_words(phase: str) -> str:
    """decode-2 → run 2: decode; decode-2/17 → run 2, turn 17: decode."""
    if found := re.fullmatch(r"(\w+)-(\d+)(?:/(\d+))?", phase):
        turn = f", turn {found[3]}" if found[3] else ""
        return f"run {found[2]}{turn}: {found[1]}"
    return phase


def cause_of(log: str, cell: str) -> tuple[str, str]:
    """Why a step failed, and where its log and its last result are, from the last line of its
    log.
    """
    line = last_line(Path(log), most=None) or "its log is empty"
    line = re.sub(r"^\w+: ", "", line).removeprefix(f"{cell}: ")
    cause, _, rest = line.partition("; log: ")
    return plain(cause, MOST_CAUSE), rest or log


def last_line(file: Path, most: int | None = MOST_CAUSE) -> str:
    """The last line of a log that says something: usually the cause."""
    try:
        lines = read_text(file).splitlines()
    except (OSError, UserError):
        return ""
    return next((plain(line, most) for line in reversed(lines) if line.strip()), "")


def sentence(finding: Path = FINDING) -> str:
    """The finding's title, without Markdown's escapes; empty if there is none."""
    try:
        first = read_text(finding).split("\n", 1)[0]
    except (OSError, UserError):
        return ""
    return plain(re.sub(r"\\(.)", r"\1", first.removeprefix("# ")))


def verdicts(checks: Path = CHECKS) -> str:
    """How many claims got which verdict, the commonest first; empty if none was judged."""
    try:
        counts = Counter(row["verdict"] for row in read_csv(checks, ("verdict",)))
    except (OSError, UserError):
        return ""
    return ", ".join(f"{number} {verdict:.40}" for verdict, number in counts.most_common())


def missing_cells(file: Path) -> list[str]:
    """The cells without a result that the Snakefile wrote down, in the order of measurement."""
    try:
        paths = [Path(line) for line in read_text(file).splitlines()[1:] if line]
    except (OSError, UserError):
        return []
    return [p.parent.relative_to(CELLS).as_posix() for p in paths if not p.exists()]
