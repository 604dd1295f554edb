"""The engine's process: started, read, stopped and reaped; it never outlives its runner."""

import contextlib
import os
import select
import signal
import subprocess
import time
from pathlib import Path

from kvpeak.runner.capped import Capped
from kvpeak.system.exit_watch import watch_exit
from kvpeak.system.leash import Leash
from kvpeak.system.process_tree import ProcessTree, children, inherit_orphans

CHUNK = 1 << 16  # bytes; what a pipe holds on Linux
MOST_LEFT = 1 << 20  # bytes; the most that a pipe can hold, so what can be left in it at exit


class Child:
    """A direct child of this process, in a session of its own, with a pipe on its standard
    output.
    """

    def __init__(
        self,
        argv: list[str],
        env: dict[str, str],
        messages: Path,
        cwd: str | None = None,
        limit_s: float | None = None,
    ):
        """Start it in the folder `cwd` (default: this process's). Raises OSError if the program
        cannot be started.

        messages: where the beginning and the end of its standard error go. limit_s: seconds after
        which the runner stops it.
        """
        inherit_orphans()
        self._messages = Capped(messages)
        self._leash = Leash(limit_s)
        others = children(os.getpid())
        try:
            self._popen = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=self._leash.marked(env),
                cwd=cwd,
                start_new_session=True,
                preexec_fn=self._leash.tie,  # safe: the runner has a single thread
            )
        except BaseException:
            self._leash.release()
            self._messages.close()
            raise
        self.pid = self._popen.pid
        self.tree = ProcessTree(self.pid, others)
        self._exit = watch_exit(self.pid)
        self._stdout, self._stderr = (
            stream.fileno() for stream in (self._popen.stdout, self._popen.stderr)
        )
        self._open = {self._stdout, self._stderr}
        for stream in self._open:
            os.set_blocking(stream, False)

    def read(self, timeout_s: float) -> bytes:
        """What it has written on its standard output; waits at most `timeout_s` for it. b"" if
        there is nothing.

        What it has written on its standard error goes to the messages, before the output is read.
        """
        if not self._open:
            time.sleep(timeout_s)
            return b""
        ready = select.select([*self._open], [], [], timeout_s)[0]
        if self._stderr in ready:
            self._messages.write(self._read(self._stderr))
        return self._read(self._stdout) if self._stdout in ready else b""

    def _read(self, stream: int) -> bytes:
        data = os.read(stream, CHUNK)
        if not data:
            self._open.discard(stream)
        return data

    def exited(self) -> bool:
        """Whether it has ended. It stays a zombie, whose memory can still be read on macOS."""
        return self._exit.exited()

    @property
    def killed_for_memory(self) -> bool:
        """Whether its exit said that the system had killed it for want of memory (macOS)."""
        return self._exit.killed_for_memory

    def stop(self, grace_s: float) -> None:
        """End it and what it started: TERM, and KILL if it is still there after `grace_s`."""
        self._signal(signal.SIGTERM)
        deadline = time.monotonic() + grace_s
        while not self.exited() and time.monotonic() < deadline:
            time.sleep(0.01)
        self._signal(signal.SIGKILL)
        while not self.exited():
            time.sleep(0.01)

    def rest(self) -> bytes:
        """What it had written before it exited. Ends what it left running, so that this ends."""
        self._signal(signal.SIGKILL)
        parts, left = [], MOST_LEFT
        while self._open and left > 0 and select.select([*self._open], [], [], 0)[0]:
            parts.append(self.read(0))
            left -= CHUNK
        return b"".join(parts)

    def reap(self) -> None:
        """Learn `code`, its exit code (negative: the signal), and `usage`, its resources. It has to
        have exited.
        """
        self._leash.release()
        _, status, self.usage = os.wait4(self.pid, 0)
        self.code = self._popen.returncode = os.waitstatus_to_exitcode(status)
        self._popen.stdout.close()
        self._popen.stderr.close()
        self._messages.close()
        self.tree.end()

    def _signal(self, number: int) -> None:
        """Send it to the whole session; the zombie keeps the number from being used again."""
        with contextlib.suppress(ProcessLookupError, PermissionError):  # macOS: all are zombies
            os.killpg(self.pid, number)
        self.tree.signal(number)  # what has left the session
