"""Collect in one folder every package that an installation without a network needs: of this Python,
on this system.

The pinned packages of requirements/, those of the matrix's other commits, and the wheels that its
models come in.
"""

from pathlib import Path

from kvpeak.base.layout import MATRIX
from kvpeak.environments.wheels import collect
from kvpeak.experiment.matrix import load_matrix


def arguments(parser) -> None:
    parser.add_argument("--accel", choices=("cpu", "cuda12", "cuda13"), default="cpu")
    parser.add_argument("--matrix", type=Path, default=MATRIX, help="default: %(default)s")
    parser.add_argument("--out", type=Path, default=Path("wheels"), help="default: %(default)s")


def run(given) -> None:
    matrix = load_matrix(given.matrix)
    collect(matrix.commits, matrix.models, given.accel, given.out)
