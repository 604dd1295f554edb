"""The memory of one process, read from the operating system, in MiB.

Linux and macOS each have a class with the same three methods:

    sample()       what the process takes now, None once it has exited
    last_look()    call it on the exited, not yet reaped process
    exited(usage, own_rss_mib)  the peaks of its whole life: call it once, when it has been reaped;
                   own_rss_mib is the largest resident size that the process itself reported at
                   its end, None if it did not

The macOS class has not run on a Mac. Its layout is that of xnu's bsd/sys/resource.h and is tested
on byte buffers; what needs the system itself is one call in `_proc_pid_rusage`.
"""

import ctypes
import errno
import functools
import os
import resource
import struct
import sys
from dataclasses import dataclass
from pathlib import Path

from kvpeak.base.numbers import MIB


@dataclass(frozen=True, slots=True)
class Sample:
    """One look at a running process. MiB.

    footprint_mib: what the system charges it for (macOS: phys_footprint; Linux: VmRSS)
    rss_mib:       resident size
    held_mib:      the part that the system cannot drop, only swap (macOS: phys_footprint;
                   Linux: anonymous and shared pages, swapped ones included; no mapped files)
    """

    footprint_mib: float
    rss_mib: float
    held_mib: float


@dataclass(frozen=True, slots=True)
class Peaks:
    """The peaks of a process that has ended, in MiB, and where the footprint's was read."""

    footprint_mib: float | None
    source: str | None
    rss_mib: float | None


@dataclass(frozen=True)
class Own:
    """What this process takes now, in MiB: its footprint as in Sample, and its resident size."""

    footprint_mib: float
    rss_mib: float


def own_memory() -> Own:
    """Linux: smaps_rollup (proc_pid_smaps(5)), for which the kernel counts the pages one by one;
    status has counters that may lag behind by some pages for each processor."""
    if sys.platform == "darwin":
        fields = parse_rusage_info(_proc_pid_rusage(os.getpid()))
        return Own(fields["phys_footprint"], fields["resident_size"])
    resident = parse_status(Path("/proc/self/smaps_rollup").read_bytes())["Rss"]
    return Own(resident, resident)


def sample_of(pid: int) -> Sample | None:
    """One look at any process of this user; None if it has gone, or is a zombie."""
    if sys.platform == "darwin":
        buffer = _proc_pid_rusage(pid)
        fields = parse_rusage_info(buffer) if buffer else {"phys_footprint": 0.0}
        footprint = fields["phys_footprint"]
        return Sample(footprint, fields["resident_size"], footprint) if footprint else None
    try:
        fields = parse_status(Path(f"/proc/{pid}/status").read_bytes())
    except OSError:
        return None
    return _sample(fields) if "VmRSS" in fields else None


def _sample(fields: dict[str, float]) -> Sample:
    """A sample from the sizes of /proc/PID/status."""
    held = sum(fields.get(key, 0.0) for key in ("RssAnon", "RssShmem", "VmSwap"))
    return Sample(fields["VmRSS"], fields["VmRSS"], held)


class LinuxMemory:
    """A child of this process on Linux: /proc/PID/status while it lives, wait4's ru_maxrss at its
    end.

    ru_maxrss starts at the resident size of the parent at the fork (the kernel keeps it across
    exec), so it is the child's own peak only above the parent's. It is also that of the child's
    children, if the child waited for any, such as the compiler that MLX starts for a new kernel:
    then their page faults are in /proc/PID/stat. In both cases VmHWM stands: the child's own
    report, or else the last sample, which is the exact peak up to it.
    """

    def __init__(self, pid: int):
        self._status = os.open(f"/proc/{pid}/status", os.O_RDONLY | os.O_CLOEXEC)
        self._stat = os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
        self._peak = 0.0
        self._had_children = False

    def sample(self) -> Sample | None:
        try:
            fields = parse_status(os.pread(self._status, 8192, 0))
        except ProcessLookupError:
            return None
        if "VmHWM" not in fields:  # exited, not yet reaped
            return None
        self._peak = max(self._peak, fields["VmHWM"], fields["VmRSS"])
        return _sample(fields)

    def last_look(self) -> None:
        """A zombie has no memory map on Linux, but still the page faults of the children that it
        waited for.
        """
        self._had_children = waited_for_children(os.pread(self._stat, 4096, 0))

    def exited(self, usage: resource.struct_rusage, own_rss_mib: float | None = None) -> Peaks:
        os.close(self._status)
        os.close(self._stat)
        at_exit = usage.ru_maxrss / 1024
        starts_at = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        if at_exit > starts_at and not self._had_children:
            peak = max(at_exit, self._peak, own_rss_mib or 0.0)
            return Peaks(peak, "wait4 ru_maxrss", peak)
        if own_rss_mib:
            peak = max(own_rss_mib, self._peak)
            return Peaks(peak, "VmHWM, the engine's own at its end", peak)
        if self._peak:
            return Peaks(self._peak, "VmHWM, last sample (a lower bound)", self._peak)
        return Peaks(None, None, None)


