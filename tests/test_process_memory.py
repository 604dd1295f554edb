"""Peaks from the operating system: Linux against a real child, macOS against buffers of its
layout.
"""

import ctypes
import errno
import os
import resource
import struct
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from kvpeak.base.numbers import MIB
from kvpeak.system import process_memory
from kvpeak.system.process_memory import (
    LinuxMemory,
    MacMemory,
    Peaks,
    Sample,
    parse_rusage_info,
    parse_status,
)

CHILD = """
import sys
print("started", flush=True)
for line in sys.stdin:
    held = bytearray(int(line) << 20)
    held[::4096] = b"x" * len(held[::4096])
    print("held", flush=True)
"""


class Child:
    """A process that holds as many MiB as it is told, one answer a time."""

    def __init__(self):
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self._process = subprocess.Popen([sys.executable, "-c", CHILD], text=True, **pipes)
        self.pid = self._process.pid
        self._process.stdout.readline()

    def hold(self, mib: int) -> None:
        self._process.stdin.write(f"{mib}\n")
        self._process.stdin.flush()
        self._process.stdout.readline()

    def end(self):
        """Let it exit, and return its resource usage."""
        self._process.stdin.close()
        _, status, usage = os.wait4(self.pid, 0)
        self._process.returncode = os.waitstatus_to_exitcode(status)
        self._process.stdout.close()
        return usage


linux = pytest.mark.skipif(sys.platform != "linux", reason="reads Linux's /proc")


@linux
def test_linux_follows_a_child_that_allocates_and_frees_a_known_amount():
    child = Child()
    memory = LinuxMemory(child.pid)
    empty = memory.sample()
    child.hold(200)
    full = memory.sample()
    child.hold(0)
    freed = memory.sample()
    peaks = memory.exited(child.end())
    assert full.footprint_mib - empty.footprint_mib == pytest.approx(200, abs=5)
    assert full.held_mib - empty.held_mib == pytest.approx(200, abs=5)
    assert freed.footprint_mib == pytest.approx(empty.footprint_mib, abs=5)
    assert peaks.footprint_mib == pytest.approx(empty.footprint_mib + 200, abs=5)
    assert peaks.rss_mib == peaks.footprint_mib


@linux
def test_linux_does_not_lend_the_parents_memory_to_the_childs_peak():
    mine = bytearray(os.urandom(MIB)) * 100
    child = Child()
    memory = LinuxMemory(child.pid)
    small = memory.sample().footprint_mib
    usage = child.end()
    assert usage.ru_maxrss / 1024 > len(mine) / MIB  # what the kernel says, and why it is not taken
    peaks = memory.exited(usage)
    assert peaks.footprint_mib == pytest.approx(small, abs=5)
    assert peaks.source == "VmHWM, last sample (a lower bound)"


GRANDCHILD = """
import subprocess, sys
print("started", flush=True)
sys.stdin.readline()
subprocess.run([sys.executable, "-c", "bytearray(b'x') * (300 << 20)"], check=True)
"""


