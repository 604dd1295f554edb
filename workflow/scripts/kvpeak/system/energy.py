"""Energy counters that can be read without root, and what the machine takes while it idles. Joules,
watts.

Four sources, the first that is there: an NVIDIA GPU's own counter (NVML), the parts of an Apple
chip (chip_energy.py), the process's own energy (Apple silicon; only the processor's part, without
the GPU), and the processor packages (Linux RAPL, where its files may be read). Nothing is guessed
where there is no counter.
"""

import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from kvpeak.system.chip_energy import chip_energy
from kvpeak.system.mac import on_mac
from kvpeak.system.nvml import Gpu
from kvpeak.system.process_memory import process_joules

POLL_S = 0.002
IDLE_S = 1.0  # at least, and to the next step of the counter
STEPS_WITHIN_S = 2.0  # a counter that does not move in that time is not one
LEAST_STEPS = 10  # of the counter, in a phase whose energy is told: then it is within a tenth
LIVE_STEP_S = 0.01  # below that IOReport's figures are mostly rounding, says zeus-apple-silicon


class Meter(Protocol):
    """A counter of energy. `own`: of the process alone; else of the whole device, idle power
    included. `live`: as of the moment of reading, so that nobody has to wait for its steps.
    """

    source: str
    own: bool
    live: bool

    def joules(self) -> float | None:
        """What it has counted, from any start; None if it cannot be read now."""


class GpuEnergy:
    """The total energy counter of an NVIDIA GPU."""

    source, own, live = "NVML total energy, the whole GPU", False, False

    def __init__(self, gpu: Gpu):
        self._gpu = gpu

    def joules(self) -> float | None:
        return self._gpu.joules()


class ProcessEnergy:
    """The energy of one process in its rusage record (macOS). It has not run on a Mac."""

    source, own = "ri_energy_nj, the process on the processor, without the GPU", True
    live = True

    def __init__(self, pid: int):
        self._pid = pid
        self._last = None

    def joules(self) -> float | None:
        self._last = process_joules(self._pid) or self._last
        return self._last


class PackageEnergy:
    """All processor packages of Linux's powercap (Documentation/power/powercap/powercap.rst).

    A counter begins again at 0 after max_energy_range_uj.
    """

    source, own, live = "RAPL, the processor packages", False, False

    def __init__(self, zones: list[Path]):
        self._zones = zones
        self._range = {zone: int((zone / "max_energy_range_uj").read_text()) for zone in zones}
        self._last = {zone: _microjoules(zone) for zone in zones}
        self._total = 0

    def joules(self) -> float | None:
        for zone in self._zones:
            now = _microjoules(zone)
            self._total += (now - self._last[zone]) % (self._range[zone] + 1)
            self._last[zone] = now
        return self._total / 1e6


@dataclass(frozen=True)
class Idle:
    """The power of a machine at rest, and the time between two steps of the counter."""

    watts: float
    step_s: float


def machine_meter(gpu: Gpu | None, root: Path = Path("/sys/class/powercap")) -> Meter | None:
    """The counter of the GPU that is used, of the Apple chip, or of the processors; None where
    there is none to be read.
    """
    if gpu:
        return GpuEnergy(gpu) if gpu.joules() is not None else None
    if on_mac():
        return chip_energy()
    zones = [zone for zone in sorted(root.glob("*")) if re.fullmatch(r"[\w-]+-rapl:\d+", zone.name)]
    try:
        return PackageEnergy(zones) if zones else None
    except (OSError, ValueError):  # for root alone
        return None


def process_meter(pid: int) -> Meter | None:
    """The counter of one process, where the system keeps one (Apple silicon)."""
    meter = ProcessEnergy(pid)
    return meter if meter.joules() is not None else None


def idle(
    meter: Meter,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Idle | None:
    """The power now, between two steps of the counter that are IDLE_S apart or more. None if it
    does not move; one that is live may stand still, as an Apple GPU's does while it rests.
    """
    if meter.live:
        return _idle_of_live(meter, clock, sleep)
    first = _next_step(meter, clock, sleep)
    last, steps = first, 0
    while last and last[0] - first[0] < IDLE_S:
        last, steps = _next_step(meter, clock, sleep), steps + 1
    if not last:
        return None
    seconds = last[0] - first[0]
    return Idle((last[1] - first[1]) / seconds, seconds / steps)


def _idle_of_live(meter: Meter, clock, sleep) -> Idle | None:
    """The same from two readings: reading more often would itself be work that the chip counts."""
    start, before = clock(), meter.joules()
    sleep(IDLE_S)
    end, after = clock(), meter.joules()
    if before is None or after is None or after < before:
        return None
    return Idle((after - before) / (end - start), LIVE_STEP_S)


def _next_step(meter: Meter, clock, sleep) -> tuple[float, float] | None:
    """(time, joules) when the counter has just moved."""
    before, end = meter.joules(), clock() + STEPS_WITHIN_S
    while clock() < end:
        now = meter.joules()
        if now is not None and now != before:
            return clock(), now
        sleep(POLL_S)
    return None


def phase_joules(phase: dict, idle_w: float, step_s: float) -> float | None:
    """The energy of one phase of a cell's process, less that of an idle machine.

    phase: start_s, end_s (s), start_j, end_j (J, null where not read). None if it is not known, if
    the counter did not rise, or if the phase is shorter than LEAST_STEPS steps of the counter.
    """
    start, end = phase.get("start_j"), phase.get("end_j")
    seconds = phase["end_s"] - phase["start_s"]
    if start is None or end is None or end <= start or seconds < LEAST_STEPS * step_s:
        return None
    return max(0.0, end - start - idle_w * seconds)


def _microjoules(zone: Path) -> int:
    return int((zone / "energy_uj").read_text())
