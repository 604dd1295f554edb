"""The energy of an Apple chip, by a library with the documented fields; one test is for a Mac only.

zeus-apple-silicon 1.1.0 documents AppleEnergyMonitor().get_cumulative_energy(), which returns an
AppleEnergyMetrics: int | None in millijoules, since some moment that stays the same.
"""

import json
import sys
import time
import tomllib

import pytest
from cells import Cell
from conftest import ROOT
from packaging.requirements import Requirement

from kvpeak.runner.cell import run_cell
from kvpeak.runner.energy import machine_energy
from kvpeak.system import chip_energy as module
from kvpeak.system import energy
from kvpeak.system.chip_energy import ChipEnergy, chip_energy
from kvpeak.system.energy import LIVE_STEP_S, Idle, idle, machine_meter

PACKAGE = "zeus_apple_silicon"
FIELDS = (
    *("cpu_total_mj", "efficiency_cores_mj", "performance_cores_mj", "efficiency_cluster_mj"),
    *("performance_cluster_mj", "efficiency_core_manager_mj", "performance_core_manager_mj"),
    *("dram_mj", "gpu_mj", "gpu_sram_mj", "ane_mj"),
)
LIBRARY = """
class AppleEnergyMetrics:
    def __init__(self, n):
        {others} = 7000 + n
        self.gpu_mj, self.cpu_total_mj, self.dram_mj = {gpu}, {cpu}, {dram}

class AppleEnergyMonitor:
    def __init__(self):
        self.n = 0

    def get_cumulative_energy(self):
        self.n += 1
        return AppleEnergyMetrics(self.n)
"""


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Make a text the library, on a Mac as far as the counters of energy know."""

    def write(text: str) -> None:
        (tmp_path / "site").mkdir()
        (tmp_path / "site" / f"{PACKAGE}.py").write_text(text)

    monkeypatch.delitem(sys.modules, PACKAGE, raising=False)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"))
    monkeypatch.syspath_prepend(tmp_path / "site")
    monkeypatch.setattr(energy, "on_mac", lambda: True)
    yield write
    sys.modules.pop(PACKAGE, None)


def library(gpu: str = "1000 + n", cpu: str = "5000 + 3 * n", dram: str = "2000 + n") -> str:
    """Its parts by the number of the reading; the fields that are not counted move too."""
    others = " = ".join(f"self.{field}" for field in FIELDS)
    return LIBRARY.format(others=others, gpu=gpu, cpu=cpu, dram=dram)


# Two seconds are 40 readings; what comes then is followed by a rest of 20 ms, as others have seen.
BATCH = "5000 + 900 * ((n + 37) // 40) + 8 * ((n + 36) // 40)"


@pytest.mark.parametrize(
    ("parts", "counted", "first_j"),
    [
        ({}, "GPU + processor + DRAM", 8.005),
        ({"dram": "None"}, "GPU + processor", 6.004),
        ({"gpu": "1000"}, "GPU + processor + DRAM", 8.004),  # it rests
        ({"gpu": "None"}, "processor + DRAM", 7.004),
        ({"cpu": BATCH, "dram": BATCH}, "GPU", 1.001),
        ({"cpu": "5000"}, "GPU + DRAM", 3.002),  # it is told never
        ({"cpu": "None", "dram": "None"}, "GPU", 1.001),
        ({"dram": "None if n == 5 else 2000 + n"}, "GPU + processor", 6.004),
    ],
)
def test_the_parts_that_are_told_at_once_are_summed_and_named(install, parts, counted, first_j):
    install(library(**parts))
    meter = machine_meter(None)
    assert meter.source == f"IOReport, the whole {counted}"
    assert meter.joules() == first_j
    assert not meter.own


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(library(gpu="None", cpu="None"), id="the DRAM alone"),
        pytest.param(library(gpu="None", cpu=BATCH), id="a processor told too late"),
        pytest.param(LIBRARY.format(others="n", gpu=1, cpu=1, dram="missing"), id="no figures"),
        pytest.param("", id="no monitor"),
        pytest.param("raise OSError('no IOReport')", id="it cannot be loaded"),
        pytest.param("import ctypes; ctypes.string_at(0)", id="a null pointer"),
        pytest.param("print('hello')\n" + library(), id="it prints"),
        pytest.param("print(5)\n" + library(), id="it prints a number"),
        pytest.param(library() + "import atexit, os; atexit.register(os.abort)", id="a bad end"),
    ],
)
def test_a_library_that_is_broken_or_tells_neither_is_no_counter(install, text):
    install(text)
    assert machine_energy(None) is None


def test_a_library_that_hangs_is_no_counter(install, monkeypatch):
    monkeypatch.setattr(module, "READS_WITHIN_S", 0.5)
    install("import time; time.sleep(60)")
    assert machine_energy(None) is None


def test_a_library_that_is_not_there_is_no_counter(install):
    if sys.platform == "darwin":
        pytest.skip("here it may be there")
    assert machine_meter(None) is None


def test_other_systems_do_not_ask_the_library(install, monkeypatch, tmp_path):
    install(library())
    monkeypatch.setattr(energy, "on_mac", lambda: False)
    assert machine_meter(None, tmp_path) is None


def test_one_that_works_in_the_other_process_alone_is_no_counter(install):
    used = "used = __import__('pathlib').Path(__file__ + '.used')"
    install(f"{used}\nif used.exists(): raise RuntimeError\nused.touch()\n{library()}")
    assert chip_energy() is None


def test_a_reading_that_fails_is_not_known():
    class Monitor:
        def get_cumulative_energy(self):
            raise RuntimeError("no sample")

    assert ChipEnergy(Monitor(), [module.GPU]).joules() is None
    assert ChipEnergy(object(), [module.GPU]).joules() is None


class Live:
    """A counter that is as of the moment of reading, and the clock that it goes by."""

    source, own, live = "a counter of a test", False, True

    def __init__(self, *joules: float | None):
        self.now, self._joules = 10.0, iter(joules)

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def joules(self) -> float | None:
        return next(self._joules)


@pytest.mark.parametrize(
    ("joules", "watts"),
    [
        ((5.0, 7.5), 2.5),
        ((5.0, 5.0), 0.0),
        ((None, 7.5), None),
        ((5.0, None), None),
        ((5, 4), None),
    ],
)
def test_the_idle_power_of_a_live_counter_takes_two_readings(joules, watts):
    meter = Live(*joules)
    expected = None if watts is None else Idle(watts, LIVE_STEP_S)
    assert idle(meter, meter.clock, meter.sleep) == expected


def run(tmp_path, monkeypatch) -> Cell:
    cell = Cell(tmp_path)
    cell.engine("answer()")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    assert run_cell(cell.request(), cell.out) == "ok"
    return cell


def test_a_cell_has_what_the_chip_took(install, tmp_path, monkeypatch):
    install(library())
    monkeypatch.setattr(energy, "IDLE_S", 0.0)
    monkeypatch.setattr(energy, "LIVE_STEP_S", 0.0)
    record = json.loads((run(tmp_path, monkeypatch).out / "cell.json").read_text())["energy"]
    assert record["source"] == "IOReport, the whole GPU + processor + DRAM"
    assert record["process_j"] > 0


def test_a_broken_library_never_costs_a_cell(install, tmp_path, monkeypatch):
    install("import ctypes; ctypes.string_at(0)")
    cell = run(tmp_path, monkeypatch)
    if cell.record()["energy"]:
        pytest.skip("the process has a counter of its own")
    assert {(row["prefill_j"], row["decode_j"]) for row in cell.rows()} == {("", "")}


@pytest.mark.parametrize("python", ["3.11", "3.12", "3.13", "3.14"])
@pytest.mark.parametrize("system", ["darwin", "linux"])
@pytest.mark.parametrize("processor", ["arm64", "x86_64"])
def test_the_library_is_installed_where_it_has_a_wheel(python, system, processor):
    machine = {
        "sys_platform": system,
        "platform_machine": processor,
        "python_version": python,
        "python_full_version": f"{python}.0",
    }
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    pins = (ROOT / "requirements/runtime.txt").read_text().splitlines()
    for lines in (extras["pipeline"], pins):
        line = next(line for line in lines if line.startswith("zeus-apple-silicon"))
        wanted = Requirement(line.removesuffix("\\")).marker.evaluate(machine)
        assert wanted == (system == "darwin" and processor == "arm64" and python != "3.14")


@pytest.mark.skipif(sys.platform != "darwin", reason="asks the library itself, which is for macOS")
def test_the_real_library_counts_what_a_mac_takes():
    library = pytest.importorskip(PACKAGE, reason="it has no wheel for this Python or processor")
    meter = chip_energy()
    if not meter:
        pytest.skip("this Mac tells no energy: a virtual one?")
    assert set(FIELDS) <= set(dir(library.AppleEnergyMetrics))
    before, end = meter.joules(), time.monotonic() + 1.0
    while time.monotonic() < end:
        after = meter.joules()
    assert after >= before > 0
    assert "processor" not in meter.source or after > before