@linux
@pytest.mark.parametrize(
    ("own_mib", "source"),
    [
        (None, "VmHWM, last sample (a lower bound)"),
        (20.0, "VmHWM, the engine's own at its end"),
    ],
)
def test_linux_does_not_take_a_childs_child_for_its_own(own_mib, source):
    """MLX on a CPU starts a compiler for a new kernel, which may be larger than a small model."""
    child = subprocess.Popen(
        [sys.executable, "-c", GRANDCHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    child.stdout.readline()
    memory = LinuxMemory(child.pid)
    memory.sample()
    child.stdin.close()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    memory.last_look()
    _, _, usage = os.wait4(child.pid, 0)
    child.returncode = 0
    child.stdout.close()
    assert usage.ru_maxrss / 1024 > 300
    peaks = memory.exited(usage, own_mib)
    assert peaks.source == source
    assert peaks.footprint_mib == pytest.approx(max(own_mib or 0, memory._peak))
    assert peaks.footprint_mib < 50


@linux
def test_linux_sees_a_peak_between_two_samples():
    child = Child()
    memory = LinuxMemory(child.pid)
    child.hold(100)
    child.hold(0)
    assert memory.sample().footprint_mib < 50
    assert memory.exited(child.end()).footprint_mib > 100


@linux
def test_linux_knows_a_peak_that_no_sample_saw():
    mine = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    child = Child()
    memory = LinuxMemory(child.pid)
    child.hold(mine + 50)
    peaks = memory.exited(child.end())
    assert mine + 50 < peaks.footprint_mib < mine + 100
    assert peaks.source == "wait4 ru_maxrss"


@linux
def test_linux_has_no_sample_of_a_process_that_has_exited():
    child = Child()
    memory = LinuxMemory(child.pid)
    usage = child.end()
    assert memory.sample() is None
    assert memory.exited(usage)


def test_sizes_of_proc_status_are_mebibytes():
    text = b"Name:\tVmHWM: 7 kB\nState:\tS\nVmHWM:\t  2048 kB\nVmRSS:\t  1024 kB\nThreads:\t3\n"
    assert parse_status(text) == {"VmHWM": 2.0, "VmRSS": 1.0}


def test_what_status_says_in_other_units_or_not_at_all_is_no_size():
    text = b"VmHWM:\t 12 kB\nVmRSS:\tmany kB\nThreads:\t3\nHugetlb:\t 5 mB\nno colon\n\n"
    assert parse_status(text) == {"VmHWM": 12 / 1024}


def test_held_is_what_cannot_be_dropped():
    """Of 100 MiB resident, 60 are anonymous and 5 shared; 7 more are swapped out."""
    sizes = {"VmHWM": 120, "VmRSS": 100, "RssAnon": 60, "RssFile": 35, "RssShmem": 5, "VmSwap": 7}
    text = "".join(f"{name}:\t{1024 * mib} kB\n" for name, mib in sizes.items())
    assert process_memory._sample(parse_status(text.encode())) == Sample(100, 100, 72)
    assert process_memory._sample({"VmRSS": 3.0}) == Sample(3, 3, 0)  # an older kernel


def stat(*faults: int) -> bytes:
    """/proc/PID/stat with these minflt, cminflt, majflt and cmajflt, fields 10 to 13."""
    fields = [42, b"(a) name)", b"Z", 1, 42, 42, 0, -1, 4194560, *faults, 5, 6, 7, 8]
    return b" ".join(field if isinstance(field, bytes) else b"%d" % field for field in fields)


@pytest.mark.parametrize(
    ("faults", "waited"),
    [((9, 0, 9, 0), False), ((0, 1, 0, 0), True), ((0, 0, 0, 1), True), ((9, 12, 9, 3), True)],
)
def test_who_waited_for_children_has_their_page_faults(faults, waited):
    assert process_memory.waited_for_children(stat(*faults)) is waited


@linux
def test_a_process_of_this_user_is_sampled_once_and_a_zombie_or_a_stranger_is_not():
    child = Child()
    child.hold(100)
    found = process_memory.sample_of(child.pid)
    assert 100 < found.footprint_mib == found.rss_mib < 150
    assert 100 < found.held_mib < found.rss_mib  # Python's own code is mapped from files
    child._process.stdin.close()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert process_memory.sample_of(child.pid) is None
    child.end()
    assert process_memory.sample_of(child.pid) is None


@linux
def test_this_process_counts_its_own_pages():
    before = process_memory.own_memory()
    mine = bytearray(os.urandom(MIB)) * 100
    full = process_memory.own_memory()
    assert full.rss_mib - before.rss_mib == pytest.approx(len(mine) / MIB, abs=5)
    assert full.footprint_mib == full.rss_mib


@linux
@pytest.mark.parametrize(
    ("at_exit", "sampled", "own", "expected"),
    [  # MiB above the parent's own peak: wait4's figure, the last VmHWM, the engine's own report
        (50, 20, None, (50, "wait4 ru_maxrss")),
        (50, 60, None, (60, "wait4 ru_maxrss")),
        (50, 60, 70, (70, "wait4 ru_maxrss")),
        (50, 20, 10, (50, "wait4 ru_maxrss")),
        (0, 20, 30, (30, "VmHWM, the engine's own at its end")),
        (0, 40, 30, (40, "VmHWM, the engine's own at its end")),
        (0, 40, None, (40, "VmHWM, last sample (a lower bound)")),
        (-9, 40, None, (40, "VmHWM, last sample (a lower bound)")),
        (0, None, None, (None, None)),
    ],
)
def test_linux_takes_the_largest_peak_that_is_the_childs_own(at_exit, sampled, own, expected):
    parent = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    child = Child()
    memory = LinuxMemory(child.pid)
    memory.last_look()
    if sampled:
        memory._peak = parent + sampled
    child.end()
    usage = SimpleNamespace(ru_maxrss=(parent + at_exit) * 1024)
    found = memory.exited(usage, own and parent + own)
    peak, source = expected
    assert found == Peaks(
        peak and pytest.approx(parent + peak, rel=1e-9),
        source,
        peak and pytest.approx(parent + peak, rel=1e-9),
    )


def test_the_reader_of_a_child_is_that_of_the_system(monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    assert isinstance(process_memory.memory_of(os.getpid()), MacMemory)
    assert process_memory.memory_of(42)._pid == 42
    if Path("/proc/self/status").exists():
        monkeypatch.setattr(sys, "platform", "linux")
        memory = process_memory.memory_of(os.getpid())
        assert memory.sample().footprint_mib > 5
        memory.exited(USAGE)


@pytest.mark.parametrize("footprint", [300, 0])
def test_on_a_mac_any_process_and_this_one_are_read_by_the_same_call(monkeypatch, footprint):
    buffer = rusage_info(464, footprint, lifetime_max=900, resident=200)
    asked = []
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(process_memory, "_proc_pid_rusage", lambda pid: asked.append(pid) or buffer)
    sample = process_memory.sample_of(42)
    assert sample == (Sample(300, 200, 300) if footprint else None)
    assert process_memory.own_memory() == process_memory.Own(footprint, 200)
    assert asked == [42, os.getpid()]
    monkeypatch.setattr(process_memory, "_proc_pid_rusage", lambda pid: None)
    assert process_memory.sample_of(42) is None


def test_the_energy_of_a_process_on_a_mac_is_in_nanojoules(monkeypatch):
    """ri_energy_nj is at byte 336 of V6, and V4 ends before it (bsd/sys/resource.h)."""
    assert process_memory.process_joules(42) is None or sys.platform == "darwin"
    buffer = bytearray(464)
    struct.pack_into("=Q", buffer, 336, 2_500_000_000)
    monkeypatch.setattr(sys, "platform", "darwin")
    for found, joules in (
        (bytes(buffer), 2.5),
        (bytes(464), None),
        (bytes(buffer) + bytes(16), 2.5),  # of a later version
        (bytes(463), None),
        (bytes(296), None),
        (b"", None),
    ):
        monkeypatch.setattr(process_memory, "_proc_pid_rusage", lambda pid, found=found: found)
        assert process_memory.process_joules(42) == joules


def rusage_info(size: int, footprint: int, lifetime_max: int, resident: int) -> bytes:
    """A struct rusage_info_v4 (296 bytes) or _v6 (464): uuid, then 64-bit counters, in MiB here.

    bsd/sys/resource.h, in order: user_time, system_time, pkg_idle_wkups, interrupt_wkups, pageins,
    wired_size, resident_size, phys_footprint, proc_start_abstime, proc_exit_abstime, child_
    (user_time, system_time, pkg_idle_wkups, interrupt_wkups, pageins, elapsed_abstime),
    diskio_bytesread and _written, cpu_time_qos_ (default, maintenance, background, utility, legacy,
    user_initiated, user_interactive), billed_system_time, serviced_system_time, logical_writes,
    lifetime_max_phys_footprint, …
    """
    counters = [1000 + number for number in range((size - 16) // 8)]
    counters[6], counters[7], counters[28] = resident * MIB, footprint * MIB, lifetime_max * MIB
    return bytes(range(16)) + struct.pack(f"={len(counters)}Q", *counters)


@pytest.mark.parametrize("size", [296, 464])
def test_mac_fields_are_read_from_both_layouts(size):
    fields = parse_rusage_info(rusage_info(size, footprint=300, lifetime_max=14848, resident=200))
    assert fields == {
        "phys_footprint": 300,
        "lifetime_max_phys_footprint": 14848,
        "resident_size": 200,
    }


def test_mac_fields_are_bytes():
    buffer = bytearray(296)
    struct.pack_into("=Q", buffer, 72, 3 * MIB // 2)
    assert parse_rusage_info(bytes(buffer))["phys_footprint"] == 1.5


def test_mac_offsets_are_the_documented_ones():
    assert process_memory.OFFSETS == {
        "resident_size": 64,
        "phys_footprint": 72,
        "lifetime_max_phys_footprint": 240,
    }
    assert process_memory.FLAVOURS == {6: 464, 4: 296}


class System:
    """libSystem's proc_pid_rusage: knows some flavours, and one process."""

    def __init__(self, flavours: dict[int, int], pid: int = 42):
        self.flavours, self.pid, self.asked = flavours, pid, []

    def proc_pid_rusage(self, pid, flavour, buffer) -> int:
        self.asked.append(flavour)
        if flavour not in self.flavours:
            ctypes.set_errno(errno.EINVAL)
            return -1
        if pid != self.pid:
            ctypes.set_errno(errno.ESRCH)
            return -1
        assert len(buffer) == self.flavours[flavour]
        buffer.raw = rusage_info(len(buffer), footprint=3, lifetime_max=9, resident=2)
        return 0


@pytest.mark.parametrize(
    ("flavours", "asked"), [({6: 464, 4: 296}, [6]), ({4: 296}, [6, 4]), ({}, [6, 4])]
)
def test_mac_tries_the_newest_flavour_first(monkeypatch, flavours, asked):
    system = System(flavours)
    monkeypatch.setattr(process_memory, "_system_library", lambda: system)
    sample = MacMemory(42).sample()
    assert system.asked == asked
    assert sample == (Sample(3, 2, 3) if flavours else None)


@pytest.mark.parametrize("number", [errno.ESRCH, errno.EPERM, errno.ENOTSUP])
def test_mac_asks_for_an_older_flavour_only_where_the_system_does_not_know_the_newer(
    monkeypatch, number
):
    def refuse(pid, flavour, buffer) -> int:
        asked.append(flavour)
        ctypes.set_errno(number)
        return -1

    asked: list[int] = []
    system = SimpleNamespace(proc_pid_rusage=refuse)
    monkeypatch.setattr(process_memory, "_system_library", lambda: system)
    assert MacMemory(42).sample() is None
    assert asked == [6]


def test_mac_has_no_sample_of_a_process_that_is_gone(monkeypatch):
    system = System({6: 464})
    monkeypatch.setattr(process_memory, "_system_library", lambda: system)
    assert MacMemory(43).sample() is None
    assert system.asked == [6]


def mac_memory(*buffers: bytes | None) -> MacMemory:
    answers = iter(buffers)
    return MacMemory(42, read=lambda pid: next(answers))


USAGE = SimpleNamespace(ru_maxrss=250 * MIB)


def test_mac_peak_is_read_from_the_zombie_whose_footprint_is_zero():
    zombie = rusage_info(464, footprint=0, lifetime_max=900, resident=0)
    memory = mac_memory(rusage_info(464, footprint=300, lifetime_max=800, resident=200), zombie)
    assert memory.sample().footprint_mib == 300
    memory.last_look()
    assert memory.exited(USAGE) == Peaks(900, "ri_lifetime_max_phys_footprint after exit", 250)


def test_mac_peak_falls_back_to_the_last_live_sample():
    memory = mac_memory(rusage_info(296, footprint=300, lifetime_max=800, resident=200), None)
    memory.sample()
    memory.last_look()
    peaks = memory.exited(USAGE)
    assert peaks.footprint_mib == 800
    assert "last sample (a lower bound)" in peaks.source


def test_mac_knows_no_peak_where_the_system_answered_nothing():
    memory = mac_memory(None, None)
    assert memory.sample() is None
    memory.last_look()
    assert memory.exited(USAGE) == Peaks(None, None, 250)


def test_mac_resident_peak_is_in_bytes():
    """ru_maxrss, which is in kibibytes on Linux."""
    memory = mac_memory(None)
    memory.last_look()
    assert memory.exited(SimpleNamespace(ru_maxrss=3 * MIB // 2)).rss_mib == 1.5


SAMPLED = "ri_phys_footprint, sampled: the lifetime maximum was smaller (a lower bound)"


@pytest.mark.parametrize(
    ("zombie", "peak", "source"),
    [
        ((0, 100), 120, SAMPLED),
        ((0, 130), 130, "ri_lifetime_max_phys_footprint after exit"),
        (None, 120, SAMPLED),
    ],
)
def test_mac_peak_is_the_largest_of_everything_that_was_read(zombie, peak, source):
    """About one read in a hundred gave a lifetime maximum below the current footprint."""
    reads = [rusage_info(464, now, most, resident=50) for now, most in ((100, 100), (120, 100))]
    last = rusage_info(464, *zombie, resident=0) if zombie else None
    memory = mac_memory(*reads, last)
    assert [memory.sample().footprint_mib for _ in reads] == [100, 120]
    memory.last_look()
    assert memory.exited(USAGE) == Peaks(peak, source, 250)


def test_mac_resident_peak_is_no_smaller_than_a_sample():
    memory = mac_memory(rusage_info(464, footprint=300, lifetime_max=300, resident=270), None)
    memory.sample()
    memory.last_look()
    assert memory.exited(USAGE).rss_mib == 270


def linux_reads(memory: LinuxMemory, monkeypatch, *texts: bytes) -> None:
    """Let the samples of a child read these texts of /proc/PID/status."""
    answers = iter(texts)
    monkeypatch.setattr(os, "pread", lambda *_: next(answers))
    for _ in texts:
        memory.sample()


@linux
def test_linux_peak_is_the_largest_of_everything_that_was_read(monkeypatch):
    """The kernel keeps resident sizes in counters per processor: a VmHWM below VmRSS can be
    read.
    """
    child = Child()
    memory = LinuxMemory(child.pid)
    with monkeypatch.context() as patched:
        status = "VmHWM: {} kB\nVmRSS: {} kB\n"
        reads = [status.format(1 << 30, 1 << 30), status.format(1 << 30, 3 << 29)]
        linux_reads(memory, patched, *(text.encode() for text in reads))
    assert memory.exited(child.end()).footprint_mib == (3 << 29) / 1024
