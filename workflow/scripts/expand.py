"""Write the plan: every cell of config/matrix.yaml, and whether and why it does not run here."""

import argparse
import json
import sys
from pathlib import Path

from kvpeak.base.errors import UserError
from kvpeak.base.files import write_together
from kvpeak.experiment.matrix import load_matrix
from kvpeak.experiment.plan import plan_csv, plan_summary, told


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
