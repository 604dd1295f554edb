"""What a preparing step leaves at its path: its record, or in one line why there is none.

A model, a prompt, an environment or a build that is not to be had must not cost the others their
measurement. So a step that Snakemake starts always leaves its file; if that says why nothing was
made, the steps after it pass the reason on, and the next invocation tries again.
"""

import hashlib
import os
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from kvpeak.base import layout
from kvpeak.base.errors import UserError
from kvpeak.base.files import sha256_of, write_json, write_text
from kvpeak.base.text import plain, without_password
from kvpeak.base.untrusted import open_regular, read_bytes, read_object

UNAVAILABLE = "unavailable"  # cannot be had here; no failure
FAILED = "failed"
UNREADABLE = "unreadable"  # of a process whose files cannot be read, or are another's
BY_HAND = "put there by hand, revision not checked"  # the source of a model that was not made here
_KEY = "not_made"
_HEAD = 64  # bytes; the file begins with the key
_LONGEST = 1000  # characters of a reason
_LARGEST = 1 << 16  # bytes
_SETTLED_S = 1  # a file that was changed later may change again within one tick of its clock


@dataclass(frozen=True)
class NotMade:
    """Why a step made nothing. outcome: UNAVAILABLE or FAILED."""

    outcome: str
    reason: str


def say_why_not(path: Path, outcome: str, reason: str) -> None:
    """Leave the reason where the record would be, also instead of what was made before. Raises
    OSError.
    """
    if path.name == layout.MODEL_RECORD:
        layout.local_model(path.parent).unlink(missing_ok=True)
    if path.is_relative_to(layout.PROMPTS):
        layout.local_prompt(path).unlink(missing_ok=True)
    said = {"outcome": outcome, "reason": plain(without_password(reason), _LONGEST)}
    write_json(path, {_KEY: said})


def why_not_made(path: Path) -> NotMade | None:
    """Why the step at `path` made nothing; None if it made something or has not run."""
    try:
        with open_regular(path) as file:
            head = file.read(_HEAD)
        if f'"{_KEY}"'.encode() not in head:
            return None
        said = read_object(path, _LARGEST)[_KEY]
        if said["outcome"] not in (UNAVAILABLE, FAILED):
            return None
        return NotMade(said["outcome"], plain(said["reason"], _LONGEST))
    except (OSError, UserError, KeyError, TypeError, AttributeError):
        return None


def note_made_here(record: Path) -> None:
    """Remember that a step of this project wrote this record. Raises OSError.

    A record lies beside what it describes and may come from somebody else with it. What is
    remembered lies below .kvpeak/ and is known by the record's own bytes, so that a folder may be
    moved.
    """
    noted = _noted(record.read_bytes())
    noted.parent.mkdir(parents=True, exist_ok=True)
    noted.touch()


def made_here(record: Path) -> bool:
    """Whether a step of this project wrote the record that lies at this path."""
    try:
        return _noted(read_bytes(record)).is_file()
    except (OSError, UserError):
        return False


def is_own_model(record: Path) -> bool:
    """Whether a model's record was written here, and for the folder that it lies in."""
    try:
        return made_here(record) and read_object(record).get("name") == record.parent.name
    except (OSError, UserError):
        return False


def note_import(record: bytes) -> None:
    """Remember that a record came from somebody else, and says nothing of this machine. Raises
    OSError.
    """
    layout.IMPORTED.mkdir(parents=True, exist_ok=True)
    _noted(record, layout.IMPORTED).touch()


def forget_import(record: Path) -> None:
    """A step of this project has just written the record, be it the same. Raises OSError."""
    _noted(record.read_bytes(), layout.IMPORTED).unlink(missing_ok=True)


def is_imported(record: Path) -> bool:
    """Whether the record that lies at this path came from somebody else."""
    try:
        return _noted(read_bytes(record), layout.IMPORTED).is_file()
    except (OSError, UserError):
        return False


def hashed_here(path: Path, sha256: str) -> bool:
    """Whether a file had this hash when it was read here, and has not changed since. Raises
    OSError.
    """
    return _hashed(path, sha256).is_file()


def hash_here(path: Path) -> str:
    """A file's SHA-256, which is remembered below .kvpeak/ if a model was made here. Raises what
    sha256_of does.
    """
    before = path.stat()
    found = sha256_of(path)
    if time.time() - max(before.st_mtime, before.st_ctime) > _SETTLED_S and layout.MADE.is_dir():
        with suppress(OSError):  # it is hashed again, then
            _hashed(path, found, before).touch()
    return found


def _noted(record: bytes, folder: Path = layout.MADE) -> Path:
    return folder / hashlib.sha256(record).hexdigest()


def _hashed(path: Path, sha256: str, found: os.stat_result | None = None) -> Path:
    """A file put in another's place has another inode, or another time of change, which no archive
    can set.
    """
    found = found or path.stat()
    times = f"{found.st_mtime_ns} {found.st_ctime_ns}"
    return _noted(f"{sha256} {found.st_size} {found.st_ino} {times}".encode())


def write_copy(path: Path, said: dict, of: Path) -> None:
    """Write what the record `of` says once more, with its time: Snakemake sees nothing new. Raises
    UserError.
    """
    changed = of.stat().st_mtime_ns
    try:
        write_json(path, said)
        os.utime(path, ns=(changed, changed))
    except OSError as error:
        raise UserError(f"{error.filename or path}: {error.strerror}") from None


def tried_again(path: Path, renew: bool) -> list[str]:
    """What the step at `path` takes as an input so that it is tried again: nothing, or one file.

    With `renew` the file is made newer than what the step left, with another content: Snakemake
    does not repeat a step for a small file that is the same. It stays, because Snakemake repeats a
    step whose inputs have become fewer.
    """
    file = layout.AGAIN / path
    if renew:
        # A new file: the old one may be another's second name.
        write_text(file, f"{time.time_ns()}\n")
    return [str(file)] if file.exists() else []
