"""What macOS says, from texts and bytes in its formats; the last tests run on a Mac only."""

import os
import struct
import subprocess
import sys

import pytest

from kvpeak.base.numbers import GIB, MIB
from kvpeak.system import mac, machine
from kvpeak.system.exit_watch import NOTE_EXIT_DETAIL, NOTE_EXIT_MEMORY, memory_kill, watch_exit
from kvpeak.system.process_memory import MacMemory, memory_of

# In the formats of macOS's commands: pmset(1), notifyutil(1), ioreg(8), sysctl(8).
TEXTS = {
    "batt": "Now drawing from 'AC Power'\n -InternalBattery-0 (id=1234567)\t100%; charged;\n",
    "pmset": "System-wide power settings:\nCurrently in use:\n standby              1\n"
    " lowpowermode         0\n sleep                1\n",
    "thermal": "com.apple.system.thermalpressurelevel 0\n",
    "gpu": "+-o AGXAcceleratorG13X  <class AGXAcceleratorG13X, id 0x100000454>\n    {\n"
    '      "gpu-core-count" = 32\n      "model" = "Apple M1 Max"\n    }\n',
    "sysctl": "machdep.cpu.brand_string: Apple M1 Max\nkern.osproductversion: 26.0.1\n"
    "kern.memorystatus_level: 83\nkern.memorystatus_vm_pressure_level: 1\n"
    "vm.swapusage: total = 2048.00M  used = 1024.50M  free = 1023.50M  (encrypted)\n"
    "iogpu.wired_limit_mb: 0\n",
}


def test_commands_give_power_heat_memory_chip_and_system():
    assert mac.parse(TEXTS) == {
        "on_battery": False,
        "low_power": False,
        "thermal_pressure": 0,
        "memory_level": 83,
        "memory_pressure": 1,
        "gpu_wired_limit_mib": 0,
        "gpu_cores": 32,
        "cpu": "Apple M1 Max",
        "release": "26.0.1",
        "swap_used_mib": 1024.5,
    }


BATTERY = "Now drawing from 'Battery Power'\n -InternalBattery-0\t57%; discharging\n"
NO_THERMAL = "com.apple.system.thermalpressurelevel Failed\n"


@pytest.mark.parametrize(
    ("changes", "key", "value"),
    [
        ({"batt": BATTERY}, "on_battery", True),
        ({"batt": ""}, "on_battery", None),
        ({"pmset": " lowpowermode         1\n"}, "low_power", True),
        ({"pmset": " powermode            1\n"}, "low_power", True),
        ({"pmset": " powermode            2\n"}, "low_power", False),
        ({"pmset": "usage: pmset"}, "low_power", None),
        ({"thermal": "com.apple.system.thermalpressurelevel 2\n"}, "thermal_pressure", 2),
        ({"thermal": NO_THERMAL}, "thermal_pressure", None),
        ({"gpu": ""}, "gpu_cores", None),
        ({"sysctl": "kern.memorystatus_vm_pressure_level: 4\n"}, "memory_pressure", 4),
        ({"sysctl": "vm.swapusage: total = 0,00M  used = 12,25M\n"}, "swap_used_mib", 12.25),
        ({"sysctl": "sysctl: unknown oid 'iogpu.wired_limit_mb'\n"}, "gpu_wired_limit_mib", None),
    ],
)
def test_states_that_matter_are_told_apart(changes, key, value):
    found = mac.parse(TEXTS | changes)[key]
    assert found is value or found == value


def vm_statistics(free: int, active: int, inactive: int, compressor: int) -> bytes:
    """A struct vm_statistics64, counts in pages; every other field has a value of its own.

    osfmk/mach/vm_statistics.h, in order: free, active, inactive, wire (32 bits), zero_fill,
    reactivations, pageins, pageouts, faults, cow_faults, lookups, hits, purges (64), purgeable,
    speculative (32), decompressions, compressions, swapins, swapouts (64), compressor, throttled,
    external, internal (32), total_uncompressed_pages_in_compressor (64).
    """
    wide = range(900_000, 900_013)
    return struct.pack(
        "=4I9Q2I4Q4IQ",
        *(free, active, inactive, 800_000),
        *wide[:9],
        *(800_001, 800_002),
        *wide[9:],
        *(compressor, 800_003, 800_004, 800_005),
        900_014,
    )


def test_the_layout_of_the_statistics_is_the_documented_one():
    assert len(vm_statistics(0, 0, 0, 0)) == 4 * mac.VM_WORDS == 152


@pytest.mark.parametrize(
    ("pages", "left"),
    [
        ({"free": 10, "active": 20, "inactive": 30, "compressor": 0}, 60),
        ({"free": 10, "active": 20, "inactive": 30, "compressor": 30}, 40),
        ({"free": 1, "active": 2, "inactive": 3, "compressor": 9}, 0),
        ({"free": 0, "active": 1, "inactive": 1, "compressor": 30}, 0),
    ],
)
def test_what_is_left_ends_where_the_compressor_begins_to_swap(pages, left):
    """xnu swaps when what is not compressed falls below 4/10 of that and the compressor's pages."""
    assert mac.unswapped_bytes(vm_statistics(**pages), 16384) == left * 16384
    uncompressed = pages["free"] + pages["active"] + pages["inactive"] - left
    if left:
        assert uncompressed == pytest.approx(0.4 * (uncompressed + pages["compressor"]))


