"""List the cells without a measurement, with cause and log.

These are the cells that failed, and outcomes such as oom. With --rerun, results of these outcomes
are taken out of results/cells/, so that the next snakemake measures them again; what they said
stays in the logs.
"""

import argparse
import sys
from pathlib import Path

from kvpeak.base.layout import CELLS
from kvpeak.experiment.failed import ended, failed, rerun
from kvpeak.experiment.matrix import load_matrix
from kvpeak.experiment.status import NOT_MEASURED


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--matrix", type=Path, default=Path("config/matrix.yaml"), help="default: %(default)s"
    )
    parser.add_argument(
        "--rerun", type=_outcomes, metavar="OUTCOMES", help="e.g. oom,guard,timeout"
    )


def run(given: argparse.Namespace) -> None:
    matrix = load_matrix(given.matrix)
    if given.rerun:
        cells = rerun(matrix, given.rerun)
        for cell in cells:
            print(CELLS / cell.path)
        sys.stdout.flush()
        print(f"{len(cells)} cells will be measured again by: snakemake", file=sys.stderr)
        return
    cells = failed(matrix) + ended(matrix, NOT_MEASURED)
    for found in cells:
        print(f"{found.cell.path}: {found.cause}; log: {found.log}")
    sys.stdout.flush()
    print(f"{len(cells)} cells failed or were not measured to their end", file=sys.stderr)


def _outcomes(text: str) -> list[str]:
    names = text.split(",")
    for name in names:
        if name not in NOT_MEASURED:
            raise argparse.ArgumentTypeError(f"{name}; expected some of {','.join(NOT_MEASURED)}")
    return names
