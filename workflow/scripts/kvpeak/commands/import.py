"""Bring what another project or a finding measured into this one.

FOLDER holds results/. Its cells are taken, and the records of what they ran in. Each is read
before, and written as a new file. Nothing that is here is replaced, and nothing of FOLDER is
executed. What is damaged is left out, with a line that says why. Tables, models and prompts are not
taken: they are made anew.
"""

import argparse
import sys
from pathlib import Path

from kvpeak.analysis.importing import KINDS, Imported, import_results
from kvpeak.base.errors import UserError
from kvpeak.base.layout import EXPECTED, MATRIX
from kvpeak.base.text import shell_word


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", type=Path, help="e.g. docs/findings/cpu-2026-12-01")


def run(given: argparse.Namespace) -> None:
    if not Path("Snakefile").exists():
        raise UserError("Snakefile: not here; expected to be started in a project's folder")
    imported = import_results(given.folder)
    for line in imported.left_out:
        print(f"left out: {line}", file=sys.stderr)
    if not imported.brought + imported.here:
        raise UserError(f"{given.folder}: nothing to import; expected results/cells/…/cell.json")
    print(*_counts(imported), sep="\n")
    print(_next_step(given.folder))


def _counts(imported: Imported) -> list[str]:
    """A line for each kind of which there is something."""
    lines = []
    for kind in KINDS:
        brought, here, others = (
            counts[kind] for counts in (imported.brought, imported.here, imported.others)
        )
        stay = f"; {here:,} of their names were here already and stay" if here else ""
        differ = f", {others:,} of them not the same" if others else ""
        lines += [f"{kind}: {brought:,} imported{stay}{differ}"] if here or brought else []
    return lines


def _next_step(folder: Path) -> str:
    """How to render them. The matrix is not copied: it may be code."""
    theirs = folder / MATRIX
    matrix = shell_word(str(theirs)) if theirs.is_file() else "THEIRS"
    return (
        f"Now look at their matrix, which has {EXPECTED} beside it, and render with it:\n"
        f"  kvpeak plan --matrix {matrix}\n"
        f"  snakemake --cores 1 --config partial=true matrix={matrix}"
    )
