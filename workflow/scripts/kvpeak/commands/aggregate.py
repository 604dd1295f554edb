"""Gather the cells: results/runs.csv (every run), processes.csv and summary.csv (one row per cell).

A cell whose files are damaged is named, has the outcome `unreadable`, and costs the others nothing.
So does one that was measured for another matrix, in which its names mean something else.
"""

import sys
from pathlib import Path

from kvpeak.analysis.aggregate import gather, read_plan
from kvpeak.analysis.unavailable import unavailable_rows
from kvpeak.base.axes import AXES, Cell
from kvpeak.base.errors import UserError
from kvpeak.base.files import write_together
from kvpeak.base.made import FAILED
from kvpeak.base.untrusted import read_csv
from kvpeak.experiment.matrix import Matrix, load_matrix
from kvpeak.experiment.status import outcome_in


def arguments(parser) -> None:
    parser.add_argument(
        "--plan", type=Path, default=Path("results/plan.csv"), help="default: %(default)s"
    )
    parser.add_argument("--matrix", help="what the cells have to have been measured for")
    parser.add_argument(
        "--out", type=Path, default=Path("results"), help="the folder; default: %(default)s"
    )


def run(given) -> None:
    rows = [row for row in read_plan(given.plan) if outcome_in(Path(row["path"])) != FAILED]
    matrix = load_matrix(given.matrix) if given.matrix else None
    tables, measured, problems = gather(rows, lambda row: matrix and _request(matrix, row))
    for line in problems:
        print(line, file=sys.stderr)
    tables["summary.csv"] += unavailable_rows(read_csv(given.plan))
    write_together(given.out, tables)
    missing = len(rows) - measured
    more = f", {missing} missing" if missing else ""
    print(f"{measured} processes measured{more}", file=sys.stderr)


def _request(matrix: Matrix, row: dict) -> dict:
    """What the matrix asks of the cell in a row of the plan. Raises UserError if it has no such."""
    try:
        return matrix.request(Cell(*(row[axis] for axis in AXES), int(row["round"])))
    except KeyError as error:
        raise UserError(f"{matrix.file}: has no {error}, which {row['path']} names") from None
