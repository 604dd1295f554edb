"""How a process ended, and what that says of its cell: an outcome, or a failure in one line."""

import os
import signal
from dataclasses import dataclass
from pathlib import Path

from kvpeak.base.errors import UserError
from kvpeak.base.untrusted import open_regular
from kvpeak.protocol.events import BadAnswer, excerpt
from kvpeak.runner.watched import Watched
from kvpeak.system.process_memory import Peaks

LAST_BYTES = 4096  # of a log, in which its last words are looked for
# MLX before 0.32 aborts where a command of Metal has no memory; this is in the last lines that it
# writes.
METAL_OUT_OF_MEMORY = b"kIOGPUCommandBufferCallbackErrorOutOfMemory"


@dataclass(frozen=True)
class Ended:
    """An engine's process that has ended.

    code: its exit code, negative: the signal that killed it. elapsed_s: by the monotonic clock;
    wall_s: by the wall clock; cpu_s: of the engine and the runner, and of everything else of the
    same Snakemake where that measures cells side by side. energy: the part of that name of
    cell.json.
    """

    watched: Watched
    pid: int
    code: int
    killed_for_memory: bool
    peaks: Peaks
    elapsed_s: float
    wall_s: float
    cpu_s: float
    energy: dict | None = None


def conclude(ended: Ended, messages: Path) -> tuple[str, str | None]:
    """(outcome, detail) of a process that has ended; `messages`: its standard error.

    Raises UserError if it crashed or its answer is not one of the protocol.
    """
    watched, code = ended.watched, ended.code
    last = watched.phases[-1]
    phase = last["phase"] + (f", turn {last['turn']}" if "turn" in last else "")
    if watched.stopped:
        why, words = watched.stopped
        if why == "garbled":
            raise UserError(f"garbled answer in phase {phase}: {words}")
        return why, f"in phase {phase}: {words}"
    if ended.killed_for_memory:
        return "oom", f"in phase {phase}: killed by the kernel, which was out of memory"
    if code == -signal.SIGABRT and (said := _line_with(messages, METAL_OUT_OF_MEMORY)):
        return "oom", f"in phase {phase}: {said}"
    if code:
        how = f"killed by {_signal_name(-code)}" if code < 0 else f"exit code {code}"
        said = _last_line(messages)
        raise UserError(f"engine crashed in phase {phase}: {how}" + (f": {said}" if said else ""))
    try:
        return watched.conversation.answer()
    except BadAnswer as error:
        raise UserError(f"garbled answer in phase {phase}: {error}") from None


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _last_line(file: Path) -> str:
    """The last line of a log that says something: usually the cause."""
    return _line_with(file, b"")


def _line_with(file: Path, words: bytes) -> str:
    """The last line of a log's end that says something and has these words in it; "" if there is
    none, or if the engine put something else in the log's place.
    """
    try:
        with open_regular(file) as opened:
            opened.seek(-min(LAST_BYTES, os.fstat(opened.fileno()).st_size), os.SEEK_END)
            lines = [line.strip() for line in opened.read(LAST_BYTES).split(b"\n")]
    except (OSError, UserError):
        return ""
    return next((excerpt(line, 300) for line in reversed(lines) if line and words in line), "")
