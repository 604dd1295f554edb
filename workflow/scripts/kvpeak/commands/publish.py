"""Copy a finding to docs/findings/NAME, with all that it rests on.

That is the document, its figures, the matrix and its claims, the result tables, each process's
record and runs, and the timeline of each cell's first process. Of the other processes memory.csv is
left out; the peaks of its samples are in cell.json. Links inside the document are made to work
there; nothing else of it changes.

SHA256SUMS lists what was written. The next time nothing else is removed: what was put there by
hand, such as README.md, stays.
"""

import argparse
import sys
from pathlib import Path

from kvpeak.base.axes import is_name
from kvpeak.report.publishing import publish


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "name", type=_name, help="the folder's name below docs/findings/, e.g. cpu-2026-12-01"
    )
    for option, default in (
        ("--matrix", "config/matrix.yaml"),
        ("--report", "report/finding.md"),
        ("--results", "results"),
        ("--folder", "docs/findings"),
    ):
        parser.add_argument(option, type=Path, default=Path(default), help="default: %(default)s")


def run(given: argparse.Namespace) -> None:
    target = given.folder / given.name
    for line in publish(given.matrix, given.report, given.results, target):
        print(line, file=sys.stderr)
    print(f"{target}: {sum(path.is_file() for path in target.rglob('*'))} files")


def _name(text: str) -> str:
    if not is_name(text):
        raise argparse.ArgumentTypeError(f"{text}: expected letters, digits, '.', '_' and '-'")
    return text
