"""The environment of one commit: made from its lock, and recorded with the hash of everything in
it.
"""

import hashlib
import shutil
import sys
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

from kvpeak.base import layout
from kvpeak.base.errors import Unavailable, UserError
from kvpeak.base.files import write_json, write_text
from kvpeak.base.layout import environment_python
from kvpeak.base.made import forget_import, is_imported
from kvpeak.base.untrusted import read_object
from kvpeak.environments.resolve import PATIENCE, Resolution, one_line, resolved
from kvpeak.system.host import missing_packages
from kvpeak.system.installers import UV, address_options, installer_environment
from kvpeak.system.programs import run_program

INSTALL_S = 3000.0  # seconds for everything that is downloaded and built


def build(commit: str, resolution: Resolution) -> Path:
    """Build the commit's environment from nothing and return its interpreter. Raises Unavailable.

    It lies below .kvpeak/, not in results/, so that no interpreter of somebody else's results is
    run.
    """
    if resolution.unavailable:
        raise Unavailable(f"commit {commit}: {resolution.unavailable}")
    python = environment_python(commit)
    venv, lock = python.parents[1], python.parents[2] / "requirements.txt"
    shutil.rmtree(venv.parent, ignore_errors=True)
    write_text(lock, resolution.lock)
    venv.parent.chmod(0o700)  # everybody may hold the lock that uv makes in it
    _run(commit, [*UV, "venv", "--quiet", "--python", sys.executable, str(venv)])
    # what comes from a git revision has no hash; its commit is in the lock
    hashes = [] if " @ git+" in resolution.lock else ["--require-hashes"]
    install = ["pip", "install", "--python", str(python), "--no-deps", "--compile-bytecode"]
    with address_options(UV) as addresses:
        _run(commit, [*UV, *install, *hashes, *addresses, "-r", str(lock)])
    return python


def prepared(commit: str, packages: dict[str, str], out: Path | None = None) -> None:
    """Make the commit's environment and record it in `out`, unless that was done for these
    packages.

    If the running environment has them, it is used as it is. Raises Unavailable.
    """
    out = out or layout.environment_record(commit)
    here = layout.local_copy(layout.environment_record(commit))
    made = _is_of(out, packages) and not is_imported(out)
    if made and (not missing_packages(packages) or _is_of(here, packages)):
        return
    how, python = {}, None
    if missing_packages(packages):
        try:
            resolution = resolved(commit, packages)
        except Unavailable as error:
            raise error.within(f"commit {commit}") from None
        python = build(commit, resolution)
        how = {"resolved": resolution.how, "until": resolution.until}
    found = distributions(python)
    record = {"commit": commit, "packages": packages, "own": python is not None, **how}
    freeze = [f"{each['name']}=={each['version']}" for each in found]
    record |= {"freeze": freeze, "distributions": found}
    if python:
        write_json(here, record)
    write_json(out, record)
    forget_import(out)


def _is_of(record: Path, packages: dict[str, str]) -> bool:
    """Whether a record is there and is that of an environment of these packages."""
    try:
        return read_object(record).get("packages") == packages
    except (OSError, UserError):
        return False


def distributions(python: Path | None) -> list[dict[str, str]]:
    """name, version and sha256 of each distribution, sorted; python None: of the running
    environment.

    The hash is that of its RECORD, which lists the hash of every file that it installed; '' without
    one.
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
    """Of a RECORD's lines in order, without what differs from one place to the next: lines without
    a hash, and the programs in bin/, which begin with the interpreter's path.
    """
    if not record:
        return ""
    lines = (line for line in record.splitlines() if line.split(",")[1:2] != [""])
    kept = sorted(line for line in lines if not line.startswith("../"))
    return hashlib.sha256("\n".join(kept).encode()).hexdigest()


def _run(commit: str, command: list[str]) -> None:
    """Run one step, its output to standard error. Raises Unavailable if it fails."""
    variables = PATIENCE | installer_environment(UV)
    done = run_program(command, INSTALL_S, variables=variables, addresses=False)
    if done.returncode:
        raise Unavailable(
            f"commit {commit}: its environment cannot be made: {one_line(done.stderr)}; "
            f"check commits.{commit}.packages in the matrix"
        )
