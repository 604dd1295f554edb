"""Render report/finding.md, and report/details.md with all that it rests on, from the tables and
the cells' records. Nothing in them is written by hand.
"""

from pathlib import Path

from kvpeak.base.files import write_together
from kvpeak.experiment.matrix import load_matrix
from kvpeak.report.context import DEFAULT_MATRIX, context
from kvpeak.report.document import rendered


def arguments(parser) -> None:
    parser.add_argument("--matrix", default=DEFAULT_MATRIX, help="default: %(default)s")
    for name, where in {"results": "results", "out": "report/finding.md"}.items():
        parser.add_argument(
            f"--{name}", type=Path, default=Path(where), help="default: %(default)s"
        )


def run(given) -> None:
    matrix = load_matrix(given.matrix)
    found = context(matrix, given.results, given.out.parent / "figures")
    texts = {"details.md": rendered("details.md.j2", found)}
    texts[given.out.name] = rendered("finding.md.j2", found)
    write_together(given.out.parent, texts)
