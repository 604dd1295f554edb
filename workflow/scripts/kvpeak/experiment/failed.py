"""The cells without a measurement: what failed, and outcomes such as oom."""

from collections.abc import Iterable

from kvpeak.base.axes import Cell
from kvpeak.base.layout import CELLS
from kvpeak.experiment.matrix import Matrix
from kvpeak.experiment.status import Missing, forget, missing_cells, outcome_of, recorded


def failed(matrix: Matrix) -> list[Missing]:
    """The cells that were started, or waited for something that failed, and have no result."""
    return [missing for missing in missing_cells(matrix) if missing.log]


def ended(matrix: Matrix, outcomes: Iterable[str]) -> list[Missing]:
    """The cells whose result is one of the outcomes."""
    found = []
    for cell in matrix.cells_here:
        if (outcome := outcome_of(cell)) in outcomes:
            cause, log = recorded(CELLS / cell.path)
            found.append(Missing(cell, f"{outcome}: {cause}", log))
    return found


def rerun(matrix: Matrix, outcomes: list[str]) -> list[Cell]:
    """Take the results with these outcomes away, and those that were skipped, which is decided
    anew.
    """
    cells = [found.cell for found in ended(matrix, {*outcomes, "skipped"})]
    for cell in cells:
        forget(cell)
    return cells
