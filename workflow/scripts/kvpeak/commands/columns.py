"""Write docs/columns.md, the data dictionary of the result tables, from kvpeak/base/columns.py."""

from pathlib import Path

from kvpeak.base.files import write_together
from kvpeak.report.dictionary import dictionary


def arguments(parser) -> None:
    parser.add_argument(
        "--out", type=Path, default=Path("docs/columns.md"), help="default: %(default)s"
    )


def run(given) -> None:
    write_together(given.out.parent, {given.out.name: dictionary()})
