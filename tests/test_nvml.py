"""The NVML reader against what nvidia-ml-py's functions return on one GPU."""

import pytest
from fake_nvml import UUID, Nvml, process

from kvpeak.base.errors import UserError
from kvpeak.system.nvml import chosen_gpu, open_gpu, reason_names

ENGINE, OTHER = 4242, 777


def test_the_peak_of_a_process_is_the_largest_sample_of_that_process():
    nvml = Nvml()
    gpu = open_gpu("0", nvml)
    seen = []
    for mib in (500, 13480, 9192):
        nvml.processes = [process(OTHER, 20000), process(ENGINE, mib)]
        seen.append(gpu.sample(ENGINE))
    assert seen == [500, 13480, 9192]
    assert gpu.peak() == (13480, "NVML, the process, sampled (a lower bound)")


def test_a_process_that_has_not_reached_the_gpu_has_no_memory_there():
    gpu = open_gpu("0", Nvml())
    assert gpu.sample(ENGINE) is None
    assert gpu.peak() == (None, None)


@pytest.mark.parametrize("processes", [[], [process(1, 9000)], [process(ENGINE, None)]])
def test_where_the_process_cannot_be_seen_the_growth_of_the_device_stands_in(processes):
    nvml = Nvml()
    gpu = open_gpu("0", nvml)
    nvml.processes = processes
    for nvml.used in (600, 9792, 1000):
        assert gpu.sample(ENGINE) is None
    assert gpu.peak() == (9192, "NVML, growth of the whole device, sampled (a lower bound)")


def test_the_state_names_the_card_its_clocks_and_its_processes():
    nvml = Nvml()
    nvml.processes = [process(OTHER, 20000), process(ENGINE, None)]
    assert open_gpu(UUID, nvml).state() == {
        "name": "NVIDIA H200",
        "uuid": UUID,
        "driver": "570.86.15",
        "memory_mib": 143771,
        "used_mib": 600,
        "sm_clock_mhz": 1980,
        "memory_clock_mhz": 3201,
        "temperature_c": 34,
        "power_w": 76.5,
        "clock_reasons": ["idle"],
        "processes": [{"pid": OTHER, "used_mib": 20000}, {"pid": ENGINE, "used_mib": None}],
    }


def test_what_a_card_does_not_tell_is_null():
    missing = (
        "nvmlDeviceGetMemoryInfo",
        "nvmlDeviceGetPowerUsage",
        "nvmlDeviceGetCurrentClocksEventReasons",
        "nvmlDeviceGetComputeRunningProcesses",
        "nvmlDeviceGetTemperature",
    )
    gpu = open_gpu("0", Nvml(missing))
    gpu.sample_clocks()
    state = gpu.state()
    assert state["memory_mib"] is state["power_w"] is state["clock_reasons"] is None
    assert (state["temperature_c"], state["processes"], gpu.slowed()) == (None, [], [])


def test_clocks_held_down_at_any_sample_are_remembered_and_idleness_is_no_fault():
    nvml = Nvml()
    gpu = open_gpu("0", nvml)
    for nvml.reasons in (0x1, 0x4, 0x40, 0x8, 0x0):
        gpu.sample_clocks()
    assert gpu.slowed() == ["hardware slowdown", "hardware thermal slowdown"]
    assert reason_names(0x5) == ["idle", "software power cap"]


@pytest.mark.parametrize(
    ("request_gpu", "visible", "chosen"),
    [
        (None, None, "0"),
        (None, "3,1", "3"),
        (None, UUID, UUID),
        (None, "", None),
        (None, "-1", None),
        (2, None, "2"),
        (2, "0", "2"),
    ],
)
def test_a_cell_gets_the_gpu_it_names_or_the_first_visible_one(request_gpu, visible, chosen):
    assert chosen_gpu(request_gpu, visible) == chosen


def test_no_gpu_is_opened_without_a_driver_or_when_all_are_hidden():
    assert open_gpu("0", Nvml(("nvmlInit",))) is None
    assert open_gpu(None, Nvml()) is None


def test_a_gpu_that_is_not_there_is_one_line():
    with pytest.raises(UserError, match="GPU 5: Not Supported; this machine has 1, from 0"):
        open_gpu("5", Nvml())


def test_the_functions_used_are_those_of_nvidia_ml_py():
    pynvml = pytest.importorskip("pynvml")
    for name in dir(Nvml):
        if name.startswith(("nvml", "NVML_")):
            assert hasattr(pynvml, name), name
