"""The table of faults: every test that injects one is marked `fault`, wherever it lies."""

from collections import Counter

import pytest


def pytest_collection_modifyitems(items):
    for item in items:
        if marker := item.get_closest_marker("fault"):
            item.user_properties.append(("fault", marker.args[0]))


def pytest_terminal_summary(terminalreporter):
    """Print how often each fault was injected, survived, and lost something (a test that failed)."""
    counts = {outcome: Counter() for outcome in ("passed", "failed", "skipped")}
    for outcome, count in counts.items():
        for report in terminalreporter.getreports(outcome):
            if report.when == "call" or outcome != "passed":
                count.update(value for key, value in report.user_properties if key == "fault")
    passed, failed, skipped = counts.values()
    if not passed + failed + skipped:
        return
    terminalreporter.section("faults")
    line = "{:<100} {:>8} {:>8} {:>4}".format
    terminalreporter.write_line(line("fault", "injected", "survived", "lost"))
    for name in sorted({*passed, *failed, *skipped}):
        note = f"  ({skipped[name]} not possible here)" if skipped[name] else ""
        row = line(name, passed[name] + failed[name], passed[name], failed[name])
        terminalreporter.write_line(row + note)
    injected, survived, lost = (passed + failed).total(), passed.total(), failed.total()
    terminalreporter.write_line(line("all", injected, survived, lost))


@pytest.fixture
def small_disk(tmp_path):
    """A function that mounts a disk of so many KiB at a folder and copies into it what was there."""
    from disks import Disks

    with Disks(tmp_path) as disks:
        yield disks.small


@pytest.fixture
def read_only(tmp_path):
    """A function that makes a folder read-only, for root too."""
    from disks import Disks

    with Disks(tmp_path) as disks:
        yield disks.read_only
