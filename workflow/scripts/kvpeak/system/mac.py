"""What only macOS says: its commands, its sysctl values, and how much memory is left before it
swaps.

Nothing here has run on a Mac. The parsers are tested on texts and bytes in the system's formats;
what needs the system itself is in `_commands`, `_sysctl` and `_vm_statistics`.
"""

import contextlib
import ctypes
import os
import re
import struct
import subprocess
import sys

from kvpeak.base.numbers import GIB, MIB
from kvpeak.base.text import OF_PROGRAMS

COMMANDS = {
    "batt": ["pmset", "-g", "batt"],
    "pmset": ["pmset", "-g"],
    "thermal": ["notifyutil", "-g", "com.apple.system.thermalpressurelevel"],
    "gpu": ["ioreg", "-r", "-d", "1", "-c", "AGXAccelerator"],
    "sysctl": [
        *("sysctl", "machdep.cpu.brand_string", "kern.osproductversion"),
        *("kern.memorystatus_level", "kern.memorystatus_vm_pressure_level"),
        *("vm.swapusage", "iogpu.wired_limit_mb"),
    ],
}

# kern.memorystatus_vm_pressure_level; xnu reaches `critical` when it has swapped for a while
# (vm_pageout.c).
NORMAL, WARNING, CRITICAL = 1, 2, 4
PRESSURE = {NORMAL: "normal", WARNING: "warning", CRITICAL: "critical"}

# struct vm_statistics64 (osfmk/mach/vm_statistics.h): its size in 32-bit words, and where the
# counts of pages are.
HOST_VM_INFO64, VM_WORDS = 4, 38
VM_OFFSETS = {"free": 0, "active": 4, "inactive": 8, "compressor": 128}

# xnu swaps when active, inactive and free pages are less than 4/10 of themselves and the
# compressor's pages (VM_PAGE_COMPRESSOR_SWAP_THRESHOLD). Taking x pages from them leads there when
# x = them − 2/3 · compressor's.
SWAPS_AT = 2 / 3

# What Metal recommends as working set where iogpu.wired_limit_mb is 0: of the memory, below and
# from 36 GiB.
LARGE_MAC = 36 * GIB
SMALL_SHARE, LARGE_SHARE = 2 / 3, 3 / 4


def state() -> dict:
    """The parts of machine.state() that macOS's commands tell."""
    return parse(_commands())


def parse(outputs: dict[str, str]) -> dict:
    """What the outputs of COMMANDS say; null for what they do not.

    thermal_pressure: 0 nominal, 1 moderate, 2 heavy, 3 trapping, 4 sleeping
    (OSThermalNotification.h). memory_level: percent of the memory that is available.
    memory_pressure: 1 normal, 2 warning, 4 critical.
    """
    sysctl = dict(re.findall(r"^([\w.]+): (.*)$", outputs.get("sysctl", ""), re.MULTILINE))
    source = re.search(r"drawing from '([^']+)'", outputs.get("batt", ""))
    modes = dict(re.findall(r"^\s*(lowpowermode|powermode)\s+(\d)", outputs.get("pmset", ""), re.M))
    level = re.search(r"thermalpressurelevel (\d+)", outputs.get("thermal", ""))
    cores = re.search(r'"gpu-core-count" = (\d+)', outputs.get("gpu", ""))
    swap = re.search(r"used = (\d+)[.,](\d+)M", sysctl.get("vm.swapusage", ""))
    found = {
        "on_battery": source[1] == "Battery Power" if source else None,
        "low_power": "1" in modes.values() if modes else None,
        "thermal_pressure": int(level[1]) if level else None,
        "memory_level": _number(sysctl.get("kern.memorystatus_level")),
        "memory_pressure": _number(sysctl.get("kern.memorystatus_vm_pressure_level")),
        "gpu_wired_limit_mib": _number(sysctl.get("iogpu.wired_limit_mb")),
        "gpu_cores": int(cores[1]) if cores else None,
    }
    if "machdep.cpu.brand_string" in sysctl:
        found["cpu"] = sysctl["machdep.cpu.brand_string"]
    if "kern.osproductversion" in sysctl:
        found["release"] = sysctl["kern.osproductversion"]
    if swap:
        found["swap_used_mib"] = float(f"{swap[1]}.{swap[2]}")
    return found


