"""The state of the machine around a cell, and what of it makes a measurement doubtful.

`state()` gives plain values, null where this system does not say. What only macOS says is in
mac.py.
"""

import hashlib
import os
import platform
import re
from pathlib import Path

import psutil

from kvpeak.base.numbers import MIB
from kvpeak.base.text import OF_PROGRAMS
from kvpeak.system import mac
from kvpeak.system.cgroup import memory_limits

BUSY_CPUS = 0.5  # processors that other processes may keep busy on average
COUNTS = 10  # at most: of processes that come and go meanwhile
CLOCK_S = 1.0  # seconds by which the wall clock may differ from the monotonic one
SWAP_MIB = 1.0


def state(gpu: dict | None) -> dict:
    """The machine now, with the state of the GPU that is used. MiB, seconds, degrees Celsius;
    `cpu_busy_s` is the processors' time since boot.
    """
    memory = psutil.virtual_memory()
    found = {
        "machine_id": machine_id(memory.total),
        "system": platform.system(),
        "release": platform.release(),
        "cpu": platform.processor() or platform.machine(),
        "cpus": os.cpu_count(),
        "python": platform.python_version(),
        "memory_mib": memory.total / MIB,
        "available_mib": available_mib(),
        "swap_used_mib": psutil.swap_memory().used / MIB,
        "load_1m": os.getloadavg()[0],
        "cpu_busy_s": _busy_seconds(),
        "on_battery": None,
        "low_power": None,
    }
    if mac.on_mac():
        found |= {"release": platform.mac_ver()[0]} | mac.state()
    else:
        found |= linux_state()
    gib = round(memory.total / 2**30)
    name = f"{found['cpu']}, {found['cpus']} CPUs, {gib} GiB"
    if cores := found.get("gpu_cores"):
        name = f"{name}, {cores} GPU cores"
    return {"name": f"{name}, {gpu['name']}" if gpu else name} | found | {"gpu": gpu}


def machine_id(memory_bytes: int) -> str:
    """Twelve hexadecimal digits that tell machines apart and do not show the host's name."""
    what = f"{platform.node()} {platform.machine()} {os.cpu_count()} {memory_bytes}"
    return hashlib.sha256(what.encode()).hexdigest()[:12]


def available_mib() -> float:
    """What can be allocated before the machine swaps, or a control group's limit is reached.

    psutil's figure for macOS leaves out what xnu would take before it swaps; there
    mac.available_mib counts.
    """
    memory = psutil.virtual_memory()
    if mac.on_mac() and (available := mac.available_mib(memory.total)) is not None:
        return available
    free = [free for _, free in memory_limits()]
    return min([memory.available / MIB, *free])


def total_mib() -> float:
    """The machine's memory, or the limit of a control group where that is smaller."""
    limits = [limit for limit, _ in memory_limits()]
    return min([psutil.virtual_memory().total / MIB, *limits])


def oom_kills(vmstat: Path = Path("/proc/vmstat")) -> int:
    """How many processes the kernel has killed for want of memory since boot (Linux; 0
    elsewhere).
    """
    found = re.search(r"^oom_kill (\d+)$", _text(vmstat), re.MULTILINE)
    return int(found[1]) if found else 0


def tree_cpu_s(root: int) -> float | None:
    """Processor seconds of the process `root` and of its descendants, those that it or they have
    reaped included.

    None if there is no such process. A process that ends while they are counted would be counted
    twice or not at all; then they are counted again.
    """
    seconds = None
    for _ in range(COUNTS):
        try:
            top = psutil.Process(root)
            found = {top, *top.children(recursive=True)}
            seconds = sum(sum(process.cpu_times()[:4]) for process in found)
            if found == {top, *top.children(recursive=True)}:
                return seconds
        except psutil.NoSuchProcess:
            if not psutil.pid_exists(root):
                return None
    return seconds


