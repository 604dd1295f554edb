"""Who holds what at the peak: the buffers that are live when the most is reserved."""

from dataclasses import dataclass

from kvpeak.pools.replay import Outcome, replay
from kvpeak.pools.trace import BIRTHS, Trace


@dataclass(frozen=True)
class Holding:
    """Buffers alike at the peak; sizes in bytes, `age_us` and `age_events` of the oldest."""

    count: int
    requested: int
    held: int
    age_us: int
    age_events: int
    phase: str
    stack: str

    @property
    def total(self) -> int:
        return self.count * self.held


def at_the_peak(trace: Trace, outcome: Outcome, limit: int | None = None) -> list[Holding]:
    """The live buffers at the peak of an outcome, those of one size and origin together.

    The largest sum comes first. Empty if nothing was ever reserved.
    """
    if outcome.peak_at < 0:
        return []
    stop = outcome.peak_at + 1
    held = replay(trace, outcome.setting, limit, stop=stop, holders=True).held
    groups: dict[tuple, list[int]] = {}
    for event in range(stop):
        if trace.op[event] in BIRTHS and held[trace.id[event]]:
            key = (
                trace.bytes[event],
                held[trace.id[event]],
                trace.phase[event],
                trace.stack[event],
            )
            groups.setdefault(key, []).append(event)
    found = [
        Holding(
            count=len(events),
            requested=requested,
            held=size,
            age_us=trace.time[outcome.peak_at] - trace.time[events[0]],
            age_events=outcome.peak_at - events[0],
            phase=trace.phases[phase],
            stack=trace.stacks[stack],
        )
        for (requested, size, phase, stack), events in groups.items()
    ]
    return sorted(found, key=lambda holding: -holding.total)
