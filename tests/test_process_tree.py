"""What an engine starts counts for the guard and beside its own peak, and ends with it."""

import os
import sys

import psutil
import pytest
from cells import Cell

from kvpeak.runner.record import TREE, with_tree
from kvpeak.system.process_tree import children

TOUCH = "import time; held = bytearray(b'x') * ({mib} << 20); time.sleep({seconds})"
START = "subprocess.run([sys.executable, '-c', {code!r}]); "


@pytest.fixture
def cell(tmp_path) -> Cell:
    return Cell(tmp_path)


def starting(mib: int, seconds: float) -> str:
    """An engine that starts a process that touches memory, and waits for it."""
    started = START.format(code=TOUCH.format(mib=mib, seconds=seconds))
    return f"load(); begin(0); {started}finish(0); begin(1); finish(1); begin(2); finish(2); done()"


def test_the_peak_of_the_tree_stands_beside_that_of_the_engine(cell):
    cell.engine(starting(300, 0.5))
    assert cell.run().returncode == 0
    memory = cell.record()["memory"]
    assert memory["peak_footprint_mib"] < 60
    assert 300 < memory["peak_tree_mib"] < 360


def test_an_engine_that_starts_nothing_has_no_tree(cell):
    cell.engine("answer()")
    assert cell.run().returncode == 0
    assert cell.record()["memory"]["peak_tree_mib"] is None


def test_the_guard_counts_what_the_engine_starts(cell):
    cell.engine(starting(600, 60))
    fraction = 300 / (psutil.virtual_memory().available / 2**20)
    assert cell.run(limits={"guard_fraction": fraction}).returncode == 0
    record = cell.record()
    assert record["outcome"] == "guard"
    assert record["elapsed_s"] < 30


ORPHAN = """
load()
code = "import os, sys, time; open('orphan', 'w').write(str(os.getpid())); time.sleep(60)"
start = 'setsid "$0" -c "$1" & while [ ! -s orphan ]; do :; done'
subprocess.run(["sh", "-c", start, sys.executable, code])
for number in range(3):
    begin(number)
    finish(number)
done()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux lets a process inherit orphans")
def test_an_orphan_that_left_the_session_ends_with_the_engine(cell):
    cell.engine(ORPHAN)
    assert cell.run().returncode == 0
    pid = int((cell.folder / "orphan").read_text())
    assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == "zombie"


@pytest.mark.parametrize(
    ("external", "own", "tree", "peak", "source"),
    [
        (True, 10.0, 600.0, 600.0, TREE),
        (True, 700.0, 600.0, 700.0, "own"),
        (True, 10.0, None, 10.0, "own"),
        (True, None, 600.0, 600.0, TREE),
        (False, 10.0, 600.0, 10.0, "own"),
    ],
)
def test_what_an_external_program_starts_is_the_program(external, own, tree, peak, source):
    """A wrapper of 10 MiB whose child touches 600: uv run, sh, cargo run."""
    memory = {"peak_footprint_mib": own, "peak_footprint_source": "own"}
    found = with_tree(memory, tree, external)
    assert found == {
        "peak_footprint_mib": peak,
        "peak_footprint_source": source,
        "peak_tree_mib": tree,
    }
    assert "lower bound" in TREE


def test_a_process_that_has_gone_has_no_children():
    assert children(2**22 + 1) == set()
    assert os.getpid() in children(os.getppid())