def linux_state(root: Path = Path("/")) -> dict:
    """What Linux's /proc and /sys say; `root` is where they are mounted."""
    cpus = root / "sys/devices/system/cpu"
    supplies = list((root / "sys/class/power_supply").glob("*"))
    governors = {_text(file) for file in cpus.glob("cpu[0-9]*/cpufreq/scaling_governor")}
    throttled = [
        _text(file) for file in cpus.glob("cpu[0-9]*/thermal_throttle/core_throttle_count")
    ]
    heat = [_text(file) for file in (root / "sys/class/thermal").glob("thermal_zone*/temp")]
    profile = _text(root / "sys/firmware/acpi/platform_profile")
    model = re.search(r"^model name\s*:\s*(.+)$", _text(root / "proc/cpuinfo"), re.MULTILINE)
    found = {
        "on_battery": _on_battery(supplies),
        "low_power": profile == "low-power" if profile else None,
        "governor": ", ".join(sorted(governors - {""})) or None,
        "throttle_count": sum(map(int, filter(str.isdigit, throttled))) if throttled else None,
        "temperature_c": max((int(text) / 1000 for text in heat if text.isdigit()), default=None),
    }
    return found | ({"cpu": model[1]} if model else {})


def flags(before: dict, after: dict, ended, gpu_slowed: list[str]) -> list[str]:
    """Why this cell's numbers are doubtful, one line each; [] if nothing is known against them.

    before, after: state() with `gpu` (Gpu.state() or None) beside it. ended: the process that has
    ended (pid, elapsed_s, wall_s, cpu_s). gpu_slowed: why the GPU's clocks were held down
    meanwhile.
    """
    found = []
    for when, now in (("before", before), ("after", after)):
        if now.get("on_battery"):
            found.append(f"battery: on battery power {when} the cell")
        if now.get("low_power"):
            found.append(f"low power: low-power mode was on {when} the cell")
        if now.get("thermal_pressure"):
            found.append(
                f"throttled: thermal pressure level {now['thermal_pressure']} {when} the cell"
            )
        if (level := now.get("memory_pressure") or mac.NORMAL) > mac.NORMAL:
            level = mac.PRESSURE.get(level, level)
            found.append(f"memory: macOS's memory pressure was at {level} {when} the cell")
    if (slower := _growth(before, after, "throttle_count")) > 0:
        found.append(
            f"throttled: the processors were slowed for heat {slower} times during the cell"
        )
    if gpu_slowed:
        found.append(f"throttled: GPU clocks held down: {', '.join(gpu_slowed)}")
    if (swapped := _growth(before, after, "swap_used_mib")) >= SWAP_MIB:
        found.append(f"swap: the used swap grew by {swapped:.0f} MiB during the cell")
    others = _growth(before, after, "cpu_busy_s") - ended.cpu_s
    if others > BUSY_CPUS * ended.elapsed_s > 0:
        found.append(
            f"load: other processes kept {others / ended.elapsed_s:.1f} processors busy during the "
            "cell"
        )
    if names := _other_gpu_processes(before, after, ended.pid):
        found.append(f"gpu: other processes were on the GPU: {names}")
    if abs(drift := ended.wall_s - ended.elapsed_s) > CLOCK_S:
        found.append(f"clock: the wall clock jumped by {drift:+.1f} s, or the machine slept")
    return found


def _growth(before: dict, after: dict, key: str) -> float:
    """How much a counter grew; 0 where the system has none."""
    if before.get(key) is None or after.get(key) is None:
        return 0
    return after[key] - before[key]


def _other_gpu_processes(before: dict, after: dict, own: int) -> str:
    states = [now["gpu"] for now in (before, after) if now.get("gpu")]
    pids = {process["pid"] for gpu in states for process in gpu["processes"]} - {own}
    return ", ".join(f"process {pid}" for pid in sorted(pids))


def _busy_seconds() -> float:
    """Processor time spent since boot, by all processes and by what the hypervisor took
    (seconds).
    """
    times = psutil.cpu_times()
    parts = ("user", "nice", "system", "irq", "softirq", "steal")
    return sum(getattr(times, part, 0.0) for part in parts)


def _on_battery(supplies: list[Path]) -> bool | None:
    """By /sys/class/power_supply: whether a battery discharges and no mains is online; None if
    neither is there.
    """
    mains = [_text(supply / "online") for supply in supplies if _text(supply / "type") != "Battery"]
    batteries = [
        _text(supply / "status") for supply in supplies if _text(supply / "type") == "Battery"
    ]
    if not mains and not batteries:
        return None
    return "Discharging" in batteries and "1" not in mains


def _text(file: Path) -> str:
    try:
        return file.read_text(**OF_PROGRAMS).strip()
    except OSError:
        return ""
