"""Make the environment of one commit: exactly the packages that config/matrix.yaml gives it.

If the running environment has those versions, it is used as it is. Otherwise results/envs/NAME/venv is built; every
other package in it keeps the version that requirements/runtime.txt pins. environment.json records what is installed
and is written last, so an interrupted build is built again from nothing.
"""

import argparse
import json
import re
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path

from kvpeak.base.errors import UserError
from kvpeak.system.host import installed_version, missing_packages

PINS = Path("requirements/runtime.txt")


def requirement(package: str, version: str, backend: str | None) -> str:
    """What to install for one entry: a pinned version, or a git revision (git+URL@SHA).

    On Linux mlx takes its backend as an extra, e.g. mlx[cpu]; a build from source brings its own.
    """
    if version.startswith("git+"):
        return f"{package} @ {version}"
    extra = f"[{backend}]" if package == "mlx" and backend else ""
    return f"{package}{extra}=={version}"


def mlx_backend() -> str | None:
    """The extra of mlx that the running environment has: cpu, cuda12, cuda13, or None on macOS."""
    for backend in ("cpu", "cuda12", "cuda13"):
        if installed_version(f"mlx-{backend.replace('cuda', 'cuda-')}"):
            return backend
    return None


def constraints(pins: str, packages: dict[str, str]) -> str:
    """The pinned versions of everything that the entry does not choose, without hashes."""
    chosen = {name.lower().replace("_", "-") for name in packages}
    lines = []
    for line in pins.splitlines():
        found = re.match(r"([A-Za-z0-9._-]+)==([^ \\]+)( ; [^\\]*)?", line)
        if found and found[1] not in chosen and not found[1].startswith("mlx"):
            lines.append(f"{found[1]}=={found[2]}{(found[3] or '').rstrip()}")
    return "\n".join(lines) + "\n"


def build(folder: Path, packages: dict[str, str]) -> Path:
    """Build folder/venv from nothing and return its interpreter. Raises UserError."""
    shutil.rmtree(folder / "venv", ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)
    limits = folder / "constraints.txt"
    limits.write_text(constraints(PINS.read_text(encoding="utf-8"), packages), encoding="utf-8")
    python = folder / "venv/bin/python"
    wanted = [requirement(*item, mlx_backend()) for item in packages.items()]
    uv = [sys.executable, "-m", "uv"]
    run(folder.name, [*uv, "venv", "--python", sys.executable, str(folder / "venv")])
    install = [*uv, "pip", "install", "--python", str(python)]
    run(folder.name, [*install, "-c", str(limits), *wanted])
    scipy = installed_version("scipy")
    if mlx_backend() == "cpu" and scipy and "scipy" not in packages:
        # not imported: it brings the OpenBLAS that serves MLX (kvpeak/live/blas.py)
        run(folder.name, [*install, "--no-deps", f"scipy=={scipy}"])
    return python


def run(commit: str, command: list[str]) -> None:
    """Run one step of the build, its output to standard error. Raises UserError if it fails."""
    done = subprocess.run(command, stdout=sys.stderr)
    if done.returncode:
        raise UserError(
            f"commit {commit}: its environment could not be built: {' '.join(command[2:5])} … ended with "
            f"{done.returncode}; the lines above say why. Check commits.{commit}.packages in the matrix"
        )


def freeze(python: Path | str) -> list[str]:
    """Every distribution of an environment as name==version, sorted."""
    if str(python) == sys.executable:
        found = {f"{d.metadata['Name']}=={d.version}" for d in metadata.distributions()}
        return sorted(found, key=str.lower)
    command = [sys.executable, "-m", "uv", "pip", "freeze", "--python", str(python)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--commit", required=True, help="the commit's name")
    parser.add_argument("--packages", type=json.loads, default={}, help="JSON: package → version")
    parser.add_argument(
        "--out", type=Path, required=True, help="environment.json in the commit's folder"
    )
    arguments = parser.parse_args()
    try:
        if missing_packages(arguments.packages):
            python = build(arguments.out.parent, arguments.packages)
        else:
            python = sys.executable
        record = {
            "commit": arguments.commit,
            "packages": arguments.packages,
            "own": str(python) != sys.executable,
            "freeze": freeze(python),
        }
    except UserError as error:
        print(error, file=sys.stderr)
        return 1
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
