"""The machine's state from recorded texts, and the flags that follow from it."""

import os
import re
import subprocess
import sys
from pathlib import Path
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


def meminfo() -> dict[str, float]:
    """/proc/meminfo in MiB; it counts in kibibytes."""
    lines = (line.split() for line in Path("/proc/meminfo").read_text().splitlines())
    return {name.rstrip(":"): int(number) / 1024 for name, number, *_ in lines}


@pytest.mark.skipif(sys.platform != "linux", reason="reads Linux's /proc")
def test_memory_and_swap_are_those_of_the_kernel_in_mib():
    """Memory comes and goes meanwhile, but not half of it."""
    before, state, after = meminfo(), machine.state(None), meminfo()
    limits = cgroup.memory_limits()
    assert state["memory_mib"] == pytest.approx(before["MemTotal"])
    assert machine.total_mib() == pytest.approx(
        min([before["MemTotal"], *(limit for limit, _ in limits)])
    )
    available = [min([info["MemAvailable"], *(f for _, f in limits)]) for info in (before, after)]
    assert 0.7 * min(available) < state["available_mib"] < 1.4 * max(available)
    swapped = [info["SwapTotal"] - info["SwapFree"] for info in (before, after)]
    assert min(swapped) - 64 < state["swap_used_mib"] < max(swapped) + 64


@pytest.mark.skipif(sys.platform != "linux", reason="reads Linux's /proc")
def test_busy_seconds_are_those_of_all_processors_since_boot():
    """/proc/stat: user, nice, system, idle, iowait, irq, softirq, steal (proc_stat(5))."""

    def busy() -> float:
        ticks = list(map(int, Path("/proc/stat").read_text().split()[1:9]))
        return sum(ticks[:3] + ticks[5:]) / os.sysconf("SC_CLK_TCK")

    before, found, after = busy(), machine.state(None)["cpu_busy_s"], busy()
    assert before - 0.1 <= found <= after + 0.1


def test_what_a_control_group_leaves_is_what_is_available(monkeypatch):
    memory = SimpleNamespace(total=16_000 * MIB, available=9_000 * MIB)
    monkeypatch.setattr(machine.psutil, "virtual_memory", lambda: memory)
    monkeypatch.setattr(machine.mac, "on_mac", lambda: False)
    for limits, available, total in (
        ([], 9_000, 16_000),
        ([(8_000, 300), (32_000, 20_000)], 300, 8_000),
        ([(64_000, 60_000)], 9_000, 16_000),
    ):
        monkeypatch.setattr(machine, "memory_limits", lambda limits=limits: limits)
        assert (machine.available_mib(), machine.total_mib()) == (available, total)


def test_on_a_mac_its_own_count_of_what_is_available_stands(monkeypatch):
    memory = SimpleNamespace(total=16_000 * MIB, available=9_000 * MIB)
    monkeypatch.setattr(machine.psutil, "virtual_memory", lambda: memory)
    monkeypatch.setattr(machine, "memory_limits", lambda: [])
    monkeypatch.setattr(machine.mac, "on_mac", lambda: True)
    for counted, available in ((11_000.0, 11_000.0), (None, 9_000.0)):
        monkeypatch.setattr(machine.mac, "available_mib", lambda total, counted=counted: counted)
        assert machine.available_mib() == available


def test_machines_are_told_apart_by_their_memory():
    one, other = machine.machine_id(8 << 30), machine.machine_id(16 << 30)
    assert one != other
    assert one == machine.machine_id(8 << 30)
    assert re.fullmatch("[0-9a-f]{12}", one)


def test_a_machines_name_says_what_it_is_made_of():
    state = machine.state({"name": "NVIDIA H200"})
    gib = round(state["memory_mib"] / 1024)
    assert state["name"] == f"{state['cpu']}, {os.cpu_count()} CPUs, {gib} GiB, NVIDIA H200"
    assert state["gpu"] == {"name": "NVIDIA H200"}
    assert machine.state(None)["name"] + ", NVIDIA H200" == state["name"]


