"""Which versions and hashes an environment will have, found before anything is measured.

An entry names a few packages. The others keep the versions of requirements/runtime.txt if they can,
so that two entries differ in what they name. Old releases cannot: they take what there was in their
time, and so does an entry that names MLX alone. At last everything may be what the releases' own
constraints allow. An entry for which none of these has an answer is unavailable, with the
resolver's reason.
"""

import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

from kvpeak.base import layout
from kvpeak.base.errors import Unavailable, UserError
from kvpeak.base.files import write_json
from kvpeak.base.untrusted import read_object
from kvpeak.environments.releases import until
from kvpeak.environments.requirements import completed, constraints, mlx_backend, requirements
from kvpeak.system.host import installed_version
from kvpeak.system.installers import UV, address_lines, installer_environment
from kvpeak.system.programs import hosts_only, run_program

PINS = Path("requirements/runtime.txt")
PINNED, OF_ITS_TIME, NEWEST = "as pinned", "of its time", "as its constraints allow"
NO_NETWORK = re.compile(
    r"Failed to fetch|error sending request|network was disabled|Network connectivity|dns error"
    r"|Request failed|timed out",
    re.IGNORECASE,
)
MOST_SECONDS = 300
# A server that does not answer is given up soon; what the user has set counts.
PATIENCE = {"UV_HTTP_TIMEOUT": "20", "UV_HTTP_RETRIES": "1"}
LOCK_LINES = "lock_lines"


@dataclass(frozen=True)
class Resolution:
    """key: of what was asked, where. packages: the entry, completed. how: which of the three
    attempts. until: what came later was left out, None for nothing. lock: requirements with hashes,
    '' if there is none. unavailable: the resolver's reason, '' if there is a lock.
    """

    key: str
    packages: dict[str, str]
    how: str
    until: str | None
    lock: str
    unavailable: str


def resolve(packages: dict[str, str], pins: Path = PINS) -> Resolution:
    """Find versions and hashes for one entry. Raises UserError if the index cannot be reached."""
    backend, end = mlx_backend(), until(completed(packages))
    wanted = requirements(packages, backend)
    text = pins.read_text(encoding="utf-8") if pins.exists() else ""
    same = {"key": key_of(packages, pins), "packages": completed(packages)}
    said = ""
    attempts = [(OF_ITS_TIME, "", end)] if end else []
    if completed(packages) == packages:
        attempts.insert(0, (PINNED, constraints(text, packages), None))
    for how, limits, newest in (*attempts, (NEWEST, "", None)):
        lock, said = _compiled(wanted, limits, newest)
        if lock:
            lock += _blas_lock(packages, backend, lock)
            return Resolution(**same, how=how, until=newest, lock=lock, unavailable="")
    return Resolution(**same, how="", until=None, lock="", unavailable=said)


def key_of(packages: dict[str, str], pins: Path = PINS) -> str:
    """Twelve hexadecimal digits that differ when the entry, the pins, Python or the backend do."""
    pinned = pins.read_bytes() if pins.exists() else b""
    asked = [packages, sys.version, sys.platform, mlx_backend(), hashlib.sha256(pinned).hexdigest()]
    return hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()[:12]


def known(commit: str, packages: dict[str, str]) -> Resolution | None:
    """What was found for the commit, None if nothing, or something else was asked then."""
    try:
        record = read_object(layout.resolution(commit))
        lock = "".join(f"{line}\n" for line in record.pop(LOCK_LINES))
        found = Resolution(**record, lock=lock)
    except (OSError, UserError, TypeError, KeyError):
        return None
    return found if found.key == key_of(packages) else None


def resolved(commit: str, packages: dict[str, str]) -> Resolution:
    """What was found for the commit, or is found and recorded now. Raises Unavailable without an
    index.

    What was unavailable is tried again.
    """
    found = known(commit, packages)
    if found is None or found.unavailable:
        found = resolve(packages)
        keep(commit, found)
    return found


def keep(commit: str, found: Resolution) -> None:
    """Record what was found for the commit; the lock as lines, since a text is read as one line."""
    record = asdict(found)
    record[LOCK_LINES] = record.pop("lock").splitlines()
    write_json(layout.resolution(commit), record)


def _compiled(wanted: list[str], limits: str, newest: str | None) -> tuple[str, str]:
    """(lock, '') or ('', the resolver's reason in one line). Raises UserError without an index.

    A pre-release is taken where a release asks for that one, and nowhere else, unless there is no
    other way.
    """
    for more in ([], ["--prerelease", "allow"]):
        done = _uv_compile(
            wanted, limits, [*(["--exclude-newer", newest] if newest else []), *more]
        )
        if done.returncode == 0:
            return done.stdout, ""
        if os.environ.get("UV_OFFLINE") or os.environ.get("UV_NO_INDEX"):
            raise Unavailable(f"without a network: {one_line(done.stderr)}")
        if NO_NETWORK.search(done.stderr):
            raise Unavailable(f"the package index cannot be reached ({last_cause(done.stderr)})")
        if "prerelease" not in done.stderr.replace("-", "").lower():
            break
    return "", one_line(done.stderr)


def _uv_compile(wanted: list[str], limits: str, more: list[str]) -> subprocess.CompletedProcess:
    with tempfile.TemporaryDirectory() as folder:
        asked, limited = Path(folder, "wanted.txt"), Path(folder, "limits.txt")
        lines = [*address_lines(UV), *wanted, ""]
        asked.write_text("\n".join(lines), encoding="utf-8")
        limited.write_text(limits, encoding="utf-8")
        command = [
            *(*UV, "pip", "compile", str(asked), "-c", str(limited)),
            *("--quiet", "--no-header", "--no-annotate", "--generate-hashes"),
            *("--python", sys.executable, *more),
        ]
        variables = PATIENCE | installer_environment(UV)
        return run_program(command, MOST_SECONDS, variables=variables, capture=True)


def _blas_lock(packages: dict[str, str], backend: str | None, lock: str) -> str:
    """The line of SciPy, which nobody imports: it brings the OpenBLAS that serves MLX on a CPU."""
    scipy = installed_version("scipy")
    if "mlx" not in packages or backend != "cpu" or not scipy or "\nscipy==" in f"\n{lock}":
        return ""
    done = _uv_compile([f"scipy=={scipy}"], "", ["--no-deps"])
    return done.stdout if done.returncode == 0 else ""


def last_cause(said: str) -> str:
    """The last of the causes that uv lists, the host first where it names one."""
    said = hosts_only(said)
    address = re.search(r"https?://[^\s)]+", said, re.IGNORECASE)
    cause = " ".join(said.split("cause:")[-1].split())
    return f"{address[0]}: {cause}" if address else cause


def one_line(said: str) -> str:
    """The resolver's reason without its frame, at most 400 characters; of addresses the host."""
    cause = re.split(r"╰─▶|cause:", hosts_only(said), maxsplit=1)[-1]
    words = " ".join(cause.replace("│", " ").split())
    return words if len(words) <= 400 else words[:399] + "…"
