"""The planned cells that cannot run here because something cannot be had: rows of the summary."""

import csv
import io

from kvpeak.base.axes import AXES
from kvpeak.base.columns import SUMMARY
from kvpeak.base.made import UNAVAILABLE


def unavailable_rows(plan: list[dict]) -> str:
    """Lines of summary.csv, one for each cell of the plan that is unavailable, with the reason."""
    cells = {
        tuple(row[axis] for axis in AXES): (row.get("reason") or "").removeprefix(
            f"{UNAVAILABLE}: "
        )
        for row in plan
        if (row.get("reason") or "").startswith(f"{UNAVAILABLE}: ")
    }
    out = io.StringIO()
    writer = csv.DictWriter(out, SUMMARY.names, lineterminator="\n")
    for names, reason in cells.items():
        said = {"rounds": 0, "runs": 0, "outcome": UNAVAILABLE, "detail": reason}
        writer.writerow(dict(zip(AXES, names, strict=True)) | said)
    return out.getvalue()
