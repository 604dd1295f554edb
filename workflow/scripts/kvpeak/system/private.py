"""A folder of this machine that only this user may write into: for locks, and for what an engine
compiles and loads again.
"""

import contextlib
import os
import stat
import tempfile
from pathlib import Path

from kvpeak.base.errors import UserError


def private_folder() -> Path:
    """The first of three places that is this user's alone; it is made where there is none.

    In a folder that all users share somebody else may have taken the name: then the next place
    serves. Raises UserError where none does.
    """
    places = _places()
    for folder in places:
        with contextlib.suppress(OSError):
            folder.parent.mkdir(parents=True, exist_ok=True)
            folder.mkdir(mode=0o700)
        if _is_ours(folder):
            return folder
    raise UserError(
        f"{' and '.join(map(str, places))}: none is a folder that only you may write into; set "
        "TMPDIR to a folder of your own"
    )


def lock_folders() -> list[Path]:
    """The private folders in each of which a lock has to be held, in their order.

    Somebody who takes the first place, and leaves it again, would else divide the runners among two
    locks. So all that are there count; and where the first is taken, all the others are made.
    """
    first, *others = _places()
    if private_folder() != first:
        for folder in others:
            with contextlib.suppress(OSError):
                folder.parent.mkdir(parents=True, exist_ok=True)
                folder.mkdir(mode=0o700)
    return [folder for folder in (first, *others) if _is_ours(folder)]


def temporary_folder() -> Path:
    """Where programs that we start put their temporary files, in the private folder."""
    folder = private_folder() / "tmp"
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder


def _places() -> list[Path]:
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    return [
        Path(tempfile.gettempdir(), f"kvpeak-{os.getuid()}"),
        *([Path(runtime, "kvpeak")] if runtime else []),
        Path.home() / ".cache/kvpeak/private",
    ]


def _is_ours(folder: Path) -> bool:
    try:
        found = folder.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o022
