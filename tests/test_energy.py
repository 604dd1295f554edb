"""Counters of energy (a Mac's: test_chip_energy.py), the idle machine, and what a phase took."""

import json
import os
import struct
from itertools import pairwise
from types import SimpleNamespace

import pytest
from cells import Cell
from fake_nvml import Nvml

from kvpeak.analysis.processes import _joules_of
from kvpeak.protocol.events import Conversation
from kvpeak.runner import energy as runner_energy
from kvpeak.runner.energy import Energy, _of
from kvpeak.runner.watched import Watched
from kvpeak.system.energy import Idle, idle, machine_meter, phase_joules
from kvpeak.system.nvml import Gpu
from kvpeak.system.process_memory import parse_joules, process_joules


@pytest.fixture(autouse=True)
def not_a_mac(monkeypatch):
    monkeypatch.setattr("kvpeak.system.energy.on_mac", lambda: False)


class Counter:
    """A counter of energy that moves by steps, and the clock that it goes by."""

    source, own, live = "a counter of a test", False, False

    def __init__(self, watts: float, step_s: float):
        self.watts, self.step_s, self.now = watts, step_s, 0.0

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def joules(self) -> float:
        self.now += 1e-5  # reading takes a moment
        return (self.now // self.step_s) * self.step_s * self.watts if self.watts else 0.0


@pytest.mark.parametrize("step_s", [0.01, 0.1, 0.9])
def test_idle_power_is_measured_between_two_steps_of_the_counter(step_s):
    counter = Counter(75.0, step_s)
    counter.now = 0.37 * step_s
    found = idle(counter, counter.clock, counter.sleep)
    assert found.watts == pytest.approx(75, rel=0.005)
    assert found.step_s == pytest.approx(step_s, rel=0.05)
    assert counter.now < 1.0 + 3 * step_s


def test_a_counter_that_stands_still_is_none():
    counter = Counter(0.0, 0.1)
    assert idle(counter, counter.clock, counter.sleep) is None
    assert counter.now < 2.1


def phase(seconds: float, joules: float | None) -> dict:
    end = None if joules is None else 100.0 + joules
    return {
        "phase": "decode-1",
        "start_s": 3.0,
        "end_s": 3.0 + seconds,
        "start_j": 100.0,
        "end_j": end,
    }


@pytest.mark.parametrize(
    ("seconds", "joules", "expected"),
    [
        (2.0, 500.0, 350.0),  # of which the idle machine's 75 W took 150
        (1.0, 500.0, 425.0),
        (0.99, 500.0, None),  # fewer than ten steps
        (2.0, 100.0, 0.0),
        (2.0, None, None),
        (2.0, 0.0, None),  # it does not count what was done
        (2.0, -500.0, None),  # it began again
    ],
)
def test_a_phase_has_what_the_counter_rose_by_less_idle_power(seconds, joules, expected):
    assert phase_joules(phase(seconds, joules), idle_w=75.0, step_s=0.1) == expected


def test_a_gpu_counts_in_millijoules():
    nvml = Nvml()
    nvml.nvmlDeviceGetTotalEnergyConsumption = lambda handle: 1234567
    meter = machine_meter(Gpu(nvml, "handle"))
    assert meter.joules() == 1234.567
    assert not meter.own


def test_a_gpu_that_does_not_count_has_no_meter(tmp_path):
    nvml = Nvml(missing=("nvmlDeviceGetTotalEnergyConsumption",))
    assert machine_meter(Gpu(nvml, "handle"), tmp_path) is None


def powercap(root, **microjoules: int):
    for name, value in microjoules.items():
        zone = root / name.replace("_", "-", 1).replace("_", ":")
        zone.mkdir(exist_ok=True)
        (zone / "max_energy_range_uj").write_text("9999999\n")
        (zone / "energy_uj").write_text(f"{value}\n")


def test_rapl_sums_the_packages_and_survives_their_overflow(tmp_path):
    powercap(tmp_path, intel_rapl_0=5_000_000, intel_rapl_1=1_000_000)
    powercap(tmp_path, intel_rapl_0_0=77)  # a part of package 0
    meter = machine_meter(None, tmp_path)
    assert meter.joules() == 0
    powercap(tmp_path, intel_rapl_0=7_000_000, intel_rapl_1=1_500_000)
    assert meter.joules() == 2.5
    powercap(tmp_path, intel_rapl_0=1_000_000)  # over 9,999,999 and on
    assert meter.joules() == 6.5


@pytest.mark.parametrize("damage", ["missing", "forbidden", "nonsense"])
def test_rapl_that_cannot_be_read_is_none(tmp_path, damage):
    powercap(tmp_path, intel_rapl_0=1)
    file = tmp_path / "intel-rapl:0/energy_uj"
    if damage == "missing":
        file.unlink()
    elif damage == "nonsense":
        file.write_text("much")
    elif os.getuid() == 0:
        pytest.skip("root may read everything")
    else:
        file.chmod(0)
    assert machine_meter(None, tmp_path) is None


def test_no_counter_at_all_is_none(tmp_path):
    assert machine_meter(None, tmp_path) is None


@pytest.mark.parametrize(
    ("size", "nanojoules", "joules"), [(464, 25 * 10**8, 2.5), (464, 0, None), (296, 7, None)]
)
def test_a_macs_process_has_its_energy_in_the_newest_record(size, nanojoules, joules):
    counters = [3] * ((size - 16) // 8)
    if size == 464:
        counters[(336 - 16) // 8] = nanojoules
    assert parse_joules(bytes(16) + struct.pack(f"={len(counters)}Q", *counters)) == joules


@pytest.mark.skipif(os.uname().sysname == "Darwin", reason="there the process has one")
def test_other_systems_have_no_energy_of_a_process():
    assert process_joules(os.getpid()) is None


def watched(*phases: tuple[str, float, float]) -> SimpleNamespace:
    """Phases with the counter's values at their starts; the last one is the end."""
    made = [
        {"phase": name, "start_s": t_s, "start_j": joules, "end_s": end, "end_j": end_j}
        for (name, t_s, joules), (_, end, end_j) in pairwise(phases)
    ]
    runs = sorted({int(name[-1]) for name, *_ in phases if name[-1].isdigit()})
    return SimpleNamespace(
        phases=made, conversation=SimpleNamespace(runs=[{"run": n} for n in runs])
    )


def test_a_cell_has_the_energy_of_each_run_and_of_the_whole_process():
    seen = watched(
        ("start", 0.0, 10.0),
        ("load", 1.0, 110.0),
        ("prefill-0", 3.0, 300.0),
        ("decode-0", 4.0, 800.0),
        ("idle", 6.0, 1400.0),
        ("prefill-1", 6.1, 1410.0),
        ("decode-1", 6.2, 1460.0),
        ("exit", 8.2, 2060.0),
        ("end", 9.0, 2100.0),
    )
    found = Energy(Counter(0, 1), Idle(90.0, 0.02), Idle(110.0, 0.03)).record(seen)
    assert (found["idle_w"], found["idle_before_w"], found["idle_after_w"]) == (100, 90, 110)
    assert (found["process_j"], found["process_s"], found["step_s"]) == (2090, 9.0, 0.03)
    assert found["runs"] == [
        {"prefill_j": pytest.approx(400), "decode_j": pytest.approx(400)},
        {"prefill_j": None, "decode_j": pytest.approx(400)},  # 0.1 s are too few steps
    ]


def test_the_energy_of_a_process_alone_has_no_idle_power():
    seen = watched(
        ("start", 0.0, 0.5), ("prefill-0", 1.0, 1.0), ("decode-0", 1.001, 3.0), ("end", 2.0, 7.0)
    )
    found = Energy(Counter(0, 1)).record(seen)
    assert found["idle_w"] is found["step_s"] is None
    assert found["runs"] == [{"prefill_j": 2.0, "decode_j": 4.0}]


@pytest.fixture
def cell(tmp_path) -> Cell:
    return Cell(tmp_path)


def test_without_a_counter_nothing_is_told(cell):
    cell.engine("answer()")
    assert cell.run().returncode == 0
    record = cell.record()
    if record["energy"]:
        pytest.skip(f"this machine has one: {record['energy']['source']}")
    assert {(row["prefill_j"], row["decode_j"]) for row in cell.rows()} == {("", "")}
    assert all("start_j" not in phase for phase in record["phases"])


def test_a_counter_is_read_at_the_marks_of_the_phases(tmp_path, monkeypatch):
    """The real runner, with the files of a powercap that a process of the test moves on."""
    powercap(tmp_path, intel_rapl_0=1)
    meter = machine_meter(None, tmp_path)
    values = iter(range(10**6))
    monkeypatch.setattr(meter, "joules", lambda: float(next(values)))
    monkeypatch.setattr(
        "kvpeak.runner.launch.machine_energy", lambda gpu: Energy(meter, Idle(0.0, 0.0))
    )
    monkeypatch.setattr(runner_energy, "idle", lambda meter: Idle(0.0, 0.0))
    from kvpeak.runner.cell import run_cell

    cell = Cell(tmp_path)
    cell.engine("answer()")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    assert run_cell(cell.request(), cell.out) == "ok"
    record = json.loads((cell.out / "cell.json").read_text())
    marks = [value for phase in record["phases"] for value in (phase["start_j"], phase["end_j"])]
    assert marks == sorted(marks)
    assert record["energy"]["process_j"] == marks[-1] - marks[0]
    assert [float(row["decode_j"]) > 0 for row in cell.rows()] == [True] * 3


def test_a_run_of_forty_turns_has_forty_first_tokens():
    """640 tokens are 600 steps; a plain run of 640 tokens has 639."""
    run = {"decode_j": "1200.0", "generated_tokens": "640"}
    turns = run | {"decode_s": "3.0", "decode_tok_s": "200.0"}
    plain = run | {"decode_s": "", "decode_tok_s": ""}
    assert _joules_of([turns], "decode_j", "generated_tokens") == 2.0
    assert _joules_of([plain], "decode_j", "generated_tokens") == pytest.approx(1200 / 639)


def test_the_joules_of_turns_are_added_and_one_that_is_too_short_is_not_guessed():
    def turn(number: int, seconds: float) -> dict:
        phase = {"phase": "decode-0", "turn": number, "start_s": 0.0, "end_s": seconds}
        return phase | {"start_j": 0.0, "end_j": 100.0 * seconds}

    watched = Watched(Conversation(0, 1))
    watched.phases = [turn(1, 2.0), turn(2, 3.0)]
    assert _of(watched, "decode-0", idle_w=20.0, step_s=0.1) == pytest.approx(5 * 80)
    watched.phases.append(turn(3, 0.5))
    assert _of(watched, "decode-0", idle_w=20.0, step_s=0.1) is None
