"""A process that ends what this one has started when this one is gone, however it went."""

import contextlib
import os
import secrets
import select
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

VARIABLE = "KVPEAK_LEASH"  # in the environment of all that the child starts
PROC = Path("/proc")
LATE_S = 30.0  # after the child's time is over; until then its parent ends it
GONE_S = 5.0  # the longest that locks are kept for a group that was killed and is not gone yet


class Leash:
    """A small process that kills a child when its parent is gone, however that went.

    With the child it kills all that it started: its process group, and what has left that, which
    has inherited a variable. It waits at the reading end of a pipe. The child writes its process id
    into it before it becomes the engine; the end of the file, which the kernel makes when the
    runner dies, is the sign. The leash also keeps the runner's locks (it inherits their
    descriptors) until all are gone. A parent that was stopped cannot end the child when its time is
    over: the leash does, a little later.
    """

    def __init__(self, limit_s: float | None = None):
        self._mark = secrets.token_hex(16)
        reading, self._writing = os.pipe()
        self._pid = os.fork()
        if not self._pid:
            os.close(self._writing)
            _hold(reading, self._mark, None if limit_s is None else limit_s + LATE_S)
        os.close(reading)

    def marked(self, environment: dict[str, str]) -> dict[str, str]:
        """The environment for the child."""
        return {**environment, VARIABLE: self._mark}

    def tie(self) -> None:
        """Called in the child between fork and exec."""
        os.write(self._writing, f"{os.getpid()}\n".encode())

    def release(self) -> None:
        with contextlib.suppress(BrokenPipeError):  # it was killed
            os.write(self._writing, b"release\n")
        os.close(self._writing)
        os.waitpid(self._pid, 0)


def _hold(reading: int, mark: str, limit_s: float | None) -> None:
    """The life of the leash. Never returns."""
    try:
        os.setsid()  # a signal to the parent's process group does not reach it
        group = _ordered(reading, limit_s)
        deadline = time.monotonic() + GONE_S
        while group and _killed(group, mark) and time.monotonic() < deadline:
            time.sleep(0.01)
    finally:
        os._exit(0)


def _ordered(reading: int, limit_s: float | None) -> int | None:
    """The group to be killed, when the parent has gone or the time is over. Exits if it is let
    go.
    """
    over, orders = time.monotonic() + limit_s if limit_s is not None else None, b""
    while select.select([reading], [], [], over and max(0.0, over - time.monotonic()))[0]:
        if not (data := os.read(reading, 64)):
            break
        orders += data
        if b"release\n" in orders:
            os._exit(0)
    group, end, _ = orders.partition(b"\n")
    return int(group) if end else None


def _killed(group: int, mark: str) -> bool:
    """Kill what is left of the group and of the marked processes; whether there was anything."""
    found = False
    with contextlib.suppress(ProcessLookupError, PermissionError):  # macOS: all are zombies
        os.killpg(group, signal.SIGKILL)
        found = True
    for pid in _marked(mark):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
            found = True
    return found


def _marked(mark: str) -> Iterator[int]:
    """The processes of this user whose environment has the mark. A zombie has none."""
    if sys.platform != "linux":
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.environ().get(VARIABLE) == mark:
                    yield process.pid
        return
    wanted = f"{VARIABLE}={mark}".encode()
    for file in PROC.glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if wanted in file.read_bytes().split(b"\0"):
                yield int(file.parent.name)