USER = "import time\nwhile time.process_time() < {}: pass\n"
SYSTEM = "import os\nwhile os.times().system < 0.3: os.stat('/')\n"
TREE = """
import os, subprocess, sys
subprocess.run([sys.executable, "-c", {ended!r}])
child = subprocess.Popen([sys.executable, "-c", {lives!r}], stdout=-1, stdin=-1)
lives = float(child.stdout.readline())
print(sum(os.times()[:4]) + lives, flush=True)
sys.stdin.read()
"""


def test_processor_seconds_of_a_tree_count_its_children_that_ended_and_that_live():
    """The child that ended was mostly in the system, the one that lives in its own code."""
    lives = (
        USER.format(0.5) + "print(time.process_time(), flush=True); import sys; sys.stdin.read()"
    )
    code = USER.format(0.3) + TREE.format(ended=SYSTEM, lives=lives)
    top = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    expected = float(top.stdout.readline())
    seconds = machine.tree_cpu_s(top.pid)
    top.communicate()
    assert expected > 0.3 + 0.3 + 0.5 - 0.05
    assert seconds == pytest.approx(expected, abs=0.15)
    assert machine.tree_cpu_s(top.pid) is None


class Counted:
    """A process that took a second, whose descendants are scripted: one list for each look."""

    def __init__(self, number: int, looks=()):
        self.number, self.looks = number, iter(looks)

    def __hash__(self):
        return self.number

    def __eq__(self, other):
        return self.number == other.number

    def cpu_times(self) -> tuple[float, ...]:
        return (0.25, 0.25, 0.25, 0.25, 99.0)

    def children(self, recursive: bool) -> list["Counted"]:
        assert recursive
        return [Counted(number) for number in next(self.looks)]


@pytest.mark.parametrize(
    ("looks", "seconds"),
    [
        (([2], [2]), 2),
        (([2], [2, 3], [2, 3], [2, 3]), 3),  # one came while they were counted
        (([2, 3], [2], [2], [2]), 2),  # one went
        (([2], [3], [3], [3]), 2),  # one came and one went
        (([2], [3]) * 10, 2),  # always
    ],
)
def test_what_changed_while_it_was_counted_is_counted_again(monkeypatch, looks, seconds):
    monkeypatch.setattr(machine.psutil, "Process", lambda pid: top)
    top = Counted(1, looks)
    assert machine.tree_cpu_s(1) == seconds


