"""The machine's state from recorded texts, and the flags that follow from it."""

import os
import sys
from types import SimpleNamespace

import pytest

from kvpeak.base.numbers import MIB
from kvpeak.system import cgroup, machine
from kvpeak.system.machine import flags, linux_state, oom_kills


def linux(root, files: dict[str, str]) -> dict:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return linux_state(root)


CPU0, SUPPLY = "sys/devices/system/cpu/cpu0", "sys/class/power_supply"


def test_linux_files_give_cpu_governor_heat_and_power(tmp_path):
    found = linux(
        tmp_path,
        {
            "proc/cpuinfo": "processor\t: 0\nmodel name\t: Some CPU @ 3.00GHz\n"
            "model name\t: again\n",
            f"{CPU0}/cpufreq/scaling_governor": "powersave\n",
            f"{CPU0}/thermal_throttle/core_throttle_count": "12\n",
            "sys/devices/system/cpu/cpu1/cpufreq/scaling_governor": "performance\n",
            "sys/devices/system/cpu/cpu1/thermal_throttle/core_throttle_count": "30\n",
            "sys/class/thermal/thermal_zone0/temp": "41000\n",
            "sys/class/thermal/thermal_zone1/temp": "53500\n",
            "sys/firmware/acpi/platform_profile": "low-power\n",
            f"{SUPPLY}/AC/type": "Mains\n",
            f"{SUPPLY}/AC/online": "0\n",
            f"{SUPPLY}/BAT0/type": "Battery\n",
            f"{SUPPLY}/BAT0/status": "Discharging\n",
        },
    )
    assert found == {
        "on_battery": True,
        "low_power": True,
        "governor": "performance, powersave",
        "throttle_count": 42,
        "temperature_c": 53.5,
        "cpu": "Some CPU @ 3.00GHz",
    }


@pytest.mark.parametrize(
    ("online", "status", "on_battery"),
    [
        ("1", "Charging", False),
        ("1", "Discharging", False),
        ("0", "Full", False),
        ("0", "Discharging", True),
    ],
)
def test_linux_is_on_battery_when_it_discharges_without_mains(tmp_path, online, status, on_battery):
    files = {"AC/type": "Mains", "AC/online": online, "BAT0/type": "Battery", "BAT0/status": status}
    found = linux(tmp_path, {f"{SUPPLY}/{name}": text for name, text in files.items()})
    assert found["on_battery"] is on_battery


def test_linux_without_such_files_does_not_say(tmp_path):
    assert set(linux(tmp_path, {}).values()) == {None}


def test_this_machine_has_a_state():
    state = machine.state(None)
    assert state["cpu"] and state["cpus"] == os.cpu_count()
    assert 0 < state["available_mib"] <= machine.total_mib() <= state["memory_mib"]
    assert len(state["machine_id"]) == 12


BEFORE = {"cpu_busy_s": 100.0, "swap_used_mib": 10.0, "throttle_count": 5, "gpu": None}
QUIET = SimpleNamespace(pid=1, elapsed_s=10.0, wall_s=10.0, cpu_s=20.0)


def found_flags(before=(), after=(), ended=(), slowed=()) -> list[str]:
    ended = SimpleNamespace(**(vars(QUIET) | dict(ended)))
    before = BEFORE | dict(before)
    after = BEFORE | {"cpu_busy_s": 122.0} | dict(after)
    return flags(before, after, ended, list(slowed))


def test_a_quiet_machine_has_no_flags():
    assert found_flags() == []


GPU = {"processes": [{"pid": 1, "used_mib": 5.0}, {"pid": 9, "used_mib": 7.0}]}


@pytest.mark.parametrize(
    ("changes", "flag"),
    [
        ({"before": {"on_battery": True}}, "battery: on battery power before the cell"),
        ({"after": {"on_battery": True}}, "battery: on battery power after the cell"),
        ({"before": {"low_power": True}}, "low power: low-power mode was on before the cell"),
        ({"after": {"thermal_pressure": 2}}, "throttled: thermal pressure level 2 after the cell"),
        (
            {"after": {"throttle_count": 8}},
            "throttled: the processors were slowed for heat 3 times during the cell",
        ),
        ({"slowed": ["hardware slowdown"]}, "throttled: GPU clocks held down: hardware slowdown"),
        ({"after": {"swap_used_mib": 74.0}}, "swap: the used swap grew by 64 MiB during the cell"),
        (
            {"after": {"cpu_busy_s": 133.0}},
            "load: other processes kept 1.3 processors busy during the cell",
        ),
        ({"after": {"gpu": GPU}}, "gpu: other processes were on the GPU: process 9"),
        (
            {"ended": {"wall_s": -3590.0}},
            "clock: the wall clock jumped by -3600.0 s, or the machine slept",
        ),
    ],
)
def test_each_disturbance_has_its_flag_with_the_reason(changes, flag):
    assert found_flags(**changes) == [flag]


def test_less_swap_than_before_is_no_flag():
    assert found_flags(after={"swap_used_mib": 2.0}) == []


def test_kills_of_the_kernel_are_counted(tmp_path):
    (tmp_path / "vmstat").write_text("nr_free_pages 5\noom_kill 3\nworkingset_nodes 1\n")
    assert oom_kills(tmp_path / "vmstat") == 3
    assert oom_kills(tmp_path / "none") == 0


def group(root, own: str, folders: dict[str, dict[str, str]]) -> list[tuple[float, float]]:
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text(own)
    for folder, files in folders.items():
        for name, text in files.items():
            (root / "sys/fs/cgroup" / folder).mkdir(parents=True, exist_ok=True)
            (root / "sys/fs/cgroup" / folder / name).write_text(text)
    return cgroup.memory_limits(root)


def test_version_2_groups_count_with_all_that_are_above_them(tmp_path):
    found = group(
        tmp_path,
        "0::/user/job\n",
        {
            "": {"cgroup.controllers": "memory"},
            "user": {
                "memory.max": str(900 * MIB),
                "memory.current": str(500 * MIB),
                "memory.stat": f"anon 1\ninactive_file {100 * MIB}\n",
            },
            "user/job": {"memory.max": "max", "memory.current": "1", "memory.stat": "anon 1\n"},
        },
    )
    assert found == [(900, 500)]


def test_version_1_groups_without_a_limit_do_not_count(tmp_path):
    found = group(
        tmp_path,
        "5:cpu:/x\n4:memory:/job\n0::/\n",
        {
            "memory": {
                "memory.limit_in_bytes": "9223372036854771712",
                "memory.usage_in_bytes": "5",
                "memory.stat": "total_inactive_file 0\n",
            },
            "memory/job": {
                "memory.limit_in_bytes": str(200 * MIB),
                "memory.usage_in_bytes": str(50 * MIB),
                "memory.stat": f"inactive_file 1\ntotal_inactive_file {10 * MIB}\n",
            },
        },
    )
    assert found == [(200, 160)]


def test_without_control_groups_there_is_no_limit(tmp_path):
    assert cgroup.memory_limits(tmp_path) == []


@pytest.mark.skipif(sys.platform != "linux", reason="Linux's control groups")
def test_the_groups_of_this_process_can_be_read():
    assert all(0 <= free <= limit for limit, free in cgroup.memory_limits())
