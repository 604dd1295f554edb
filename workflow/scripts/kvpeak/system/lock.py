"""One cell at a time: the lock of this machine, and of each GPU where cells name theirs.

It is the kernel's (flock), so it ends with the processes that hold it: there is no stale lock. The
files lie in a folder that only this user may write into, so that nobody else can hold or prepare
them.
"""

import contextlib
import fcntl
import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from kvpeak.base.errors import UserError
from kvpeak.base.text import plain
from kvpeak.system.private import lock_folders, private_folder

POLL_S = 0.1
MACHINE = "machine.lock"


@contextlib.contextmanager
def measuring_alone(
    cell: str, gpus: Sequence[int], say: Callable[[str], None], check: Callable[[], None]
) -> Iterator[int | None]:
    """Hold the machine, or one GPU of it, while the block runs; wait for other runners first.

    Without `gpus` the cell has the machine for itself. Cells that name GPUs share the machine, and
    each has for itself the first of its GPUs that is free, which is yielded. `say` gets one line if
    there is somebody to wait for; `check` is called while waiting and may raise to give up.
    """
    with contextlib.ExitStack() as held:

        def lock(files: list[Path], mode: int) -> int:
            return held.enter_context(_locked(files, mode, cell, say, check))

        first, *others = folders = lock_folders()
        for folder in folders:
            lock([folder / MACHINE], fcntl.LOCK_SH if gpus else fcntl.LOCK_EX)
        if not gpus:
            yield None
            return
        gpu = gpus[lock([first / _name(gpu) for gpu in gpus], fcntl.LOCK_EX)]
        for folder in others:
            lock([folder / _name(gpu)], fcntl.LOCK_EX)
        yield gpu


def hold_project(file: Path) -> None:
    """Hold a project until this process ends. Raises UserError, which names the process that holds
    it now.
    """
    file.parent.mkdir(exist_ok=True)
    descriptor = open_lock(file)
    if not _try(descriptor, fcntl.LOCK_EX):
        raise UserError(
            f"another run of this project is under way ({_holder(descriptor)}); wait for it, or "
            "stop it"
        )
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, f"process {os.getpid()}".encode(), 0)


def open_lock(file: Path) -> int:
    """A descriptor of a lock's file, which nobody else may open: a lock needs only to be read."""
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(file, flags, 0o600)
    os.fchmod(descriptor, 0o600)
    return descriptor


def lock_file() -> Path:
    """The file of this user's lock of the machine, in the first folder that is private. Raises
    UserError where none is.
    """
    return private_folder() / MACHINE


def _name(gpu: int) -> str:
    return f"gpu-{gpu}.lock"


@contextlib.contextmanager
def _locked(files: list[Path], mode: int, cell: str, say, check) -> Iterator[int]:
    """Hold one of the files' locks, whichever is free first; yields its place in the list."""
    waiting = False
    while True:
        with contextlib.ExitStack() as opened:
            descriptors = [_open(file, opened) for file in files]
            got = _first(descriptors, mode)
            if got is not None and _still_there(descriptors[got], files[got]):
                os.ftruncate(descriptors[got], 0)
                os.pwrite(descriptors[got], f"process {os.getpid()}, cell {cell}".encode(), 0)
                yield got
                return
            if not waiting:
                say(f"waiting for {_holder(descriptors[0])}, which has the lock {files[0]}")
                waiting = True
        check()
        time.sleep(POLL_S)


def _open(file: Path, opened: contextlib.ExitStack) -> int:
    """A descriptor of a lock's file, which is closed with `opened`."""
    descriptor = open_lock(file)
    opened.callback(os.close, descriptor)
    return descriptor


def _still_there(descriptor: int, file: Path) -> bool:
    """Whether the locked file is still the one of that name: somebody may have removed it in
    between.
    """
    try:
        return os.path.samestat(os.fstat(descriptor), file.lstat())
    except FileNotFoundError:
        return False


def _first(descriptors: list[int], mode: int) -> int | None:
    """Lock the first that can be had now; its place, or None."""
    return next((n for n, descriptor in enumerate(descriptors) if _try(descriptor, mode)), None)


def _try(descriptor: int, mode: int) -> bool:
    try:
        fcntl.flock(descriptor, mode | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _holder(descriptor: int) -> str:
    """Who wrote into the lock file last: "process 123, cell …"."""
    text = os.pread(descriptor, 500, 0).decode(errors="replace")
    return plain(text) or "another process"