@pytest.mark.parametrize(
    ("memory_gib", "set_mib", "limit_gib"),
    [(8, 0, 16 / 3), (16, None, 32 / 3), (36, 0, 27), (128, 0, 96), (64, 57344, 56)],
)
def test_the_working_set_is_metals_recommendation_or_the_users(memory_gib, set_mib, limit_gib):
    assert mac.working_set_bytes(memory_gib * GIB, set_mib) / GIB == pytest.approx(limit_gib)


def test_what_is_available_is_no_more_than_the_working_set(monkeypatch):
    page = os.sysconf("SC_PAGE_SIZE")
    monkeypatch.setattr(mac, "_sysctl", lambda name: None)
    for gib, expected in ((3, 3 * GIB), (7, 8 * GIB * 2 / 3)):
        statistics = vm_statistics(gib * GIB // page, 0, 0, 0)
        monkeypatch.setattr(mac, "_vm_statistics", lambda: statistics)  # noqa: B023
        assert mac.available_mib(8 * GIB) == pytest.approx(expected / MIB)


@pytest.mark.parametrize(
    ("value", "number"), [(b"\4\0\0\0", 4), (bytes(8), 0), (b"", None), (None, None)]
)
def test_a_number_of_sysctl_has_four_or_eight_bytes(monkeypatch, value, number):
    monkeypatch.setattr(mac, "_sysctl", lambda name: value)
    assert mac._sysctl_number("any") == number


def test_memory_pressure_is_flagged():
    quiet = {"cpu_busy_s": 1.0, "gpu": None}

    class Ended:
        pid, elapsed_s, wall_s, cpu_s = 1, 1.0, 1.0, 1.0

    found = machine.flags(quiet | {"memory_pressure": 1}, quiet | {"memory_pressure": 2}, Ended, [])
    assert found == ["memory: macOS's memory pressure was at warning after the cell"]


@pytest.mark.parametrize(
    ("fflags", "for_memory"),
    [
        (0x80000000 | NOTE_EXIT_DETAIL | NOTE_EXIT_MEMORY, True),
        (0x80000000 | NOTE_EXIT_DETAIL, False),
        (0x80000000 | NOTE_EXIT_MEMORY, False),  # not a reason without the detail
        (0x80000000 | NOTE_EXIT_DETAIL | 0x40000, False),  # a signature that is not valid
    ],
)
def test_a_kill_of_jetsam_is_told_from_other_exits(fflags, for_memory):
    assert memory_kill(fflags) is for_memory


def test_nothing_keeps_other_systems_awake():
    if not mac.on_mac():
        assert mac.keep_awake(os.getpid()) is None
        assert mac.pressure_level() is None


on_mac = pytest.mark.skipif(sys.platform != "darwin", reason="asks macOS itself")
HOLD = """
held = bytearray(b'x') * ({} << 20)
print('held', flush=True)
input()
del held
print('freed', flush=True)
input()
"""


def started(mib: int) -> subprocess.Popen:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    return subprocess.Popen([sys.executable, "-c", HOLD.format(mib)], text=True, **pipes)


@on_mac
def test_the_footprint_of_an_exited_child_has_what_it_held_and_freed():
    child = started(300)
    memory = memory_of(child.pid)
    watch = watch_exit(child.pid)
    assert isinstance(memory, MacMemory)
    child.stdout.readline()
    held = memory.sample()
    child.stdin.write("\n")
    child.stdin.flush()
    child.stdout.readline()
    freed = memory.sample()
    assert held.footprint_mib - freed.footprint_mib == pytest.approx(300, abs=10)
    assert not watch.exited()
    child.stdin.close()  # input() ends the child with an error
    while not watch.exited():
        pass
    memory.last_look()
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    child.stdout.close()
    peaks = memory.exited(usage)
    assert peaks.source == "ri_lifetime_max_phys_footprint after exit"
    assert held.footprint_mib <= peaks.footprint_mib < held.footprint_mib + 10
    assert not watch.killed_for_memory


@on_mac
def test_a_child_that_has_exited_already_is_seen():
    child = subprocess.Popen([sys.executable, "-c", ""])
    while memory_of(child.pid).sample() is not None:
        pass
    assert watch_exit(child.pid).exited()
    child.wait()


@on_mac
def test_this_mac_says_what_it_is_and_what_is_left():
    state = machine.state(None)
    assert state["release"].split(".")[0].isdigit()
    assert state["gpu_cores"]
    assert mac.pressure_level() in mac.PRESSURE
    assert 0 < state["available_mib"] <= state["memory_mib"]


@on_mac
def test_this_mac_is_kept_awake_as_long_as_the_process_runs():
    child = started(1)
    awake = mac.keep_awake(child.pid)
    assert awake.poll() is None
    child.kill()
    child.communicate()
    assert awake.wait(timeout=10) == 0