def available_mib(memory_bytes: int) -> float | None:
    """What can be allocated before macOS swaps, and Metal's recommended working set at most. MiB.

    None if the system does not say.
    """
    statistics = _vm_statistics()
    if statistics is None:
        return None
    before_swap = unswapped_bytes(statistics, os.sysconf("SC_PAGE_SIZE"))
    limit = working_set_bytes(memory_bytes, _sysctl_number("iogpu.wired_limit_mb"))
    return min(before_swap, limit) / MIB


def unswapped_bytes(statistics: bytes, page_bytes: int) -> float:
    """By a struct vm_statistics64: what can be taken before the compressor swaps. Its `free` has
    the speculative pages in it.
    """
    pages = {name: struct.unpack_from("=I", statistics, at)[0] for name, at in VM_OFFSETS.items()}
    uncompressed = pages["free"] + pages["active"] + pages["inactive"]
    return max(0.0, uncompressed - SWAPS_AT * pages["compressor"]) * page_bytes


def working_set_bytes(memory_bytes: int, wired_limit_mib: int | None) -> float:
    """Metal's recommended working set: the limit that the user has set, or its share of the
    memory.
    """
    if wired_limit_mib:
        return float(wired_limit_mib * MIB)
    return memory_bytes * (LARGE_SHARE if memory_bytes >= LARGE_MAC else SMALL_SHARE)


def pressure_level() -> int | None:
    """NORMAL, WARNING or CRITICAL; None elsewhere."""
    return _sysctl_number("kern.memorystatus_vm_pressure_level") if on_mac() else None


def cache_bytes() -> int | None:
    """The largest cache that sysctl tells: of the third level, or all of the fast cores' second
    level.
    """
    third = _sysctl_number("hw.l3cachesize")
    return third or _sysctl_number("hw.perflevel0.l2cachesize") or _sysctl_number("hw.l2cachesize")


def on_mac() -> bool:
    return sys.platform == "darwin"


def keep_awake(pid: int) -> subprocess.Popen | None:
    """On a Mac, keep the system from idle sleep as long as process `pid` runs (caffeinate(8))."""
    if not on_mac():
        return None
    with contextlib.suppress(OSError):
        return subprocess.Popen(
            ["caffeinate", "-i", "-w", str(pid)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    return None


def _commands() -> dict[str, str]:
    return {name: _output(command) for name, command in COMMANDS.items()}


def _output(command: list[str]) -> str:
    """What the command prints, with decimal points; "" if it is not there or hangs."""
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            **OF_PROGRAMS,
            timeout=10,
            check=False,
            env=os.environ | {"LC_ALL": "C"},
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout


def _sysctl_number(name: str) -> int | None:
    """The value of an integer of 4 or 8 bytes; None if the system has none of that name."""
    value = _sysctl(name)
    return int.from_bytes(value, sys.byteorder) if value and len(value) in (4, 8) else None


def _sysctl(name: str) -> bytes | None:
    """sysctlbyname(3)."""
    value, size = ctypes.create_string_buffer(64), ctypes.c_size_t(64)
    failed = _system().sysctlbyname(
        name.encode(), value, ctypes.byref(size), None, ctypes.c_size_t(0)
    )
    return None if failed else value.raw[: size.value]


def _vm_statistics() -> bytes | None:
    """The bytes of host_statistics64's HOST_VM_INFO64."""
    system = _system()
    system.mach_host_self.restype = ctypes.c_uint32
    buffer, words = ctypes.create_string_buffer(4 * VM_WORDS), ctypes.c_uint32(VM_WORDS)
    failed = system.host_statistics64(
        ctypes.c_uint32(system.mach_host_self()), HOST_VM_INFO64, buffer, ctypes.byref(words)
    )
    return None if failed else buffer.raw


def _system() -> ctypes.CDLL:
    return ctypes.CDLL(None)


def _number(text: str | None) -> int | None:
    return int(text) if text and text.strip().isdigit() else None
