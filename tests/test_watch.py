"""When the guard objects, and what the watch does when: in scripted time, with a scripted engine.

test_run_cell.py has the same watch over real processes.
"""

import io
import itertools
import json
from types import SimpleNamespace

import pytest

from kvpeak.protocol.events import Conversation
from kvpeak.protocol.request import Limits
from kvpeak.runner import watch
from kvpeak.runner.energy import Energy
from kvpeak.runner.watch import Guard, Watch
from kvpeak.runner.watched import Watched
from kvpeak.system.process_memory import Sample


def test_the_engine_may_hold_a_fraction_of_what_is_available():
    guard = Guard.at_start(fraction=0.8, available_mib=10_000, total_mib=16_000)
    assert guard.objects_to(8_000) is None
    assert guard.objects_to(8_001) == "the engine held 8001 MiB; the guard allows 8000"


def test_the_machine_keeps_five_percent_of_its_memory():
    guard = Guard.at_start(fraction=0.8, available_mib=10_000, total_mib=16_000)
    assert guard.objects_to_machine(800) is None
    assert guard.objects_to_machine(799) == "the machine had 799 MiB left; the guard keeps 800"


def test_a_full_machine_does_not_stop_an_engine_that_takes_nothing():
    """A fifth of the 500 MiB that are available stays free, and not 5 % of the whole."""
    guard = Guard.at_start(fraction=0.8, available_mib=500, total_mib=16_000)
    assert guard.objects_to_machine(500) is None
    assert guard.objects_to_machine(101) is None
    assert guard.objects_to_machine(99)


def test_a_fraction_above_one_leaves_no_floor():
    guard = Guard.at_start(fraction=3, available_mib=500, total_mib=16_000)
    assert (guard.held_mib, guard.floor_mib) == (1500, 0)
    assert guard.objects_to_machine(0) is None


def test_macos_decides_by_its_own_pressure():
    guard = Guard(held_mib=100, floor_mib=800)
    assert guard.objects_to_machine(0, pressure=1) is None
    assert guard.objects_to_machine(0, pressure=2) is None
    for level in (4, 8):  # a level that macOS does not have is no reason to go on
        said = guard.objects_to_machine(5000, pressure=level)
        assert said == "macOS's memory pressure was critical"


NO_GUARD = Guard(held_mib=1e6, floor_mib=0)
START = 1000.0  # of the clock, which may begin anywhere
EVENTS = (
    (0.123456, {"event": "started", "versions": {}, "device": {}, "cap_bytes": None}),
    (
        0.25,
        {
            "event": "loaded",
            "load_s": 0.1,
            "loaded_mib": 1,
            "weights_mapped": False,
            "dtype": "float32",
        },
    ),
    (0.5, {"event": "run_started", "run": 0, "warmup": False}),
    (0.75, {"event": "prefilled", "run": 0}),
)
PHASES = [
    ("start", 0, 0.1235),
    ("load", 0.1235, 0.25),
    ("idle", 0.25, 0.5),
    ("prefill-0", 0.5, 0.75),
]


def line(event: dict) -> bytes:
    return json.dumps(event).encode() + b"\n"


class Engine:
    """A process that writes at its times and takes memory by its script. Its time is the clock:
    waiting for what it writes takes as long as was waited. `asked` and `looked` note when it was
    waited for, and when its memory was sampled.
    """

    pid = 42

    def __init__(self, ends: float, writes=(), held=lambda t: 10.0, tree=lambda t: None):
        self.now, self.ends, self.writes, self.held = 0.0, ends, list(writes), held
        self.tree = SimpleNamespace(sample=lambda: self._look(self.tree_looked, tree))
        self.asked, self.looked, self.tree_looked = [], [], []
        self.stops: list[float] = []
        self.at_end = b""
        self.order: list[str] = []

    def clock(self) -> float:
        return START + self.now

    def _look(self, notes: list, script):
        notes.append(self.now)
        return script(self.now)

    # What the watch asks of a Child

    def exited(self) -> bool:
        return bool(self.stops) or self.now >= self.ends

    def read(self, timeout_s: float) -> bytes:
        self.asked.append(timeout_s)
        assert len(self.asked) < 5000, "the watch does not end"
        until = self.now + max(timeout_s, 1e-9)
        if self.writes and self.writes[0][0] <= until:
            self.now, data = self.writes.pop(0)
            return data
        self.now = until
        return b""

    def stop(self, grace_s: float) -> None:
        self.stops.append(grace_s)

    def rest(self) -> bytes:
        self.order.append("rest")
        return self.at_end

    # and of its memory

    def sample(self) -> Sample | None:
        held = self._look(self.looked, self.held)
        return None if held is None else Sample(held + 1, held + 2, held)

    def last_look(self) -> None:
        self.order.append("last look")