def test_swap_and_load_are_those_of_the_system(monkeypatch):
    monkeypatch.setattr(machine.psutil, "swap_memory", lambda: SimpleNamespace(used=3 * MIB // 2))
    monkeypatch.setattr(os, "getloadavg", lambda: (3.0, 2.0, 1.0))
    state = machine.state(None)
    assert (state["swap_used_mib"], state["load_1m"]) == (1.5, 3.0)


def test_what_a_mac_says_of_itself_stands(monkeypatch):
    said = {"cpu": "Apple M9", "gpu_cores": 40, "low_power": True, "swap_used_mib": 7.0}
    monkeypatch.setattr(machine.mac, "on_mac", lambda: True)
    monkeypatch.setattr(machine.mac, "state", lambda: said)
    monkeypatch.setattr(machine.mac, "available_mib", lambda total: 5.0)
    monkeypatch.setattr(machine.platform, "mac_ver", lambda: ("26.1", ("", "", ""), "arm64"))
    state = machine.state(None)
    assert state["release"] == "26.1"
    assert {key: state[key] for key in said} == said
    gib = round(state["memory_mib"] / 1024)
    assert state["name"] == f"Apple M9, {os.cpu_count()} CPUs, {gib} GiB, 40 GPU cores"
    assert state["available_mib"] == 5


@pytest.mark.parametrize(
    ("profile", "low_power"), [("low-power", True), ("balanced", False), ("performance", False)]
)
def test_low_power_is_one_of_the_platform_s_profiles(tmp_path, profile, low_power):
    found = linux(tmp_path, {"sys/firmware/acpi/platform_profile": f"{profile}\n"})
    assert found["low_power"] is low_power


@pytest.mark.parametrize(
    ("files", "on_battery"),
    [
        ({"BAT0/type": "Battery", "BAT0/status": "Discharging"}, True),
        # a battery may say that it is online, and a charger may have a status
        ({"B/type": "Battery", "B/status": "Discharging", "B/online": "1"}, True),
        ({"AC/type": "Mains", "AC/online": "0", "AC/status": "Discharging"}, False),
        ({"AC/type": "Mains", "AC/online": "1"}, False),
    ],
)
def test_a_battery_is_known_by_its_type(tmp_path, files, on_battery):
    found = linux(tmp_path, {f"{SUPPLY}/{name}": text for name, text in files.items()})
    assert found["on_battery"] is on_battery


BEFORE = {"cpu_busy_s": 100.0, "swap_used_mib": 10.0, "throttle_count": 5, "gpu": None}
QUIET = SimpleNamespace(pid=1, elapsed_s=10.0, wall_s=10.0, cpu_s=20.0)


def found_flags(before=(), after=(), ended=(), slowed=()) -> list[str]:
    ended = SimpleNamespace(**(vars(QUIET) | dict(ended)))
    before = BEFORE | dict(before)
    after = BEFORE | {"cpu_busy_s": 122.0} | dict(after)
    return flags(before, after, ended, list(slowed))


def test_a_quiet_machine_has_no_flags():
    assert found_flags() == []


def test_what_a_system_does_not_count_is_no_flag():
    unknown = {"throttle_count": None, "swap_used_mib": None, "cpu_busy_s": None}
    assert found_flags(before=unknown, after=unknown) == []
    for key in unknown:
        assert found_flags(before={key: None}, after={key: 1e6}) == []
        assert found_flags(before={key: 1e6}, after={key: None}) == []
    missing = {key: value for key, value in BEFORE.items() if key not in unknown}
    assert flags(missing, missing, QUIET, []) == []


@pytest.mark.parametrize(
    ("changes", "count"),
    [
        ({"after": {"swap_used_mib": 10.99}}, 0),
        ({"after": {"swap_used_mib": 11.0}}, 1),
        ({"after": {"throttle_count": 6}}, 1),
        ({"after": {"throttle_count": 5}}, 0),
        ({"after": {"cpu_busy_s": 125.0}}, 0),  # 5 of 10 seconds were not its own
        ({"after": {"cpu_busy_s": 125.1}}, 1),
        ({"ended": {"wall_s": 11.0}}, 0),
        ({"ended": {"wall_s": 11.1}}, 1),
        ({"ended": {"wall_s": 8.9}}, 1),
        ({"ended": {"elapsed_s": 0.0, "wall_s": 0.0, "cpu_s": 0.0}}, 0),
        ({"before": {"memory_pressure": 1}}, 0),
        ({"before": {"memory_pressure": 2}}, 1),
        ({"after": {"memory_pressure": 4}}, 1),
    ],
)
def test_where_a_disturbance_begins(changes, count):
    assert len(found_flags(**changes)) == count


def test_pressure_is_named():
    assert found_flags(after={"memory_pressure": 4}) == [
        "memory: macOS's memory pressure was at critical after the cell"
    ]
    assert found_flags(before={"memory_pressure": 3}) == [
        "memory: macOS's memory pressure was at 3 before the cell"
    ]


def test_a_jump_forward_of_the_wall_clock_has_its_sign():
    assert found_flags(ended={"wall_s": 3610.0}) == [
        "clock: the wall clock jumped by +3600.0 s, or the machine slept"
    ]


def test_processes_that_were_on_the_gpu_before_count_too_and_the_own_one_does_not():
    others = {"processes": [{"pid": pid} for pid in (7, 1)]}
    found = found_flags(before={"gpu": others}, after={"gpu": GPU})
    assert found == ["gpu: other processes were on the GPU: process 7, process 9"]
    assert found_flags(before={"gpu": {"processes": [{"pid": 1}]}}) == []


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
