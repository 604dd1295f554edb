"""Find the versions and hashes of one commit's environment, and record them.

What is found is kept below .kvpeak/resolutions/, and is not asked again.
"""

import argparse
import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

from kvpeak.base.text import OF_PROGRAMS
from kvpeak.environments.resolve import known, resolved
from kvpeak.protocol.programs import SCRIPTS
from kvpeak.system.host import missing_packages
from kvpeak.system.programs import last_line

AT_ONCE = 4


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--commit", required=True, help="the commit's name")
    parser.add_argument(
        "--packages", type=json.loads, required=True, help="JSON: package → version"
    )


def run(given: argparse.Namespace) -> None:
    resolved(given.commit, given.packages)


def resolve_all(entries: dict[str, dict[str, str]]) -> None:
    """Find and record the versions of every commit that needs an environment of its own.

    entries: commit → packages. What was found already is not asked again. Without an index one line
    on standard error says so, and the commits are left for when they are built.
    """
    missing = {
        commit: packages
        for commit, packages in entries.items()
        if missing_packages(packages) and not _found(commit, packages)
    }
    if not missing:
        return
    print(f"resolving the environments of {', '.join(missing)}", file=sys.stderr)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        ended = pool.map(_resolve, missing.keys(), missing.values())
    for commit, done in zip(missing, ended, strict=True):
        if done.returncode:
            said = last_line(done.stderr).removeprefix("resolve_env: ")
            print(f"commit {commit}: not resolved yet: {said}", file=sys.stderr)


def _resolve(commit: str, packages: dict[str, str]) -> subprocess.CompletedProcess:
    """Run this command for one commit: a process of its own, which may end what a build left."""
    command = [sys.executable, str(SCRIPTS / "resolve_env.py"), "--commit", commit]
    command += ["--packages", json.dumps(packages)]
    return subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, **OF_PROGRAMS, check=False
    )


def _found(commit: str, packages: dict[str, str]) -> bool:
    resolution = known(commit, packages)
    return resolution is not None and not resolution.unavailable