@pytest.fixture
def machine(monkeypatch):
    """What the machine has left at each look: `left` MiB, the times in `looked`."""
    machine = SimpleNamespace(left=lambda: 1e6, looked=[], engine=None)

    def available_mib():
        machine.looked.append(machine.engine.now)
        return machine.left()

    monkeypatch.setattr(watch, "available_mib", available_mib)
    monkeypatch.setattr(watch, "pressure_level", lambda: None)
    return machine


@pytest.fixture
def watched(machine):
    """A function that watches an engine to its end and says what was seen."""

    def watched(engine: Engine, guard=NO_GUARD, energy=None, check=None, gpu=None, **limits):
        machine.engine = engine
        seen, raw = Watched(Conversation(0, 1)), io.BytesIO()
        shown = []
        progress = SimpleNamespace(
            phase=lambda seen: shown.append((engine.now, seen.conversation.phase)),
            now=lambda seen: shown.append((engine.now, seen.now_mib)),
        )
        attempt = SimpleNamespace(
            gpu=gpu,
            limits=Limits(**limits),
            clock=engine.clock,
            check=check or (lambda: None),
            progress=progress,
        )
        Watch(attempt, engine, engine, guard, seen, raw, energy).run()
        seen.raw, seen.shown = raw.getvalue(), shown
        return seen

    return watched


def steps(times: list[float]) -> list[float]:
    return [round(b - a, 6) for a, b in itertools.pairwise(times)]


def test_the_process_is_sampled_every_20_ms_its_tree_every_100_and_the_machine_every_500(
    watched, machine
):
    engine = Engine(2.0)
    watched(engine)
    assert engine.looked[0] == pytest.approx(0, abs=1e-6)
    assert steps(engine.looked) == [0.02] * (len(engine.looked) - 1)
    assert len(engine.looked) == pytest.approx(101, abs=1)
    assert steps(engine.tree_looked) == pytest.approx([0.1] * 19, abs=0.021)
    assert steps(machine.looked) == pytest.approx([0.5] * (len(machine.looked) - 1), abs=0.021)
    assert len(machine.looked) == pytest.approx(5, abs=1)
    assert max(engine.asked) <= 0.02 + 1e-9


class Gpu:
    """A GPU that says how much the process takes of it, and counts the looks at its clocks."""

    def __init__(self):
        self.pids, self.clocks = [], 0

    def sample(self, pid: int) -> float:
        self.pids.append(pid)
        return 250.0

    def sample_clocks(self) -> None:
        self.clocks += 1


def test_with_a_gpu_it_is_sampled_every_10_ms_and_its_clocks_every_500(watched):
    engine, gpu = Engine(2.0), Gpu()
    seen = watched(engine, gpu=gpu)
    assert steps(engine.looked) == [0.01] * (len(engine.looked) - 1)
    assert set(gpu.pids) == {42}
    assert len(gpu.pids) == len(engine.looked)
    assert gpu.clocks == pytest.approx(5, abs=1)
    assert seen.timeline.largest("device_mib") == 250


def test_output_that_comes_early_is_taken_at_once_and_delays_no_sample(watched):
    engine = Engine(0.1, [(0.005, b""), (0.013, b"")])
    watched(engine)
    assert steps(engine.looked) == [0.02] * (len(engine.looked) - 1)


def test_a_phase_ends_where_the_next_begins_and_the_last_when_the_process_does(watched):
    engine = Engine(1.0, [(t, line(event)) for t, event in EVENTS])
    seen = watched(engine)
    found = [(phase["phase"], phase["start_s"], phase["end_s"]) for phase in seen.phases]
    expected = [*PHASES, ("decode-0", 0.75, 1.0)]
    assert [phase for phase, *_ in found] == [phase for phase, *_ in expected]
    for (_, *times), (_, *due) in zip(found, expected, strict=True):
        assert times == pytest.approx(due, abs=0.021)
    assert [end for *_, end in found[:-1]] == [start for _, start, _ in found[1:]]
    assert [event["t_s"] for event in seen.conversation.events] == [0.1235, 0.25, 0.5, 0.75]
    assert [start for _, start, _ in found] == [0, 0.1235, 0.25, 0.5, 0.75]
    assert [phase for _, phase in seen.shown if isinstance(phase, str)] == [p for p, *_ in expected]
    assert seen.stopped is None


