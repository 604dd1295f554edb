"""One cell at a time: the lock of this machine, and of each GPU where cells name theirs.

It is the kernel's (flock), so it ends with the processes that hold it: there is no stale lock.
"""

import contextlib
import fcntl
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from kvpeak.base.errors import UserError

POLL_S = 0.1


@contextlib.contextmanager
def measuring_alone(
    cell: str, gpus: Sequence[int], say: Callable[[str], None], check: Callable[[], None]
) -> Iterator[int | None]:
    """Hold the machine, or one GPU of it, while the block runs; wait for other runners first.

    Without `gpus` the cell has the machine for itself. Cells that name GPUs share the machine, and each
    has for itself the first of its GPUs that is free, which is yielded. `say` gets one line if there is
    somebody to wait for; `check` is called while waiting and may raise to give up.
    """
    with contextlib.ExitStack() as held:

        def lock(files: list[Path], mode: int) -> int:
            return held.enter_context(_locked(files, mode, cell, say, check))

        lock([lock_file()], fcntl.LOCK_SH if gpus else fcntl.LOCK_EX)
        if not gpus:
            yield None
        else:
            yield gpus[lock([lock_file(gpu) for gpu in gpus], fcntl.LOCK_EX)]


def hold_project(file: Path) -> None:
    """Hold a project until this process ends. Raises UserError, which names the process that holds it now."""
    file.parent.mkdir(exist_ok=True)
    descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    if not _try(descriptor, fcntl.LOCK_EX):
        raise UserError(
            f"another run of this project is under way ({_holder(descriptor)}); wait for it, or stop it"
        )
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, f"process {os.getpid()}".encode(), 0)


def lock_file(gpu: int | None = None) -> Path:
    """The file of this user's lock of the machine, or of one GPU."""
    name = f"kvpeak-{os.getuid()}" + (f"-gpu-{gpu}" if gpu is not None else "")
    return Path(tempfile.gettempdir(), f"{name}.lock")


@contextlib.contextmanager
def _locked(files: list[Path], mode: int, cell: str, say, check) -> Iterator[int]:
    """Hold one of the files' locks, whichever is free first; yields its place in the list."""
    with contextlib.ExitStack() as opened:
        descriptors = []
        for file in files:
            flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
            descriptors.append(os.open(file, flags, 0o600))
            opened.callback(os.close, descriptors[-1])
        waiting = False
        while (got := _first(descriptors, mode)) is None:
            if not waiting:
                say(f"waiting for {_holder(descriptors[0])}, which has the lock {files[0]}")
                waiting = True
            check()
            time.sleep(POLL_S)
        os.ftruncate(descriptors[got], 0)
        os.pwrite(descriptors[got], f"process {os.getpid()}, cell {cell}".encode(), 0)
        yield got


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
    return text if text.isprintable() and text else "another process"
