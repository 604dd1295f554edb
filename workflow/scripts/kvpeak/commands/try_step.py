"""Run one preparing step and always leave its file: what it made, or in one line why it made
nothing.

For the workflow: a model, a prompt or an engine that cannot be had does not cost the others their
measurement. The step gets no terminal to ask on, and ends when its time is over.
"""

import argparse
import os
import signal
import subprocess
import sys
from pathlib import Path

from kvpeak.base.errors import Unavailable
from kvpeak.base.made import FAILED, UNAVAILABLE, say_why_not, why_not_made
from kvpeak.base.program import UNAVAILABLE as UNAVAILABLE_CODE
from kvpeak.system.programs import (
    NO_QUESTIONS,
    OUR_ENGINES,
    engine_environment,
    last_line,
    run_program,
)


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", type=Path, required=True, help="the file that the step makes")
    parser.add_argument(
        "--limit", type=float, required=True, metavar="SECONDS", help="the longest it may take"
    )
    parser.add_argument(
        "--needs",
        type=Path,
        action="append",
        default=[],
        metavar="FILE",
        help="what another step makes; if that made nothing, neither does this one",
    )
    parser.add_argument(
        "--as-engine",
        action="store_true",
        help="the step's interpreter is an engine's: it sees the variables that an engine sees",
    )
    parser.add_argument("step", nargs="+", help="after --: the step's command")


def run(given: argparse.Namespace) -> None:
    for need in given.needs:
        if why := why_not_made(need):
            say_why_not(given.out, why.outcome, why.reason)
            return
    variables = engine_environment(*OUR_ENGINES) if given.as_engine else os.environ | NO_QUESTIONS
    try:
        done = run_program(given.step, given.limit, variables=variables)
    except Unavailable as error:
        print(error, file=sys.stderr)
        say_why_not(given.out, UNAVAILABLE, f"not finished after {given.limit:g} s")
        return
    if done.returncode == 0 and given.out.exists():
        return
    outcome = UNAVAILABLE if done.returncode == UNAVAILABLE_CODE else FAILED
    say_why_not(given.out, outcome, _reason(done, given.step))


def _reason(done: subprocess.CompletedProcess, step: list[str]) -> str:
    """Why the step failed: its own last words, without its name."""
    code, said = done.returncode, last_line(done.stderr)
    if code < 0:
        how = f"killed by {_signal_name(-code)}"
        return f"{how}: {said}" if said else how
    for name in (Path(word).stem for word in step if word.endswith(".py")):
        said = said.removeprefix(f"{name}: ")
    return said or f"ended with exit code {code}"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
