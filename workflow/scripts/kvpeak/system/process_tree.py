"""What a process has started, and all that these have started: their memory, and their end.

A process that loses its parent goes to the next reaper above, which the runner makes itself
(Linux). So even one that has left its session is found. Elsewhere an orphan is lost.
"""

import contextlib
import ctypes
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

from kvpeak.system.process_memory import Sample, sample_of

PR_SET_CHILD_SUBREAPER, PR_GET_CHILD_SUBREAPER = 36, 37  # linux/prctl.h
PROC = Path("/proc")
MOST_LOOKS = 4  # at a tree that changes while it is looked at
GONE_S = 5.0  # the longest that processes which were killed are waited for


class ProcessTree:
    """The descendants of `root`, a child of this process, and what this process inherited from
    it.
    """

    def __init__(self, root: int, others: set[int]):
        """others: children of this process that do not belong to the tree."""
        self._root, self._others = root, others

    def descendants(self) -> list[int]:
        """The process ids below the root, and of its orphans; without the root.

        One that loses its parent meanwhile is in neither place where it was looked for, so that it
        is looked for again until there is nothing new.
        """
        found: dict[int, None] = {}
        for _ in range(MOST_LOOKS):
            known = len(found)
            waiting = [*children(self._root), *self._orphans()]
            while waiting:
                process = waiting.pop()
                if process not in found:
                    found[process] = None
                    waiting += children(process)
            if len(found) == known:
                break
        return [*found]

    def sample(self) -> Sample | None:
        """The memory of all below the root, added; None if there is nothing.

        Pages that two of them share count twice.
        """
        samples = [sample for pid in self.descendants() if (sample := sample_of(pid))]
        if not samples:
            return None
        parts = zip(
            *((each.footprint_mib, each.rss_mib, each.held_mib) for each in samples), strict=True
        )
        return Sample(*map(sum, parts))

    def signal(self, number: int) -> None:
        """Send a signal to everything below the root."""
        for pid in self.descendants():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)

    def end(self) -> None:
        """Kill what is left when the root has been reaped, and reap it, so that no zombie stays.

        Whatever loses its parent becomes a child of this process, so that only these are killed:
        each as soon as it is found, for it may be one that starts the next and exits, for ever.
        """
        deadline, before = time.monotonic() + GONE_S, set()
        while (left := self._orphans()) and time.monotonic() < deadline:
            for pid in sorted(left, reverse=True):
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            for pid in left:
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(pid, os.WNOHANG)
            if left == before:  # killed, and not gone yet
                time.sleep(0.005)
            before = left

    def _orphans(self) -> set[int]:
        return children(os.getpid()) - self._others - {self._root}


@contextlib.contextmanager
def inherited_orphans() -> Iterator[None]:
    """Let orphans of this process's descendants become its children, as long as this lasts
    (Linux).
    """
    before = ctypes.c_int()
    if sys.platform == "linux":
        _prctl(PR_GET_CHILD_SUBREAPER, ctypes.byref(before))
        inherit_orphans()
    try:
        yield
    finally:
        if sys.platform == "linux":
            _prctl(PR_SET_CHILD_SUBREAPER, before.value)


def inherit_orphans() -> None:
    """Let orphans of this process's descendants become its children (Linux)."""
    if sys.platform == "linux":
        _prctl(PR_SET_CHILD_SUBREAPER, 1)


def _prctl(option: int, value) -> None:
    ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def children(pid: int) -> set[int]:
    """The direct children of a process; none if it has gone."""
    if sys.platform == "linux":
        return _linux_children(pid)
    try:
        return {child.pid for child in psutil.Process(pid).children()}
    except psutil.Error:
        return set()


def _linux_children(pid: int) -> set[int]:
    """By /proc/PID/task/TID/children (proc_pid_task(5)): what each thread has started."""
    found = set()
    with contextlib.suppress(OSError):
        for thread in os.scandir(PROC / str(pid) / "task"):
            with contextlib.suppress(OSError):
                found |= set(map(int, Path(thread.path, "children").read_bytes().split()))
    return found
