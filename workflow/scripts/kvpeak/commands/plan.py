"""Say which cells run here, why others do not, and what would start.

Nothing of the matrix is started, built or installed. Read the list before you run a matrix of
somebody else's.
"""

import argparse
import json
from pathlib import Path

from kvpeak.base.files import write_together
from kvpeak.experiment.matrix import load_matrix
from kvpeak.experiment.plan import executed, plan_csv, plan_summary, told


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--matrix", type=Path, default=Path("config/matrix.yaml"), help="default: %(default)s"
    )
    parser.add_argument(
        "--out", type=Path, help="the plan as CSV (default: only the summary is shown)"
    )
    parser.add_argument(
        "--request",
        metavar="CELL",
        help="print what the engine of one cell (its path below results/cells/) is asked, as JSON",
    )


def run(given: argparse.Namespace) -> None:
    matrix = load_matrix(given.matrix)
    if given.request:
        print(json.dumps(told(matrix, matrix.cell(given.request)), indent=1))
        return
    if given.out:
        write_together(given.out.parent, {given.out.name: plan_csv(matrix)})
    print(plan_summary(matrix))
    if brought := executed(matrix):
        print("It brings to be executed:", *brought, sep="\n  ")
    else:
        print("It brings no program and no package of its own.")
