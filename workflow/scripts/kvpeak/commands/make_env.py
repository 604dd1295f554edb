"""Make the environment of one commit: exactly the packages that config/matrix.yaml gives it.

If the running environment has those versions, it is used as it is. Otherwise results/envs/NAME/venv is built from a
lock with hashes (results/envs/NAME/requirements.txt). environment.json records what is installed, with a hash each, and
is written last, so that an interrupted build is built again from nothing.
"""

import argparse
import json
from pathlib import Path

from kvpeak.base.files import write_json
from kvpeak.environments.build import build, distributions
from kvpeak.environments.resolve import resolved
from kvpeak.system.host import missing_packages


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--commit", required=True, help="the commit's name")
    parser.add_argument("--packages", type=json.loads, default={}, help="JSON: package → version")
    parser.add_argument(
        "--out", type=Path, required=True, help="environment.json in the commit's folder"
    )


def run(given: argparse.Namespace) -> None:
    how = {}
    python = None
    if missing_packages(given.packages):
        resolution = resolved(given.commit, given.packages)
        python = build(given.out.parent, resolution)
        how = {"resolved": resolution.how, "until": resolution.until}
    found = distributions(python)
    write_json(
        given.out,
        {
            "commit": given.commit,
            "packages": given.packages,
            "own": python is not None,
            **how,
            "freeze": [f"{each['name']}=={each['version']}" for each in found],
            "distributions": found,
        },
    )
