"""One cell at a time: the lock of this machine, and of each GPU where cells name theirs.

It is the kernel's (flock), so it ends with the processes that hold it: there is no stale lock.
"""

import contextlib
import fcntl
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from kvpeak.errors import UserError

POLL_S = 0.1


@contextlib.contextmanager
def measuring_alone(
    cell: str, gpu: int | None, say: Callable[[str], None], check: Callable[[], None]
) -> Iterator[None]:
    """Hold the machine, or one GPU of it, while the block runs; wait for another runner first.

    Without `gpu` the cell has the machine for itself; cells that name a GPU share the machine and have
    that GPU for themselves. `say` gets one line if there is somebody to wait for; `check` is called
    while waiting and may raise to give up.
    """
    with contextlib.ExitStack() as held:
        machine = fcntl.LOCK_EX if gpu is None else fcntl.LOCK_SH
        held.enter_context(_locked(lock_file(), machine, cell, say, check))
        if gpu is not None:
            held.enter_context(_locked(lock_file(gpu), fcntl.LOCK_EX, cell, say, check))
        yield


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
def _locked(file: Path, mode: int, cell: str, say, check) -> Iterator[None]:
    descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        waiting = False
        while not _try(descriptor, mode):
            if not waiting:
                say(f"waiting for {_holder(descriptor)}, which has the lock {file}")
                waiting = True
            check()
            time.sleep(POLL_S)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"process {os.getpid()}, cell {cell}".encode(), 0)
        yield
    finally:
        os.close(descriptor)


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
