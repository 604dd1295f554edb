"""The instruments' check: processes whose memory is known, measured as cells are, and read against
what is known.
"""

from pathlib import Path

from kvpeak.base.errors import UserError
from kvpeak.protocol.programs import PROBE
from kvpeak.runner.attempt import Attempt
from kvpeak.runner.launch import run_engine
from kvpeak.runner.outcome import Ended, conclude
from kvpeak.runner.progress import Progress
from kvpeak.runner.record import UNKNOWN, memory_numbers
from kvpeak.system import machine
from kvpeak.system.instruments import PROBES, Fall, Reading

PROBE_MIB = 256
FELL_MIB = 8.0  # above what it was before, and it counts as fallen
TIMEOUT_S = 60.0

# What a probe knows → the counters of a cell that have to read it.
READ_BY = {
    "footprint_mib": ("peak_footprint_mib", "footprint_mib"),
    "rss_mib": ("peak_rss_mib", "rss_mib"),
    "tree_mib": ("peak_tree_mib",),
    "device_mib": ("peak_device_mib", "device_mib"),
    "active_mib": ("peak_active_mib",),
    "pool_mib": ("peak_pool_mib",),
}
SAMPLED = ("footprint_mib", "rss_mib", "device_mib")
UNSEEN = {"free": SAMPLED, "child": SAMPLED}  # too short for a sample, and no part of what it shows


class Silent(Progress):
    """Progress that goes into the log alone."""

    def _write(self, line: str) -> None:
        self._log(line)


def check_instruments(folder: Path, python: str, environment: str) -> dict:
    """Run every probe with `python`; its files go into `folder`. Returns the record of the check.

    To be called while the machine is this process's alone. A probe that fails is a problem of the
    record.
    """
    readings, falls, problems = [], [], []
    gpu = None
    for name in PROBES:
        request = {
            "engine": PROBE,
            "python": python,
            "probe": name,
            "mib": PROBE_MIB,
            "cell": {},
            "protocol": {"warmup": 0, "recorded": 1},
            "limits": {"timeout_s": TIMEOUT_S},
        }
        attempt = Attempt(request, folder / name, Silent(name, None))
        try:
            attempt.begin()
            gpu = attempt.gpu
            ended = run_engine(attempt, machine.available_mib())
            outcome, detail = conclude(ended, attempt.messages)
            if outcome != "ok":
                raise UserError(f"{outcome}: {detail}")
        except UserError as error:
            problems.append(f"{name}: {error}")
            continue
        readings += read(name, attempt, ended)
        falls += fallen(ended) if name == "pool" else []
    return {
        "machine": machine.state(gpu and gpu.state())["name"],
        "environment": environment,
        "readings": [reading.record() for reading in readings],
        "falls": [fall.record() for fall in falls],
        "problems": problems,
    }


def read(probe: str, attempt: Attempt, ended: Ended) -> list[Reading]:
    """What each counter of a cell read, where the probe knows it."""
    conversation, timeline = ended.watched.conversation, ended.watched.timeline
    gpu = attempt.gpu
    found = memory_numbers(conversation, ended.peaks, gpu.peak() if gpu else UNKNOWN)
    found |= {column: timeline.largest(column) for column in SAMPLED}
    found["peak_tree_mib"] = ended.watched.peak_tree_mib
    known = dict(conversation.runs[0]["known"])
    if (growth := known.pop("device_growth_mib", None)) is not None and gpu:
        known["device_mib"] = (timeline.largest("device_mib", "idle") or 0.0) + growth
    return [
        Reading(probe, counter, known[what], found[counter])
        for what, counters in READ_BY.items()
        for counter in counters
        if what in known and counter not in UNSEEN.get(probe, ())
    ]


def fallen(ended: Ended) -> list[Fall]:
    """How the sampled memory fell after the probe `pool` had cleared MLX's pool."""
    watched = ended.watched
    known = watched.conversation.runs[0]["known"]
    column = "device_mib" if "device_growth_mib" in known else "footprint_mib"
    cleared = next(phase["start_s"] for phase in watched.phases if phase["phase"] == "decode-0")
    before = watched.timeline.largest(column, "idle")
    after = watched.timeline.samples(column, "decode-0")
    if before is None or not after:
        return []
    most = watched.timeline.largest(column, "prefill-0")
    fell = next((t_s for t_s, mib in after if mib <= before + FELL_MIB), None)
    seconds = None if fell is None else max(0.0, fell - cleared)
    return [Fall(column, before, most, seconds, max(0.0, after[-1][1] - before))]