def test_each_turn_has_phases_of_its_own_and_the_first_begins_with_its_run(watched):
    turns = [
        (0.55, {"event": "turn_started", "run": 0, "turn": 1}),
        (0.6, {"event": "prefilled", "run": 0}),
        (0.7, {"event": "turn_started", "run": 0, "turn": 2}),
        (0.8, {"event": "prefilled", "run": 0}),
    ]
    engine = Engine(1.0, [(t, line(event)) for t, event in [*EVENTS[:3], *turns]])
    seen = watched(engine)
    assert [(phase["phase"], phase.get("turn"), phase["start_s"]) for phase in seen.phases] == [
        ("start", None, 0),
        ("load", None, 0.1235),
        ("idle", None, 0.25),
        ("prefill-0", 1, 0.5),
        ("decode-0", 1, 0.6),
        ("prefill-0", 2, 0.7),
        ("decode-0", 2, 0.8),
    ]
    ends = [phase["end_s"] for phase in seen.phases]
    assert ends[:-1] == [phase["start_s"] for phase in seen.phases[1:]]
    assert len([each for each in seen.shown if isinstance(each[1], str)]) == len(ends)


def test_each_sample_belongs_to_the_phase_that_the_engine_was_in(watched):
    engine = Engine(
        1.0, [(t, line(event)) for t, event in EVENTS], held=lambda t: 500.0 if t < 0.6 else 40.0
    )
    seen = watched(engine)
    assert seen.timeline.largest("footprint_mib", "prefill-0") == 501
    assert seen.timeline.largest("footprint_mib", "decode-0") == 41
    assert seen.timeline.largest("rss_mib", "decode-0") == 42
    assert (seen.peak_mib, seen.now_mib) == (501, 41)


def test_what_was_written_before_the_exit_counts_and_its_memory_is_read_first(watched):
    engine = Engine(0.3, [(0.1, line(EVENTS[0][1]))])
    engine.at_end = line(EVENTS[1][1])
    seen = watched(engine)
    assert engine.order == ["last look", "rest"]
    assert [phase["phase"] for phase in seen.phases] == ["start", "load", "idle"]
    assert seen.phases[-1]["end_s"] == pytest.approx(0.3, abs=0.021)
    assert seen.raw == line(EVENTS[0][1]) + line(EVENTS[1][1])


def test_a_process_that_is_gone_gives_no_sample(watched):
    engine = Engine(0.2, held=lambda t: 30.0 if t < 0.1 else None)
    seen = watched(engine)
    assert (seen.peak_mib, seen.now_mib, seen.peak_tree_mib) == (31, 31, None)
    assert len(seen.timeline.samples("rss_mib")) == 5
    assert len(engine.looked) > 5


def test_the_counter_of_energy_is_read_where_phases_meet_and_between(watched):
    engine = Engine(1.2, [(t, line(event)) for t, event in EVENTS])
    read = []

    def joules() -> float:
        read.append(engine.now)
        return 7 * engine.now

    seen = watched(engine, energy=Energy(SimpleNamespace(joules=joules)))
    for phase in seen.phases:
        assert phase["start_j"] == pytest.approx(7 * phase["start_s"], abs=0.01)
        assert phase["end_j"] == pytest.approx(7 * phase["end_s"], abs=0.01)
    assert any(0.8 < t < 1.1 for t in read)


def test_without_a_counter_of_energy_phases_have_none(watched):
    (phase,) = watched(Engine(0.1)).phases
    assert set(phase) == {"phase", "start_s", "end_s"}
    (phase,) = watched(Engine(0.1), energy=Energy(SimpleNamespace(joules=lambda: None))).phases
    assert set(phase) == {"phase", "start_s", "end_s"}


@pytest.mark.parametrize(("grace", "given"), [(5.0, 0.5), (0.2, 0.2)])
def test_the_guard_gives_half_a_second_and_no_more_than_the_limits_do(watched, grace, given):
    engine = Engine(9.0, held=lambda t: 100 * t)
    seen = watched(engine, guard=Guard(held_mib=50, floor_mib=0), grace_s=grace)
    assert engine.stops == [given]
    assert seen.stopped[0] == "guard"
    assert "the guard allows 50" in seen.stopped[1]
    assert engine.now == pytest.approx(0.5, abs=0.05)


def test_a_process_that_is_as_large_as_the_guard_allows_goes_on(watched):
    engine = Engine(0.5, held=lambda t: 50.0)
    assert watched(engine, guard=Guard(held_mib=50, floor_mib=0)).stopped is None
    assert engine.stops == []


