"""Write the plan: every cell of config/matrix.yaml, and whether and why it does not run here."""

import argparse
import csv
import io
import json
import sys
from collections import Counter
from pathlib import Path

from kvpeak.base.axes import AXES, Cell
from kvpeak.base.errors import UserError
from kvpeak.base.files import write_together
from kvpeak.experiment.matrix import Matrix, digest, load_matrix
from kvpeak.experiment.status import to_be_skipped, would_exceed

COLUMNS = (*AXES, "round", "runs_here", "reason", "path")


def plan_csv(matrix: Matrix) -> str:
    """The plan as CSV text, one row per cell and round."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for cell, reason in matrix.plan():
        here = "no" if reason else "yes"
        writer.writerow((*cell.axes, cell.round, here, reason, f"results/cells/{cell.path}"))
    return text.getvalue()


def plan_summary(matrix: Matrix) -> str:
    """The plan in a few lines for the terminal."""
    reasons = Counter(reason for _, reason in matrix.plan())
    here = reasons.pop("", 0)
    lines = [f"{matrix.file}: {here + reasons.total()} cells, {here} run here"]
    lines += [f"  {count} do not: {reason}" for reason, count in reasons.most_common()]
    skipped = Counter(to_be_skipped(matrix).values())
    lines += [f"  {count} skipped: {why}" for why, count in skipped.most_common()]
    return "\n".join(lines)


def told(matrix: Matrix, cell: Cell) -> dict:
    """What the runner has to know of a cell: `request`, its `digest`, why to `skip` it ('': it is to be
    measured), and its `position` in the order of measurement, 'k/n' (null: it does not run here)."""
    request, order = matrix.request(cell), matrix.cells_here
    position = f"{order.index(cell) + 1}/{len(order)}" if cell in order else None
    skip = would_exceed(matrix, cell)
    return {"request": request, "digest": digest(request), "skip": skip, "position": position}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--matrix", default="config/matrix.yaml", help="default: %(default)s")
    parser.add_argument(
        "--out", type=Path, help="the plan as CSV (default: only the summary is shown)"
    )
    parser.add_argument(
        "--request",
        metavar="CELL",
        help="print what the engine of one cell (its path below results/cells/) is asked, as JSON",
    )
    arguments = parser.parse_args()
    try:
        matrix = load_matrix(arguments.matrix)
        if arguments.request:
            print(json.dumps(told(matrix, matrix.cell(arguments.request)), indent=1))
            return 0
        if arguments.out:
            write_together(arguments.out.parent, {arguments.out.name: plan_csv(matrix)})
        print(plan_summary(matrix))
    except (UserError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
