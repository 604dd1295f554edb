"""The planned cells that cannot run here because something cannot be had: rows of the summary."""

from kvpeak.base.axes import AXES
from kvpeak.base.columns import SUMMARY
from kvpeak.base.made import UNAVAILABLE
from kvpeak.base.tables import csv_text


def unavailable_rows(plan: list[dict]) -> str:
    """Lines of summary.csv, one for each cell of the plan that is unavailable, with the reason."""
    cells = {
        tuple(row[axis] for axis in AXES): (row.get("reason") or "").removeprefix(
            f"{UNAVAILABLE}: "
        )
        for row in plan
        if (row.get("reason") or "").startswith(f"{UNAVAILABLE}: ")
    }
    said = {"rounds": 0, "runs": 0, "outcome": UNAVAILABLE}
    rows = (
        dict(zip(AXES, names, strict=True)) | said | {"detail": reason}
        for names, reason in cells.items()
    )
    return csv_text(SUMMARY.names, rows, header=False)
