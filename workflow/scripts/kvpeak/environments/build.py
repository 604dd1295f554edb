"""The environment of one commit: made from its lock, and recorded with the hash of everything in it."""

import hashlib
import json
import shutil
import subprocess
import sys
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

from kvpeak.base import layout
from kvpeak.base.errors import UserError
from kvpeak.base.files import write_json
from kvpeak.environments.resolve import Resolution, resolved
from kvpeak.system.host import missing_packages


def build(folder: Path, resolution: Resolution) -> Path:
    """Build folder/venv from nothing and return its interpreter. Raises UserError."""
    if resolution.unavailable:
        raise UserError(f"commit {folder.name}: unavailable: {resolution.unavailable}")
    shutil.rmtree(folder / "venv", ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)
    lock = folder / "requirements.txt"
    lock.write_text(resolution.lock, encoding="utf-8")
    python = folder / "venv/bin/python"
    uv = [sys.executable, "-m", "uv"]
    _run(folder.name, [*uv, "venv", "--python", sys.executable, str(folder / "venv")])
    # what comes from a git revision has no hash; its commit is in the lock
    hashes = [] if " @ git+" in resolution.lock else ["--require-hashes"]
    install = ["pip", "install", "--python", str(python), "--no-deps", "--compile-bytecode"]
    _run(folder.name, [*uv, *install, *hashes, "-r", str(lock)])
    return python


def prepared(commit: str, packages: dict[str, str], out: Path | None = None) -> None:
    """Make the commit's environment and record it in `out`, unless that was done for these packages.

    If the running environment has them, it is used as it is. Raises UserError.
    """
    out = out or layout.environment_record(commit)
    if out.exists() and json.loads(out.read_text(encoding="utf-8")).get("packages") == packages:
        return
    how, python = {}, None
    if missing_packages(packages):
        resolution = resolved(commit, packages)
        python = build(out.parent, resolution)
        how = {"resolved": resolution.how, "until": resolution.until}
    found = distributions(python)
    record = {"commit": commit, "packages": packages, "own": python is not None, **how}
    freeze = [f"{each['name']}=={each['version']}" for each in found]
    write_json(out, record | {"freeze": freeze, "distributions": found})


def distributions(python: Path | None) -> list[dict[str, str]]:
    """name, version and sha256 of each distribution, sorted; python None: of the running environment.

    The hash is that of its RECORD, which lists the hash of every file that it installed; '' without one.
    """
    if python is None:
        found: Iterable = metadata.distributions()
    else:
        sites = [str(site) for site in (python.parents[1] / "lib").glob("python*/site-packages")]
        found = metadata.distributions(path=sites)
    rows = {
        (each.metadata["Name"], each.version): _digest(each.read_text("RECORD")) for each in found
    }
    return [
        {"name": name, "version": version, "sha256": digest}
        for (name, version), digest in sorted(rows.items(), key=lambda row: row[0][0].lower())
    ]


def _digest(record: str | None) -> str:
    """Of a RECORD's lines in order, without what differs from one place to the next: lines without a hash,
    and the programs in bin/, which begin with the interpreter's path."""
    if not record:
        return ""
    lines = (line for line in record.splitlines() if line.split(",")[1:2] != [""])
    kept = sorted(line for line in lines if not line.startswith("../"))
    return hashlib.sha256("\n".join(kept).encode()).hexdigest()


def _run(commit: str, command: list[str]) -> None:
    """Run one step, its output to standard error. Raises UserError if it fails."""
    done = subprocess.run(command, stdout=sys.stderr)
    if done.returncode:
        raise UserError(
            f"commit {commit}: its environment could not be built: {' '.join(command[2:5])} … ended with "
            f"{done.returncode}; the lines above say why. Check commits.{commit}.packages in the matrix"
        )
