"""Wait until a footprint has fallen to what MLX holds, so that no phase is charged for what the one
before freed.

On Metal a process's footprint has been seen to stand for four seconds after MLX had given its
buffers back (MLX's issue 3896). So the lag is measured once, when the process starts. Where there
is none, nothing is waited for. This has not run on a Mac; it is tested on sequences like the one
reported.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

import mlx.core as mx

from kvpeak.base.numbers import MIB
from kvpeak.live import device
from kvpeak.system.process_memory import own_memory

TRIAL_MIB = 64  # allocated and freed to measure the lag
LONGEST_S = 6.0
NO_LAG_S = 0.05
POLL_S = 0.02
CLOSE_MIB, CLOSE = 8.0, 0.02  # a footprint that near to what is held has fallen
MARGIN = 1.5  # times the lag: the longest wait


@dataclass
class Process:
    """What is asked of the process: MiB of its footprint, MiB that MLX holds live or kept, and
    time.
    """

    footprint: Callable[[], float]
    held: Callable[[], float]
    clock: Callable[[], float] = time.monotonic
    pause: Callable[[float], None] = time.sleep


class Settling:
    """Waits between two phases. `lag_s`: how long a footprint takes to fall here, 0 for at once."""

    def __init__(self, process: Process, lag_s: float):
        self._process = process
        self._beside = self._excess()
        self.lag_s = lag_s if lag_s > NO_LAG_S else 0.0

    def wait(self) -> dict[str, float]:
        """Wait for the fall. `settled_s`: how long it took; `unsettled_mib`: what did not fall.

        What the process holds beside MLX may have grown, so what stays after the longest wait
        counts to it.
        """
        began = self._process.clock()
        while (above := self._above()) and self._process.clock() - began < MARGIN * self.lag_s:
            self._process.pause(POLL_S)
        self._beside = max(self._beside, self._excess())
        seconds = self._process.clock() - began
        return {"settled_s": round(seconds, 3), "unsettled_mib": round(above, 1)}

    def _above(self) -> float:
        """By how much the footprint is above what is held; 0 if it is close."""
        above = self._excess() - self._beside
        return above if above > max(CLOSE_MIB, CLOSE * self._process.footprint()) else 0.0

    def _excess(self) -> float:
        return self._process.footprint() - self._process.held()


def measured_lag_s(
    process: Process, allocate: Callable[[], object], free: Callable[[], None]
) -> float:
    """How long the footprint takes to fall once `free` has given back what `allocate` made."""
    before = process.footprint()
    buffer = allocate()
    del buffer
    free()
    began = process.clock()
    while process.footprint() > before + CLOSE_MIB and process.clock() - began < LONGEST_S:
        process.pause(POLL_S)
    return process.clock() - began


def settling() -> Settling | None:
    """On Metal, with the lag measured now; None elsewhere, where a freed page is gone at once."""
    return (
        Settling(here := _this_process(), _lag_s(here)) if device.accelerator() == "metal" else None
    )


def _this_process() -> Process:
    return Process(
        footprint=lambda: own_memory().footprint_mib,
        held=lambda: (mx.get_active_memory() + mx.get_cache_memory()) / MIB,
        pause=_pause_awake,
    )


def _lag_s(process: Process) -> float:
    def allocate() -> mx.array:
        buffer = mx.zeros((TRIAL_MIB * MIB,), mx.uint8)
        mx.eval(buffer)
        return buffer

    return measured_lag_s(process, allocate, mx.clear_cache)


def _pause_awake(seconds: float) -> None:
    """Metal unwires what a process holds after a second without work: give it a little."""
    mx.eval(mx.zeros((1,)) + 1)
    time.sleep(seconds)
