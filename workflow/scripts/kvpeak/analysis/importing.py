"""What another project or a published finding measured, brought into this one.

The folder is a stranger's, who may change it meanwhile. Only what is known here is taken from it:
the processes, and the records of what they ran in. Each file is read once and never through a link.
What was read is looked at in a folder that nobody else may enter, and is written as a new file.
That it was imported is remembered: nothing that is measured here is judged by it. Tables are not
taken, because they are made of the processes; nor is what can be made anew: models, prompts,
programs.
"""

import os
import re
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from kvpeak.analysis.processes import read_process
from kvpeak.base.axes import AXES, NAME, ROUND
from kvpeak.base.errors import UserError
from kvpeak.base.files import listed, unlinked, write_together
from kvpeak.base.layout import CELLS, MEMORY_FILE, RECORD_FILE, RESULT_FILES, RESULTS
from kvpeak.base.made import note_import
from kvpeak.base.roots import check_root
from kvpeak.base.untrusted import (
    MOST_BYTES,
    MOST_JSON,
    MOST_RECORD,
    Root,
    holds,
    open_root,
    read_bytes,
    read_csv,
    read_object,
)

CELL = "cells"
LONGEST_NAME = 200  # characters, so that it can be written under a temporary name
_AXIS, _RECORD = re.compile(NAME), re.compile(rf"{NAME}\.json")
# Kind → the parts of its paths below results/: a name, or what a name has to be.
KINDS = {
    CELL: (CELLS.name, *[_AXIS] * len(AXES), re.compile(ROUND)),
    "environments": ("envs", _AXIS, "environment.json"),
    "builds": ("engines", _AXIS, "engine.json"),
    "calibrations": ("calibration", _RECORD),
    "checks of instruments": ("instruments", _RECORD),
}


@dataclass
class Imported:
    """How many of each kind were brought, how many were here already, how many of these are not the
    same, and a line for each that was left out.
    """

    brought: Counter = field(default_factory=Counter)
    here: Counter = field(default_factory=Counter)
    others: Counter = field(default_factory=Counter)
    left_out: list[str] = field(default_factory=list)


def import_results(folder: Path) -> Imported:
    """Bring what lies in `folder`/results into results/ of the current folder. What is here stays.

    Raises UserError where there is no such folder, or where results/ here is not what Snakemake
    begins with, and OSError where it cannot be written.
    """
    theirs, imported = folder / RESULTS, Imported()
    if theirs.is_symlink() or not theirs.is_dir():
        raise UserError(f"{theirs}: no folder; expected one that holds what was measured")
    check_root(RESULTS)
    with open_root(theirs) as opened:
        _bring(opened, imported)
    return imported


def _bring(opened: Root, imported: Imported) -> None:
    theirs = opened.path
    for kind, parts in KINDS.items():
        for name in _found(theirs, Path(), parts, imported.left_out):
            try:
                target = unlinked(RESULTS, name)
                contents = _checked(opened, name, kind)
            except (UserError, OSError) as error:
                imported.left_out.append(_line(theirs / name, error))
                continue
            into = target if kind == CELL else target.parent
            if not _is_here(target):
                note_import(contents[RECORD_FILE if kind == CELL else name.name])
                write_together(into, contents)
                imported.brought[kind] += 1
                continue
            imported.here[kind] += 1
            imported.others[kind] += not holds(into, contents)


def _found(root: Path, name: Path, parts: tuple, left_out: list[str]) -> Iterator[Path]:
    """The paths below `root` / `name` whose parts are those, from `root`; a line in `left_out` for
    each of another name, and for each that is a link.
    """
    if not parts:
        yield name
        return
    first, *others = parts
    try:
        folder = unlinked(root, name)
        names = sorted(entry.name for entry in listed(folder))
    except UserError as error:
        left_out.append(str(error))
        return
    for each in names:
        if isinstance(first, str):
            if each == first:
                yield from _found(root, name / each, others, left_out)
        elif first.fullmatch(each) and len(each) <= LONGEST_NAME:
            yield from _found(root, name / each, others, left_out)
        else:
            expected = "a round, such as r1" if first.pattern == ROUND else "a name on an axis"
            left_out.append(_line(folder / each, UserError(f"expected {expected}")))


def _is_here(target: Path) -> bool:
    """Whether a record, or anything of a process, is here already, be it a link."""
    return os.path.lexists(target) and (not target.is_dir() or any(target.iterdir()))


def _checked(opened: Root, name: Path, kind: str) -> dict[str, bytes]:
    """The files of a process, the last one its marker, or a record under its own name. Raises
    UserError for what the finding could not read, or is another's.
    """
    theirs = opened.path
    names = [name / each for each in RESULT_FILES] if kind == CELL else [name]
    contents = {}
    for each in names:
        unlinked(theirs, each)  # which says what is wrong with one that was there from the start
        with suppress(FileNotFoundError):
            most = MOST_JSON if each.suffix == ".json" else MOST_BYTES
            contents[each.name] = read_bytes(theirs / each, most, opened)
    with tempfile.TemporaryDirectory() as private:
        copy = Path(private, name if kind == CELL else name.parent)
        copy.mkdir(parents=True)
        for each, content in contents.items():
            (copy / each).write_bytes(content)
        try:
            _check_process(copy, name) if kind == CELL else read_object(
                copy / name.name, MOST_RECORD
            )
        except UserError as error:
            raise UserError(str(error).replace(private, str(theirs))) from None
    return contents


def _check_process(folder: Path, name: Path) -> None:
    """Raise UserError for a process that is not the one of its name; memory.csv may be missing."""
    *axes, last = name.parts[1:]
    names = dict(zip((*AXES, "round"), (*axes, last.removeprefix("r")), strict=True))
    if read_process(folder, names) is None:
        raise UserError("cell.json or runs.csv is not there")
    if (folder / MEMORY_FILE).exists():
        read_csv(folder / MEMORY_FILE, ("t_s", "phase"), only=())


def _line(path: Path, error: UserError | OSError) -> str:
    """What is wrong with a path, which the error may name already."""
    said = str(UserError(getattr(error, "strerror", None) or error))
    return said if said.startswith(str(UserError(path))) else str(UserError(f"{path}: {said}"))
