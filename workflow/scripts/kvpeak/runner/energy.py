"""What a cell's process took in energy: the counter at the marks of its phases, and the power of
the idle machine.
"""

from dataclasses import dataclass

from kvpeak.runner.watched import Watched
from kvpeak.system.energy import Idle, Meter, idle, machine_meter, phase_joules, process_meter
from kvpeak.system.nvml import Gpu

PHASES = ("prefill", "decode")


@dataclass
class Energy:
    """The counter of one cell. `before` and `after`: the idle machine's power; None of a counter of
    the process alone.
    """

    meter: Meter
    before: Idle | None = None
    after: Idle | None = None

    def end(self) -> None:
        """Measure the idle machine again, if it was measured before."""
        self.after = idle(self.meter) if self.before else None

    def record(self, watched: Watched) -> dict:
        """The part `energy` of cell.json. Joules, watts, seconds; per run what its phases took,
        idle power taken off.

        idle_w: the mean of before and after. process_j: from start to exit, idle power not taken
        off.
        """
        powers = [each for each in (self.before, self.after) if each]
        idle_w = sum(each.watts for each in powers) / len(powers) if powers else None
        step_s = max((each.step_s for each in powers), default=0.0)
        first, last = watched.phases[0], watched.phases[-1]
        counts = None not in (first.get("start_j"), last.get("end_j"))
        return {
            "source": self.meter.source,
            "idle_w": idle_w,
            "idle_before_w": self.before and self.before.watts,
            "idle_after_w": self.after and self.after.watts,
            "step_s": step_s or None,
            "process_j": last["end_j"] - first["start_j"] if counts else None,
            "process_s": last["end_s"] - first["start_s"],
            "runs": [
                {
                    f"{part}_j": _of(watched, f"{part}-{run['run']}", idle_w or 0.0, step_s)
                    for part in PHASES
                }
                for run in watched.conversation.runs
            ],
        }


def machine_energy(gpu: Gpu | None) -> Energy | None:
    """The counter of the machine, idle power measured now; None where there is none or it stands
    still.
    """
    meter = machine_meter(gpu)
    before = idle(meter) if meter else None
    return Energy(meter, before) if before else None


def process_energy(pid: int) -> Energy | None:
    """The counter of the engine's process, where the system keeps one."""
    meter = process_meter(pid)
    return Energy(meter) if meter else None


def _of(watched: Watched, name: str, idle_w: float, step_s: float) -> float | None:
    """The sum over the phases of that name, one for each turn; None if it is not known of one."""
    phases = [phase for phase in watched.phases if phase["phase"] == name]
    found = [phase_joules(phase, idle_w, step_s) for phase in phases]
    return None if None in found or not found else sum(found)
