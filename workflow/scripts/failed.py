"""List the cells without a measurement, with cause and log: what failed, and outcomes such as oom.

With --rerun, results of these outcomes are taken out of results/cells/, so that the next snakemake measures them
again; what they said stays in the logs.
"""

import argparse
import sys
from collections.abc import Iterable
from pathlib import Path

from kvpeak.base.axes import Cell
from kvpeak.base.errors import UserError
from kvpeak.base.layout import CELLS
from kvpeak.experiment.matrix import Matrix, load_matrix
from kvpeak.experiment.status import (
    NOT_MEASURED,
    Missing,
    forget,
    missing_cells,
    outcome_of,
    read_record,
)


def failed(matrix: Matrix) -> list[Missing]:
    """The cells that were started, or waited for something that failed, and have no result."""
    return [missing for missing in missing_cells(matrix) if missing.log]


def ended(matrix: Matrix, outcomes: Iterable[str]) -> list[Missing]:
    """The cells whose result is one of the outcomes."""
    found = []
    for cell in matrix.cells_here:
        if (outcome := outcome_of(cell)) in outcomes:
            record = read_record(cell)
            log = Path(record["log"]) if record["log"] else CELLS / cell.path / "cell.json"
            found.append(Missing(cell, f"{outcome}: {record['detail']}", log))
    return found


def rerun(matrix: Matrix, outcomes: list[str]) -> list[Cell]:
    """Take the results with these outcomes away, and those that were skipped, which is decided anew."""
    cells = [found.cell for found in ended(matrix, {*outcomes, "skipped"})]
    for cell in cells:
        forget(cell)
    return cells


def _outcomes(text: str) -> list[str]:
    names = text.split(",")
    for name in names:
        if name not in NOT_MEASURED:
            raise argparse.ArgumentTypeError(f"{name}; expected some of {','.join(NOT_MEASURED)}")
    return names


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--matrix", default="config/matrix.yaml", help="default: %(default)s")
    parser.add_argument(
        "--rerun", type=_outcomes, metavar="OUTCOMES", help="e.g. oom,guard,timeout"
    )
    arguments = parser.parse_args()
    try:
        matrix = load_matrix(arguments.matrix)
        if arguments.rerun:
            cells = rerun(matrix, arguments.rerun)
            print("\n".join(str(CELLS / cell.path) for cell in cells))
            print(f"{len(cells)} cells will be measured again by: snakemake", file=sys.stderr)
            return 0
        cells = failed(matrix) + ended(matrix, NOT_MEASURED)
    except (UserError, OSError) as error:
        print(f"failed: {error}", file=sys.stderr)
        return 1
    for found in cells:
        print(f"{found.cell.path}: {found.cause}; log: {found.log}")
    print(f"{len(cells)} cells failed or were not measured to their end", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
