"""Waiting for a footprint that falls late, on sequences like the one that was reported of Metal."""

import mlx.core as mx
import pytest

from kvpeak.live import device
from kvpeak.live.settle import LONGEST_S, Process, Settling, measured_lag_s, settling

GB = 1000.0  # MiB, about


class Machine:
    """A process whose footprint stands for `lag_s` after bytes were freed; `beside` MLX it holds
    300 MiB.
    """

    def __init__(self, lag_s: float):
        self.lag_s, self.now, self.beside, self.held = lag_s, 0.0, 300.0, 0.0
        self._freed: list[tuple[float, float]] = []  # (when, MiB)

    def free(self, mib: float) -> None:
        self.held -= mib
        self._freed.append((self.now, mib))

    def footprint(self) -> float:
        late = sum(mib for when, mib in self._freed if self.now - when < self.lag_s)
        return self.beside + self.held + late

    def process(self) -> Process:
        return Process(self.footprint, lambda: self.held, lambda: self.now, self.pause)

    def pause(self, seconds: float) -> None:
        self.now += seconds


def lag_of(machine: Machine) -> float:
    def allocate() -> None:
        machine.held += 64

    return measured_lag_s(machine.process(), allocate, lambda: machine.free(64))


@pytest.mark.parametrize("lag_s", [0.0, 0.5, 4.0])
def test_the_lag_is_measured_by_a_trial(lag_s):
    assert lag_of(Machine(lag_s)) == pytest.approx(lag_s, abs=0.03)


def test_a_footprint_that_never_falls_is_not_waited_for_any_longer():
    assert lag_of(Machine(1e9)) == pytest.approx(LONGEST_S, abs=0.03)


def test_a_phase_begins_when_what_was_freed_before_is_gone():
    """15 GB freed at once, gone four seconds later."""
    machine = Machine(4.0)
    fall = Settling(machine.process(), lag_of(machine))
    machine.held = 15 * GB
    machine.free(14 * GB)
    assert machine.footprint() == 15.3 * GB
    said = fall.wait()
    assert said == {"settled_s": pytest.approx(4.0, abs=0.05), "unsettled_mib": 0.0}
    assert machine.footprint() == 1.3 * GB
    assert fall.wait()["settled_s"] == 0.0


def test_without_a_lag_nothing_is_waited_for():
    machine = Machine(0.0)
    fall = Settling(machine.process(), lag_of(machine))
    machine.held = 15 * GB
    machine.free(14 * GB)
    machine.beside = 900.0  # kernels, a tokenizer: it counts to the process from now on
    before = machine.now
    assert fall.wait() == {"settled_s": 0.0, "unsettled_mib": 600.0}
    assert fall.wait()["unsettled_mib"] == 0.0
    assert machine.now == before


def test_what_does_not_fall_is_waited_for_once_and_said():
    machine = Machine(1.0)
    fall = Settling(machine.process(), lag_of(machine))
    machine.beside = 900.0
    said = fall.wait()
    assert said["settled_s"] == pytest.approx(1.5, abs=0.1)
    assert said["unsettled_mib"] == 600.0
    assert fall.wait() == {"settled_s": 0.0, "unsettled_mib": 0.0}


def test_only_metal_is_waited_for():
    found = settling()
    assert (found is None) == (device.accelerator() != "metal")


@pytest.mark.skipif(device.accelerator() != "metal", reason="measures Metal's own lag")
def test_metals_lag_is_measured_here():
    fall = settling()
    assert 0 <= fall.lag_s < LONGEST_S
    buffer = mx.zeros((256 << 20,), mx.uint8)
    mx.eval(buffer)
    del buffer
    mx.clear_cache()
    assert fall.wait()["unsettled_mib"] == 0.0
