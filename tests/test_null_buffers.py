"""A write through a null buffer is told from every other crash."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[1] / "workflow/scripts"
PROGRAM = """
import ctypes, os, signal
from kvpeak.live.null_buffer import on_null_buffer
on_null_buffer(lambda: os.write(1, b"reported"))
{crash}
"""

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Linux only")


def crash(statement: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-c", PROGRAM.format(crash=statement)],
        env={"PYTHONPATH": str(SCRIPTS)},
        capture_output=True,
        text=True,
    )


@pytest.mark.parametrize("address", ["8", "3 << 30"])
def test_a_write_near_the_null_pointer_is_reported(address):
    done = crash(f"ctypes.memset({address}, 0, 1)")
    assert (done.returncode, done.stdout) == (0, "reported")


@pytest.mark.parametrize(
    "statement", ["ctypes.memset(1 << 44, 0, 1)", "os.kill(os.getpid(), signal.SIGSEGV)"]
)
def test_any_other_segmentation_fault_stays_one(statement):
    done = crash(statement)
    assert (done.returncode, done.stdout) == (-11, "")
