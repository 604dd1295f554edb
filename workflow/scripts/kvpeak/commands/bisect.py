"""Find the release at which a peak changed.

    kvpeak bisect --matrix config/releases/matrix.yaml
        --good mlx-0.26.5 --bad mlx-0.32.4
        --cell qwen2-tiny/alice-512/cat/none/laboratory

The two ends are commits of the matrix. They differ in one package, whose releases between them are
tried, or they are two revisions of one repository (engine command), whose commits between them are.
Each is measured in one process, the middle one first. The ends are measured too, unless --above
says which peak is a bad one.

The same command again goes on where it was stopped: what was measured is kept in results/bisect/.
"""

import argparse
import re
from pathlib import Path

from kvpeak.base.axes import AXES, ROUND, Cell
from kvpeak.base.errors import UserError
from kvpeak.base.numbers import MIB, MOST_SIZE
from kvpeak.bisection.candidates import candidates_of
from kvpeak.bisection.measured import Search
from kvpeak.commands.plan import wrong_prompt
from kvpeak.experiment.matrix import load_matrix


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--good", required=True, metavar="COMMIT", help="without the change")
    parser.add_argument("--bad", required=True, metavar="COMMIT", help="with the change")
    parser.add_argument(
        "--cell",
        required=True,
        help="MODEL/PROMPT/KV_CACHE/CAP/VARIANT, or a cell's path, whose commit does not matter",
    )
    parser.add_argument(
        "--above", type=_peak, metavar="MIB", help="a larger peak is bad; the ends are not measured"
    )
    parser.add_argument(
        "--matrix", type=Path, default=Path("config/matrix.yaml"), help="default: %(default)s"
    )


def _peak(text: str) -> float:
    try:
        peak = float(text)
    except ValueError:
        peak = 0.0
    if not 0 < peak * MIB <= MOST_SIZE:
        raise argparse.ArgumentTypeError(f"{text:.80}: expected MiB, more than 0 and below 2^43")
    return peak


def run(given: argparse.Namespace) -> None:
    matrix = load_matrix(given.matrix)
    candidates = candidates_of(matrix, given.good, given.bad)
    names = names_of(given.cell)
    search = Search(matrix, names, candidates, given.above)
    if wrong := wrong_prompt(matrix, Cell(given.good, *names)):  # one prompt for all releases
        raise UserError(wrong)
    print(f"{len(candidates.names)} candidates; {search.folder}", flush=True)
    for line in search.run():
        print(line, flush=True)


def names_of(cell: str) -> tuple[str, ...]:
    """The names on every axis but the commit. Raises UserError."""
    parts = [*Path(cell).parts]
    if len(parts) > len(AXES) and re.fullmatch(ROUND, parts[-1]):
        parts.pop()
    if len(parts) < len(AXES) - 1:
        raise UserError(f"--cell: {cell}; expected MODEL/PROMPT/KV_CACHE/CAP/VARIANT")
    return tuple(parts[-(len(AXES) - 1) :])
