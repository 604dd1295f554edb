"""Gather the cells: results/runs.csv (every run), processes.csv and summary.csv (one row per cell).

A cell whose files are damaged is named, has the outcome `unreadable`, and costs the others nothing.
"""

import sys
from pathlib import Path

from kvpeak.analysis.aggregate import gather, read_plan
from kvpeak.analysis.unavailable import unavailable_rows
from kvpeak.base.files import write_together
from kvpeak.base.made import FAILED
from kvpeak.base.untrusted import read_csv
from kvpeak.experiment.status import outcome_in


def arguments(parser) -> None:
    parser.add_argument(
        "--plan", type=Path, default=Path("results/plan.csv"), help="default: %(default)s"
    )
    parser.add_argument(
        "--out", type=Path, default=Path("results"), help="the folder; default: %(default)s"
    )


def run(given) -> None:
    rows = [row for row in read_plan(given.plan) if outcome_in(Path(row["path"])) != FAILED]
    tables, measured, problems = gather(rows)
    for line in problems:
        print(line, file=sys.stderr)
    tables["summary.csv"] += unavailable_rows(read_csv(given.plan))
    write_together(given.out, tables)
    missing = len(rows) - measured
    more = f", {missing} missing" if missing else ""
    print(f"{measured} processes measured{more}", file=sys.stderr)