def test_the_guard_counts_what_the_process_has_started(watched):
    def tree(t: float) -> Sample | None:
        return Sample(65.0, 66.0, 45.0) if t > 1 else None

    engine = Engine(9.0, tree=tree)
    seen = watched(engine, guard=Guard(held_mib=54, floor_mib=0))
    assert seen.stopped == ("guard", "the engine held 55 MiB; the guard allows 54")
    assert engine.now == pytest.approx(1.05, abs=0.1)
    assert seen.peak_tree_mib == 11 + 65  # footprints


def test_the_peak_of_the_tree_is_the_largest_sum(watched):
    def tree(t: float) -> Sample | None:
        return Sample(300.0 if t < 0.5 else 20.0, 0.0, 1.0) if t < 1 else None

    assert watched(Engine(2.0, tree=tree)).peak_tree_mib == 311
    assert watched(Engine(2.0)).peak_tree_mib is None


def test_the_guard_stops_an_engine_before_the_machine_swaps(watched, machine):
    machine.left = lambda: 799.0 if machine.engine.now > 1.2 else 800.0
    engine = Engine(9.0)
    seen = watched(engine, guard=Guard(held_mib=1e6, floor_mib=800))
    assert seen.stopped == ("guard", "the machine had 799 MiB left; the guard keeps 800")
    assert engine.now == pytest.approx(1.5, abs=0.05)
    assert engine.stops == [0.5]


def test_an_engine_that_is_not_finished_at_its_limit_gets_the_grace_of_the_limits(watched):
    engine = Engine(9.0)
    seen = watched(engine, timeout_s=1.5, grace_s=3.0)
    assert seen.stopped == ("timeout", "not finished after 1.5 s")
    assert engine.stops == [3.0]
    assert engine.now == pytest.approx(1.5, abs=0.05)


def test_without_a_limit_it_may_take_as_long_as_it_takes(watched):
    assert watched(Engine(5.0), timeout_s=None).stopped is None
    assert watched(Engine(5.0), timeout_s=6).stopped is None


def test_it_may_take_exactly_as_long_as_its_limit(watched):
    engine = Engine(9.0, [(0.5, b"")])
    watched(engine, timeout_s=0.5)
    assert 0.5 < engine.now < 0.53


@pytest.mark.parametrize(("allowed", "why"), [(20, "timeout"), (9, "guard")])
def test_what_it_had_to_say_when_it_was_stopped_counts(watched, allowed, why):
    """It grows from 5 to 10 MiB after 0.2 seconds, and would end after nine."""
    engine = Engine(9.0, [(0.123456, line(EVENTS[0][1]))], held=lambda t: 10.0 if t > 0.2 else 5.0)
    engine.at_end = line(EVENTS[1][1])
    seen = watched(engine, Guard(held_mib=allowed, floor_mib=0), timeout_s=0.5)
    assert seen.stopped[0] == why
    assert [event["event"] for event in seen.conversation.events] == ["started", "loaded"]
    assert [phase["phase"] for phase in seen.phases] == ["start", "load", "idle"]


def test_garbage_stops_it_and_is_kept(watched):
    writes = [(0.1, line(EVENTS[0][1])), (0.3, b"Segmentation fault\n" + line(EVENTS[1][1]))]
    engine = Engine(9.0, writes)
    engine.at_end = line(EVENTS[1][1])  # in its turn, but after the garbage nothing counts
    seen = watched(engine, grace_s=3.0)
    assert seen.stopped == ("garbled", "not a JSON event: Segmentation fault")
    assert engine.stops == [3.0]
    assert len(seen.conversation.events) == 1
    assert seen.raw == b"".join(data for _, data in writes) + line(EVENTS[1][1])


def test_the_first_reason_to_stop_stands(watched):
    engine = Engine(9.0, [(0.1, b"no event\n")], held=lambda t: 100 * t)
    seen = watched(engine, guard=Guard(held_mib=5, floor_mib=0))
    assert seen.stopped[0] == "guard"
    engine = Engine(9.0, held=lambda t: 30.0)
    engine.at_end = b"no event\n"
    assert watched(engine, guard=Guard(held_mib=5, floor_mib=0)).stopped[0] == "guard"


def test_who_runs_it_may_stop_it_at_any_time(watched):
    class Enough(Exception):
        pass

    engine = Engine(9.0)

    def check():
        if engine.now > 2:
            raise Enough

    with pytest.raises(Enough):
        watched(engine, check=check)
    assert engine.now == pytest.approx(2, abs=0.05)


def test_progress_shows_the_memory_of_now_every_half_second(watched):
    engine = Engine(1.9, held=lambda t: 100 * t)
    shown = [each for each in watched(engine).shown if not isinstance(each[1], str)]
    assert [mib for _, mib in shown] == pytest.approx([1, 51, 101, 151], abs=2.1)
