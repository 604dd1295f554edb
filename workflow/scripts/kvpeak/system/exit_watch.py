"""Whether a child has exited, without reaping it, and whether the system killed it for want of
memory.
"""

import os
import select
import sys

# sys/event.h of macOS. With NOTE_EXIT_DETAIL the event of an exit says why; jetsam's kills have
# NOTE_EXIT_MEMORY.
NOTE_EXIT_DETAIL = 0x02000000
NOTE_EXIT_MEMORY = 0x00020000


def watch_exit(pid: int) -> "WaitidWatch | KqueueWatch":
    """The watcher of a direct child of this process."""
    return KqueueWatch(pid) if sys.platform == "darwin" else WaitidWatch(pid)


class WaitidWatch:
    """By waitid(2), which leaves the zombie where it is."""

    killed_for_memory = False  # Linux counts its kills in /proc/vmstat: machine.oom_kills

    def __init__(self, pid: int):
        self._pid = pid

    def exited(self) -> bool:
        flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
        return os.waitid(os.P_PID, self._pid, flags) is not None


class KqueueWatch:
    """By kqueue(2), which tells of jetsam. It has not run on a Mac."""

    def __init__(self, pid: int):
        self._queue = select.kqueue()
        self._exited = self.killed_for_memory = False
        event = select.kevent(
            pid,
            select.KQ_FILTER_PROC,
            select.KQ_EV_ADD,
            fflags=select.KQ_NOTE_EXIT | NOTE_EXIT_DETAIL,
        )
        try:
            self._queue.control([event], 0, 0)
        except ProcessLookupError:  # it is a zombie already
            self._exited = True

    def exited(self) -> bool:
        if not self._exited:
            for event in self._queue.control([], 1, 0):
                self._exited = True
                self.killed_for_memory = memory_kill(event.fflags)
        return self._exited


def memory_kill(fflags: int) -> bool:
    """Whether the event of an exit says that the system killed the process for want of memory."""
    return bool(fflags & NOTE_EXIT_DETAIL and fflags & NOTE_EXIT_MEMORY)
