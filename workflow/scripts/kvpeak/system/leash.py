"""A process that ends what this one has started when this one is gone, however it went."""

import contextlib
import os
import signal
import time

GONE_S = 5.0  # the longest that locks are kept for a group that was killed and is not gone yet


class Leash:
    """A small process that kills a child's session when its parent is gone, however that went.

    It waits at the reading end of a pipe. The child writes its process id into it before it becomes
    the engine; the end of the file, which the kernel makes when the runner dies, kills that process
    group. It also keeps the runner's locks (it inherits their descriptors) until the group is gone.
    """

    def __init__(self):
        reading, self._writing = os.pipe()
        self._pid = os.fork()
        if not self._pid:
            os.close(self._writing)
            _hold(reading)
        os.close(reading)

    def tie(self) -> None:
        """Called in the child between fork and exec."""
        os.write(self._writing, f"{os.getpid()}\n".encode())

    def release(self) -> None:
        with contextlib.suppress(BrokenPipeError):  # it was killed
            os.write(self._writing, b"release\n")
        os.close(self._writing)
        os.waitpid(self._pid, 0)


def _hold(reading: int) -> None:
    """The life of the leash. Never returns."""
    try:
        os.setsid()  # a signal to the parent's process group does not reach it
        group = None
        with os.fdopen(reading) as orders:
            for order in orders:
                if order == "release\n":
                    os._exit(0)
                group = int(order)
        deadline = time.monotonic() + GONE_S
        while group and time.monotonic() < deadline:
            os.killpg(group, signal.SIGKILL)  # ends in ProcessLookupError when all are gone
            time.sleep(0.01)
    finally:
        os._exit(0)
