"""One engine under observation: its events, its memory, and the reasons to stop it.

until the engine has exited:
    read what it writes; check every event; note when its phase changes
    every 20 ms, with a GPU every 10: sample its memory, and the GPU's; ask the guard
    every 100 ms: sample the memory of what it has started
    every 500 ms: what the machine has left; ask the guard; why the GPU's clocks are held down
    if the guard, the protocol, the time limit or a signal to the runner objects: TERM, then KILL
"""

from dataclasses import dataclass
from typing import BinaryIO

from kvpeak.protocol.events import BadAnswer
from kvpeak.runner.attempt import Attempt
from kvpeak.runner.child import Child
from kvpeak.runner.energy import Energy
from kvpeak.runner.watched import Watched
from kvpeak.system.mac import CRITICAL, pressure_level
from kvpeak.system.machine import available_mib
from kvpeak.system.process_memory import LinuxMemory, MacMemory, Sample

SAMPLE_S = 0.02  # of the process's memory, whose peak the system keeps
GPU_SAMPLE_S = 0.01  # with a GPU, whose driver keeps no peak
TREE_S = 0.1  # of what it has started, which takes longer to find
SLOW_S = 0.5  # of the machine's memory and the GPU's clocks, which take longer to read
GUARD_GRACE_S = 0.5  # memory keeps growing while an engine is asked to stop
LOW_MEMORY = 0.05  # of the machine's memory: below it systems start to swap


@dataclass(frozen=True)
class Guard:
    """Stops an engine before the machine swaps. MiB.

    held_mib: the most that the engine may hold. floor_mib: the least that the machine must have
    left.
    """

    held_mib: float
    floor_mib: float

    @classmethod
    def at_start(cls, fraction: float, available_mib: float, total_mib: float) -> "Guard":
        """The engine may take `fraction` of what is available; of the rest at most 5 % of all stays
        free.
        """
        rest = (1 - fraction) * available_mib
        return cls(fraction * available_mib, max(0, min(rest, LOW_MEMORY * total_mib)))

    def objects_to(self, held_mib: float) -> str | None:
        """Why an engine that holds that much has to stop, or None."""
        if held_mib <= self.held_mib:
            return None
        return f"the engine held {held_mib:.0f} MiB; the guard allows {self.held_mib:.0f}"

    def objects_to_machine(self, available_mib: float, pressure: int | None = None) -> str | None:
        """Why the engine has to stop when the machine has only that much left, or None.

        pressure: macOS's own level, where there is one. Then it decides, because macOS compresses
        memory long before it swaps.
        """
        if pressure is not None:
            return "macOS's memory pressure was critical" if pressure >= CRITICAL else None
        if available_mib >= self.floor_mib:
            return None
        return f"the machine had {available_mib:.0f} MiB left; the guard keeps {self.floor_mib:.0f}"


class Watch:
    """See the module's text."""

    def __init__(
        self,
        attempt: Attempt,
        child: Child,
        memory: LinuxMemory | MacMemory,
        guard: Guard,
        watched: Watched,
        raw: BinaryIO,
        energy: Energy | None = None,
    ):
        """`raw` takes everything that the engine writes."""
        self._attempt, self._child, self._memory = attempt, child, memory
        self._guard, self._watched, self._raw = guard, watched, raw
        self._energy = energy
        self._gpu, self._limits = attempt.gpu, attempt.limits
        self._start = attempt.clock()
        self._next_sample = self._next_slow = self._next_tree = 0.0
        self._tree: Sample | None = None

    def run(self) -> None:
        """Watch until the engine has exited (it is not reaped)."""
        seen = self._watched
        self._note_phase()
        while not self._child.exited():
            self._take(self._child.read(max(0.0, self._next_sample - self._now())))
            self._sample_when_due()
            self._attempt.check()
            self._check_timeout()
            if seen.stopped:
                guard = seen.stopped[0] == "guard"
                self._child.stop(
                    min(GUARD_GRACE_S, self._limits.grace_s) if guard else self._limits.grace_s
                )
        self._memory.last_look()
        self._take(self._child.rest())
        self._end_phase(self._now())

    def _now(self) -> float:
        return self._attempt.clock() - self._start

    def _take(self, data: bytes) -> None:
        """Keep what the engine wrote, and follow it as long as it keeps to the protocol."""
        if not data:
            return
        self._raw.write(data)
        seen = self._watched
        if seen.stopped and seen.stopped[0] == "garbled":
            return
        try:
            for _ in seen.conversation.feed(data, self._now()):
                self._note_phase()
        except BadAnswer as error:
            seen.stopped = seen.stopped or ("garbled", str(error))

    def _note_phase(self) -> None:
        """Begin a phase if the events say that there is a new one; the first turn begins with its
        run.
        """
        now, phases, where = self._now(), self._watched.phases, self._watched.where
        last = phases[-1] if phases else {}
        if last.get("phase") == where["phase"] and where.get("turn") in (last.get("turn"), 1):
            last |= where
            return
        self._end_phase(now)
        phases.append(where | {"start_s": round(now, 4)} | self._joules("start_j"))
        self._attempt.progress.phase(self._watched)

    def _end_phase(self, now: float) -> None:
        if self._watched.phases:
            self._watched.phases[-1] |= {"end_s": round(now, 4)} | self._joules("end_j")

    def _joules(self, key: str) -> dict[str, float]:
        """What the counter of energy says now; {} without one."""
        joules = self._energy.meter.joules() if self._energy else None
        return {} if joules is None else {key: joules}

    def _sample_when_due(self) -> None:
        if self._now() >= self._next_sample:
            self._sample()
            self._next_sample = self._now() + (GPU_SAMPLE_S if self._gpu else SAMPLE_S)
        if self._now() >= self._next_slow:
            self._sample_slowly()
            self._next_slow = self._now() + SLOW_S

    def _sample(self) -> None:
        seen = self._watched
        device = self._gpu.sample(self._child.pid) if self._gpu else None
        if sample := self._memory.sample():
            seen.now_mib = sample.footprint_mib
            seen.peak_mib = max(seen.peak_mib, sample.footprint_mib)
            phase = seen.conversation.phase
            seen.timeline.add(self._now(), phase, sample.footprint_mib, sample.rss_mib, device)
            self._look_at_tree(sample)
            below = self._tree.held_mib if self._tree else 0.0
            self._stop_if("guard", self._guard.objects_to(sample.held_mib + below))

    def _look_at_tree(self, sample: Sample) -> None:
        """When it is due, look at what the process has started; the guard counts it to the
        process.
        """
        if self._now() < self._next_tree:
            return
        self._tree = self._child.tree.sample()
        self._next_tree = self._now() + TREE_S
        if self._tree:
            whole = sample.footprint_mib + self._tree.footprint_mib
            self._watched.peak_tree_mib = max(self._watched.peak_tree_mib or 0.0, whole)

    def _sample_slowly(self) -> None:
        self._stop_if("guard", self._guard.objects_to_machine(available_mib(), pressure_level()))
        self._joules("now")  # a counter that begins again at 0 is read often enough
        if self._gpu:
            self._gpu.sample_clocks()
        self._attempt.progress.now(self._watched)

    def _check_timeout(self) -> None:
        limit = self._limits.timeout_s
        if limit is not None and self._now() > limit:
            self._stop_if("timeout", f"not finished after {limit:g} s")

    def _stop_if(self, why: str, words: str | None) -> None:
        if words and not self._watched.stopped:
            self._watched.stopped = (why, words)