def waited_for_children(stat: bytes) -> bool:
    """By /proc/PID/stat: whether children that the process waited for had page faults (cminflt,
    cmajflt; proc_pid_stat(5)).
    """
    fields = stat.rpartition(b")")[2].split()  # the name before may hold anything; state is field 3
    return fields[11 - 3] != b"0" or fields[13 - 3] != b"0"


def parse_status(text: bytes) -> dict[str, float]:
    """The sizes of /proc/PID/status ("VmHWM:  1024 kB", kibibytes; proc_pid_status(5)) in MiB."""
    sizes = {}
    for line in text.splitlines():
        name, _, value = line.partition(b":")
        number, _, unit = value.strip().partition(b" ")
        if unit == b"kB" and number.isdigit():
            sizes[name.decode()] = int(number) / 1024
    return sizes


# proc_pid_rusage's flavours, newest first, with their sizes in bytes; an older system answers
# EINVAL.
FLAVOURS = {6: 464, 4: 296}
OFFSETS = {"resident_size": 64, "phys_footprint": 72, "lifetime_max_phys_footprint": 240}
ENERGY_NJ = 336  # of V6


class MacMemory:
    """A child of this process on macOS: proc_pid_rusage while it lives and from the zombie.

    The zombie's footprint is 0 and its lifetime maximum stays. The peak is the largest of
    everything that was read: the zombie may be gone, and a lifetime maximum below the current
    footprint has been seen.
    """

    def __init__(self, pid: int, read=None):
        self._read = read or _proc_pid_rusage
        self._pid = pid
        self._live_footprint = self._live_peak = self._zombie_peak = self._live_rss = 0.0

    def sample(self) -> Sample | None:
        fields = self._fields()
        if fields is None or not fields["phys_footprint"]:
            return None
        footprint = fields["phys_footprint"]
        self._live_peak = max(self._live_peak, fields["lifetime_max_phys_footprint"])
        self._live_footprint = max(self._live_footprint, footprint)
        self._live_rss = max(self._live_rss, fields["resident_size"])
        return Sample(footprint, fields["resident_size"], footprint)

    def last_look(self) -> None:
        fields = self._fields()
        if fields:
            self._zombie_peak = fields["lifetime_max_phys_footprint"]

    def exited(self, usage: resource.struct_rusage, own_rss_mib: float | None = None) -> Peaks:
        rss = max(usage.ru_maxrss / MIB, self._live_rss)  # ru_maxrss: bytes on macOS
        after_exit = "ri_lifetime_max_phys_footprint after exit"
        last_sample = "ri_lifetime_max_phys_footprint, last sample (a lower bound)"
        sampled = "ri_phys_footprint, sampled: the lifetime maximum was smaller (a lower bound)"
        read = (
            (self._zombie_peak, after_exit),
            (self._live_peak, last_sample),
            (self._live_footprint, sampled),
        )
        peak, source = max(read, key=lambda each: each[0])  # of equal ones the first
        return Peaks(peak, source, rss) if peak else Peaks(None, None, rss)

    def _fields(self) -> dict[str, float] | None:
        buffer = self._read(self._pid)
        return parse_rusage_info(buffer) if buffer else None


def process_joules(pid: int) -> float | None:
    """The processor's energy for one process so far, also of the zombie (macOS); None elsewhere.

    ri_energy_nj of V6, nanojoules. It is 0 where the processor does not count.
    """
    buffer = _proc_pid_rusage(pid) if sys.platform == "darwin" else None
    return parse_joules(buffer) if buffer else None


def parse_joules(buffer: bytes) -> float | None:
    """ri_energy_nj of a struct rusage_info_v6 in joules; None of an older struct, or where it is
    0.
    """
    if len(buffer) < FLAVOURS[6]:
        return None
    return struct.unpack_from("=Q", buffer, ENERGY_NJ)[0] / 1e9 or None


def parse_rusage_info(buffer: bytes) -> dict[str, float]:
    """The fields of OFFSETS of a struct rusage_info_v4 or _v6, in MiB.

    Layout: a 16-byte uuid, then unsigned 64-bit integers in the machine's order
    (bsd/sys/resource.h).
    """
    return {
        name: struct.unpack_from("=Q", buffer, offset)[0] / MIB for name, offset in OFFSETS.items()
    }


@functools.cache
def _system_library() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _proc_pid_rusage(pid: int) -> bytes | None:
    """The bytes of the newest rusage_info that this system knows; None if the process is gone."""
    library = _system_library()
    for flavour, size in FLAVOURS.items():
        buffer = ctypes.create_string_buffer(size)
        if library.proc_pid_rusage(pid, flavour, buffer) == 0:
            return buffer.raw
        if ctypes.get_errno() != errno.EINVAL:
            return None
    return None


def memory_of(pid: int) -> LinuxMemory | MacMemory:
    """The reader of a direct child of this process."""
    return MacMemory(pid) if sys.platform == "darwin" else LinuxMemory(pid)
