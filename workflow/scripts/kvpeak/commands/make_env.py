"""Make the environment of one commit: exactly the packages that config/matrix.yaml gives it.

If the running environment has those versions, it is used as it is. Otherwise .kvpeak/envs/NAME/venv
is built from a lock with hashes (requirements.txt beside it). environment.json records what is
installed, with a hash each. A copy of it lies beside the environment and is written last, so that
an interrupted build is built again from nothing.
"""

import argparse
import json
from pathlib import Path

from kvpeak.environments.build import prepared


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--commit", required=True, help="the commit's name")
    parser.add_argument("--packages", type=json.loads, default={}, help="JSON: package → version")
    parser.add_argument(
        "--out", type=Path, required=True, help="environment.json in the commit's folder"
    )


def run(given: argparse.Namespace) -> None:
    given.out.unlink(missing_ok=True)
    prepared(given.commit, given.packages, given.out)
