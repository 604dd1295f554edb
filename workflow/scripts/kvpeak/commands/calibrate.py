"""Measure what an engine's environment can do at most on this machine: arithmetic, and moving
memory.

Takes a few seconds, once per machine and environment (kvpeak/live/calibration.py).
"""

import argparse
import json
import os
import sys
from pathlib import Path

from kvpeak.base.errors import UserError
from kvpeak.base.files import write_json
from kvpeak.base.program import Usage
from kvpeak.live.blas import load_blas
from kvpeak.protocol.programs import SCRIPTS

DTYPES = ("float32", "bfloat16", "float16")
LONGEST_S = 1800  # as the rule `calibration`


def measure(dtypes: list[str]) -> dict:
    """FLOP/s and bytes/s of each type, in this process's MLX."""
    served = load_blas()
    from kvpeak.live import calibration  # imports MLX, which the BLAS has to precede

    return calibration.measure(dtypes, served)


def calibrate(commit: str, python: str, dtypes: list[str]) -> dict:
    """Measure in a process of the environment's own interpreter. Raises UserError where that
    fails.
    """
    from kvpeak.system import machine  # an environment of an engine need not have what these import
    from kvpeak.system.lock import measuring_alone
    from kvpeak.system.nvml import chosen_gpu, open_gpu
    from kvpeak.system.private import temporary_folder
    from kvpeak.system.programs import OUR_ENGINES, engine_environment, run_program

    def say(text: str) -> None:
        print(f"calibrate {commit}: {text}", file=sys.stderr)

    with measuring_alone(f"calibration of {commit}", (), say, lambda: None):
        gpu = open_gpu(chosen_gpu(None, os.environ.get("CUDA_VISIBLE_DEVICES")))
        name = machine.state(gpu and gpu.state())["name"]
        command = [python, str(SCRIPTS / "calibrate.py"), "--measure", "--dtypes", *dtypes]
        own = engine_environment(*OUR_ENGINES) | {"TMPDIR": str(temporary_folder())}
        done = run_program(command, LONGEST_S, variables=own, capture=True)
    sys.stderr.write(done.stderr)
    if done.returncode:
        raise UserError(f"{commit}: exit code {done.returncode}; the lines above say why")
    return {"commit": commit, "machine": name} | json.loads(done.stdout)


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--commit", help="the environment's name")
    parser.add_argument(
        "--python", default=sys.executable, help="its interpreter; default: this one"
    )
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, default=list(DTYPES))
    parser.add_argument("--out", type=Path, help="where the JSON goes")
    parser.add_argument(
        "--measure", action="store_true", help="measure in this process and print the JSON"
    )


def run(given: argparse.Namespace) -> None:
    if given.measure:
        print(json.dumps(measure(given.dtypes)))
        return
    if not (given.commit and given.out):
        raise Usage("--commit and --out are needed; see calibrate --help")
    write_json(given.out, calibrate(given.commit, given.python, given.dtypes))
