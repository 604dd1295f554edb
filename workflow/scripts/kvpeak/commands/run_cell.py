"""Run one cell: start its engine, measure the process, write runs.csv, cell.json and memory.csv."""

import argparse
import json
import re
import signal
import subprocess
import sys
from pathlib import Path

from kvpeak.base.errors import UserError
from kvpeak.base.made import FAILED
from kvpeak.base.text import OF_PROGRAMS, plain
from kvpeak.protocol.programs import SCRIPTS
from kvpeak.protocol.request import load_request
from kvpeak.runner.attempt import Stopped
from kvpeak.runner.cell import CellFailed, leave_unmeasured, run_cell

LONGEST_PLAN = 900  # seconds: it cuts the prompt again, as the rule `prompt` may


class Signals:
    """Remembers the first signal that asks the runner to stop."""

    def __init__(self):
        self._received: int | None = None
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._receive)

    def check(self) -> None:
        """Raise Stopped if there was one."""
        if self._received:
            raise Stopped(f"stopped by {signal.Signals(self._received).name}")

    def _receive(self, number: int, _frame) -> None:
        self._received = self._received or number


def planned(out: Path, matrix: str, digest: str | None) -> dict:
    """What the matrix says of the cell of `out`: kvpeak.experiment.plan.told.

    The planner says it in a process of its own, because the runner stays small. Raises UserError if
    the matrix does not plan the cell, or no longer asks what the digest stands for.
    """
    program = str(SCRIPTS / "plan.py")
    command = [sys.executable, program, "--matrix", matrix, "--request", str(out)]
    try:
        done = subprocess.run(
            command, capture_output=True, **OF_PROGRAMS, check=False, timeout=LONGEST_PLAN
        )
    except subprocess.TimeoutExpired:
        raise UserError(f"plan.py took more than {LONGEST_PLAN} s for {out}") from None
    if done.returncode:
        said = done.stderr.strip().removeprefix("plan: ")
        raise UserError(said or f"plan.py ended with {done.returncode}")
    said = json.loads(done.stdout)
    if digest and said["digest"] != digest:
        raise UserError(
            f"{matrix} was changed after this run was planned and asks something else of {out}; "
            "run snakemake again"
        )
    return said


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("out", type=Path, help="the cell's folder: results/cells/…/r1")
    parser.add_argument("--matrix", default="config/matrix.yaml", help="default: %(default)s")
    parser.add_argument("--digest", help="of the request when it was planned; refuse another one")
    parser.add_argument(
        "--request",
        help="ask this instead of what the matrix asks: JSON (docs/protocol.md), or @FILE",
    )
    parser.add_argument(
        "--position", type=_position, metavar="K/N", help="with --request: this is cell K of N"
    )
    parser.add_argument(
        "--gpus",
        type=int,
        default=0,
        metavar="N",
        help="share the machine with other cells; take one of the NVIDIA GPUs 0 to N - 1 alone "
        "(default: the cell has the machine for itself)",
    )
    parser.add_argument(
        "--record-failure",
        action="store_true",
        help="write a failure as the cell's result, for the workflow, instead of exiting with 1",
    )


def run(given: argparse.Namespace) -> None:
    signals = Signals()
    if given.request:
        request = load_request(given.request)
        said = {"request": request, "skip": "", "not_made": None, "position": given.position}
    else:
        said = planned(given.out, given.matrix, given.digest)
    cell = (said["request"], given.out, said["position"])
    if said["not_made"]:
        leave_unmeasured(*cell, *said["not_made"])
    elif said["skip"]:
        leave_unmeasured(*cell, "skipped", said["skip"])
    else:
        _measure(cell, signals, given)


def _measure(cell: tuple, signals: Signals, given: argparse.Namespace) -> None:
    try:
        run_cell(*cell, signals.check, given.gpus)
    except CellFailed as error:
        if not (error.recorded and given.record_failure):
            raise
        leave_unmeasured(*cell, FAILED, error.cause, error.log)
        print(f"run_cell: {plain(str(error))}", file=sys.stderr)


def _position(text: str) -> str:
    if not re.fullmatch(r"[0-9]+/[0-9]+", text):
        raise argparse.ArgumentTypeError(f"{text}; expected K/N, such as 3/24")
    return text
