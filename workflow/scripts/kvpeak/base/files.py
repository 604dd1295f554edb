"""Writing: files that are there completely or not at all, and never through a link.

Every file of the project is written here. A temporary name is new, random and opened exclusively,
so that nobody who may write into the folder can have prepared it; renaming it replaces a link and
not what the link points to.
"""

import contextlib
import hashlib
import json
import os
import secrets
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from kvpeak.base.errors import UserError
from kvpeak.base.untrusted import Root, check_filled, open_regular, open_root

CLOCK_SLACK_S = 60.0  # by which clocks of two machines may differ


def write_text(path: Path, text: str) -> None:
    """Write one file and make its folder. Raises OSError."""
    write_together(path.parent, {path.name: text})


def sha256_of(path: Path) -> str:
    """The hexadecimal SHA-256 of a regular file's bytes. Raises OSError, and what check_filled
    does.
    """
    check_filled(path)
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_json(path: Path, data) -> None:
    """Write JSON, one key a line, and make the folder.

    Raises OSError, and ValueError for NaN and infinities.
    """
    write_text(path, json.dumps(data, indent=1, allow_nan=False) + "\n")


def write_together(folder: Path, texts: dict[str, str | bytes]) -> None:
    """Write the files of `texts` (name → content) into `folder`; the last name is the marker.
    Text is written as UTF-8.

    All are on the disk under temporary names before the first takes its own, and the old marker
    goes before the others change: whoever finds the marker finds files that belong together. Raises
    OSError, and ValueError for text that UTF-8 cannot hold; if that happens while writing, the old
    files are as they were and no temporary one is left.
    """
    folder.mkdir(parents=True, exist_ok=True)
    temporary = {name: folder / f".{name}.{secrets.token_hex(8)}.tmp" for name in texts}
    try:
        for name, text in texts.items():
            _write_through(temporary[name], text)
        if len(texts) > 1:
            (folder / [*texts][-1]).unlink(missing_ok=True)
        for name, file in temporary.items():
            file.replace(folder / name)
        _sync_folder(folder)
    except (OSError, ValueError):
        for file in temporary.values():
            with contextlib.suppress(OSError):
                file.unlink(missing_ok=True)
        raise


def inside(root: Path, name: str | Path) -> Path:
    """The path of `name` below `root`, resolved. Raises UserError if it leads out of it, by `..` or
    a link.
    """
    try:
        path = (root / name).resolve()
    except (OSError, RuntimeError, ValueError):  # links in a circle, a zero byte
        raise UserError(f"{root}: {str(name)!r:.200}: expected a path inside it") from None
    if not path.is_relative_to(root.resolve()):
        raise UserError(f"{name}: leads out of {root}; expected a path inside it")
    return path


@contextlib.contextmanager
def in_its_folder(path: Path) -> Iterator[tuple[Path, Root]]:
    """A file, which may be a link inside its folder, and that folder, open, by its name as given.
    Raises what inside() and open_root() do.
    """
    folder = path.parent.resolve()
    file = path.parent / inside(path.parent, path.name).relative_to(folder)
    with open_root(folder) as opened:
        yield file, Root(path.parent, opened.descriptor)


def unlinked(root: Path, name: str | Path) -> Path:
    """The path of `name` below `root`, no part of which is a link. Raises UserError: through a link
    inside it one cell would be read and written in the place of another.
    """
    if inside(root, name) != root.resolve() / name:
        raise UserError(f"{root / name}: a link is in this path; expected folders; remove the link")
    return root / name


def check_time(path: Path, changed_s: float | None = None) -> None:
    """Raise UserError if a file, or a link to it, was last changed in the future: what is made of
    it would be older than it, so that Snakemake makes it again and again, and throws it away.

    changed_s: seconds of the clock, if they are known already. Raises OSError.
    """
    if changed_s is None:
        changed_s = max(path.stat().st_mtime, path.lstat().st_mtime)
    if late_s := is_late(changed_s):
        touch = "touch -h" if path.is_symlink() else "touch"
        raise UserError(
            f"{path}: was changed {late_s:,.0f} s after now; {touch} it, or set the clock"
        )


def is_late(changed_s: float) -> float:
    """How many seconds after now something was changed; 0 where clocks may differ by so much."""
    late_s = changed_s - time.time()
    return late_s if late_s > CLOCK_SLACK_S else 0.0


def check_contents(root: Path, look_at: Callable[[Path, float], None] = check_time) -> None:
    """Raise UserError, one line, for the first thing below `root` that is not a regular file, a
    folder that can be listed, or a link to a file inside it.

    A folder that somebody handed over may hold a link through which is read or written elsewhere,
    and a pipe or a device on which a program would wait. `root` itself may be a link. `look_at`
    gets each path and when it was changed, a link itself and not what it leads to.
    """
    inner, waiting = root.resolve(), [str(root)]
    while waiting:
        for entry in listed(waiting.pop()):
            look_at(Path(entry.path), entry.stat(follow_symlinks=False).st_mtime)
            if entry.is_dir(follow_symlinks=False):
                waiting.append(entry.path)
            elif entry.is_symlink():
                _check_link(Path(entry.path), root, inner)
            elif not entry.is_file(follow_symlinks=False):
                raise UserError(
                    f"{entry.path}: a pipe, a socket or a device; expected a file; remove it"
                )


def listed(folder: str | Path) -> list[os.DirEntry]:
    """What is in a folder; nothing if it is not there. One that cannot be listed may be entered all
    the same, by who knows a name in it: that is a UserError.
    """
    try:
        with os.scandir(folder) as entries:
            return [*entries]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise UserError(
            f"{folder}: {error.strerror}; expected a folder that can be listed; chmod u+rwx it, or "
            "remove it"
        ) from None


def _check_link(link: Path, root: Path, inner: Path) -> None:
    try:
        target = link.resolve(strict=True)
    except (OSError, RuntimeError):  # RuntimeError: a circle
        raise UserError(f"{link}: a link to nothing; remove it") from None
    if not target.is_relative_to(inner):
        raise UserError(
            f"{link}: a link that leads out of {root}; remove it, or put what it leads to there"
        )
    if target.is_dir():
        raise UserError(f"{link}: a link to a folder; expected the folder itself; remove the link")


def _write_through(file: Path, text: str | bytes) -> None:
    content = text.encode() if isinstance(text, str) else text
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    try:
        with os.fdopen(os.open(file, flags, 0o666), "wb") as opened:
            opened.write(content)
            opened.flush()
            os.fsync(opened.fileno())
    except OSError as error:
        error.filename = error.filename or str(file)
        raise


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
