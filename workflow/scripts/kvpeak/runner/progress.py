"""What a person sees of a running cell: one line a phase in its log, and what it does at this
moment.
"""

import contextlib
import os
import sys
from pathlib import Path
from typing import TextIO

from kvpeak.base.files import write_text
from kvpeak.base.layout import FAILURE_FILE, NOW_FILE
from kvpeak.runner.held import Held
from kvpeak.runner.speeds import decode_tok_s, prefill_tok_s
from kvpeak.runner.watched import Watched

# The file is written often, and its name is known: never through a link or into a pipe.
NOT_THROUGH = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_NONBLOCK


class Progress:
    """Writes lines to standard error and into the log of the attempt, and NOW_FILE beside the
    attempts.

    The log and the folders are opened once, before the engine starts, which may put a link or a
    pipe in their place.
    """

    def __init__(self, cell: str, position: str | None):
        """`position` is "k/n": cell k of n."""
        self._head = "cell {} of {}".format(*position.split("/")) if position else "cell"
        self._cell = cell
        self._attempt: Held | None = None
        self._attempts: Held | None = None
        self._file: TextIO | None = None

    def start(self, attempt: Path) -> None:
        """The first line of an attempt, whose folder gets the log. Raises OSError."""
        self._attempt, self._attempts = Held(attempt), Held(attempt.parent)
        self._forget_now()  # one of results from elsewhere may be another file of mine, too
        self._file = (attempt / "runner.log").open("x", encoding="utf-8", buffering=1)
        self.say(self._cell)

    def say(self, text: str) -> None:
        self._write(f"{self._head}: {text}")

    def failed(self, cause: str) -> None:
        """Into the attempt's folder only: the program prints the cause itself."""
        self._forget_now()
        if self._file:
            with self._file:
                self._log(f"{self._head}: failed: {cause}")
            if self._attempt.is_there():
                write_text(self._attempt.folder / FAILURE_FILE, f"{cause}\n")

    def phase(self, watched: Watched) -> None:
        """One line when a phase begins, with the figures so far; of turns only for the first."""
        self.now(watched)
        phase, turn = watched.conversation.phase, watched.conversation.turn
        if phase not in ("start", "idle", "exit") and turn in (None, 1):
            self._write(figures(f"{self._head}  {phase}", watched, watched.peak_mib))

    def now(self, watched: Watched) -> None:
        """The phase and the memory, for who looks at the run; what cannot be written is not
        shown.
        """
        if self._file:
            with contextlib.suppress(OSError):
                phase = "/".join(map(str, watched.where.values()))
                folder = self._attempts.descriptor
                with os.fdopen(os.open(NOW_FILE, NOT_THROUGH, 0o666, dir_fd=folder), "w") as file:
                    file.write(f"{phase} {watched.now_mib:.0f}\n")

    def end(self, outcome: str, watched: Watched, peak_mib: float | None) -> None:
        self._forget_now()
        with self._file:
            self._write(figures(f"{self._head}  {outcome}", watched, peak_mib or watched.peak_mib))

    def _forget_now(self) -> None:
        if self._attempts:
            with contextlib.suppress(OSError):
                os.unlink(NOW_FILE, dir_fd=self._attempts.descriptor)

    def _write(self, line: str) -> None:
        """A closed terminal does not end a measurement for the sake of its progress."""
        with contextlib.suppress(OSError):
            print(line, file=sys.stderr, flush=True)
        self._log(line)

    def _log(self, line: str) -> None:
        if self._file:
            print(line, file=self._file)


def figures(head: str, watched: Watched, peak_mib: float) -> str:
    """`head`, the peak so far and the last run's speeds: at most 80 columns up to cell 10000 of
    10000.
    """
    line = f"{head}  {peak_mib:.0f} MiB" if peak_mib else head
    runs = watched.conversation.runs
    speeds = [
        f"{name} {value:.1f}"
        for name, rate in (("prefill", prefill_tok_s), ("decode", decode_tok_s))
        if runs and (value := rate(runs[-1])) is not None
    ]
    return f"{line}  {', '.join(speeds)} tok/s" if speeds else line
