"""Gather the cells: results/runs.csv (every run), processes.csv and summary.csv (one row per cell).

A cell whose files are damaged is named, has the outcome `unreadable`, and costs the others nothing.
"""

import sys
from pathlib import Path

from kvpeak.analysis.aggregate import gather, read_plan
from kvpeak.base.files import write_together


def arguments(parser) -> None:
    parser.add_argument(
        "--plan", type=Path, default=Path("results/plan.csv"), help="default: %(default)s"
    )
    parser.add_argument(
        "--out", type=Path, default=Path("results"), help="the folder; default: %(default)s"
    )


def run(given) -> None:
    rows = read_plan(given.plan)
    tables, measured, problems = gather(rows)
    for line in problems:
        print(line, file=sys.stderr)
    write_together(given.out, tables)
    missing = len(rows) - measured
    more = f", {missing} missing" if missing else ""
    print(f"{measured} processes measured{more}", file=sys.stderr)
