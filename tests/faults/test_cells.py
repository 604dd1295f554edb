"""Faults of the disk, the clock and the address space under one cell. The runner and its engine are
real.
"""

import json
import os
import sys
from pathlib import Path

import pytest
from cells import CELL, Cell

from kvpeak.experiment.matrix import load_matrix
from kvpeak.runner import attempt
from kvpeak.runner.cell import run_cell


@pytest.fixture
def cell(tmp_path) -> Cell:
    (tmp_path / "project").mkdir()
    return Cell(tmp_path / "project")


def failure(done) -> str:
    """The one line that a failed job ends with."""
    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stderr
    return done.stderr.splitlines()[-1]


@pytest.mark.fault("disk full: runs.csv, cell.json, memory.csv")
@pytest.mark.parametrize("kib", [0, 16, 32])
def test_a_full_disk_leaves_the_old_results_and_says_so(cell, small_disk, kib):
    """So much is free: nothing, some files of the log, some of the result."""
    old = cell.old_results()
    cell.engine("answer()")
    small_disk(cell.folder / "results", kib)
    assert "No space left on device" in failure(cell.run())
    assert cell.results() == old


@pytest.mark.fault("results read-only")
def test_read_only_results_are_one_line_and_stay(cell, read_only):
    old = cell.old_results()
    cell.engine("answer()")
    read_only(cell.folder / "results")
    assert "Read-only file system" in failure(cell.run())
    assert cell.results() == old


@pytest.mark.fault("clock jumps backwards")
def test_a_clock_that_jumps_backwards_changes_no_duration_and_flags_the_cell(cell, monkeypatch):
    now = iter(range(1_800_000_000, 0, -3600))
    monkeypatch.setattr(attempt.time, "time", lambda: next(now))
    monkeypatch.chdir(cell.folder)
    cell.engine("answer()")
    assert run_cell(cell.request(), cell.out.relative_to(cell.folder)) == "ok"
    record = cell.record()
    assert 0 < record["elapsed_s"] < 3600
    assert all(phase["end_s"] >= phase["start_s"] for phase in record["phases"])
    assert any(flag.startswith("clock: the wall clock jumped by -360") for flag in record["flags"])


LIMITED = """#!{python}
import os, resource, sys
resource.setrlimit(resource.RLIMIT_AS, ({limit}, {limit}))
os.execv({python!r}, [{python!r}, *sys.argv[1:]])
"""


@pytest.mark.skipif(sys.platform != "linux", reason="macOS does not enforce RLIMIT_AS")
@pytest.mark.fault("out of memory: RLIMIT_AS, the MLX engine")
def test_a_real_engine_without_address_space_is_oom_and_leaves_what_it_measured(
    measured, monkeypatch
):
    monkeypatch.chdir(measured.folder)
    monkeypatch.setenv("TMPDIR", measured.environment["TMPDIR"])
    matrix = load_matrix()
    planned = matrix.cells_here[0]
    out = Path("results/cells", planned.path)
    before = (out / "runs.csv").read_text()
    limited = Path("limited")
    limited.write_text(LIMITED.format(python=sys.executable, limit=3 << 29))
    limited.chmod(0o755)
    ids = [number % 512 for number in range(20_001)]  # the scores of 20,000 tokens: 3 GiB
    Path("prompts/tiny/long.json").write_text(json.dumps({"tokens": ids}))
    request = matrix.request(planned) | {
        "python": str(limited.resolve()),
        "prompt": {"name": "alice-16", "tokens": len(ids), "path": "prompts/tiny/long.json"},
    }
    assert run_cell(request, out) == "oom"
    assert json.loads((out / "cell.json").read_text())["outcome"] == "oom"
    kept = sorted(Path("results/logs", planned.path).glob("*/runs.csv"))
    assert kept[0].read_text() == before


@pytest.mark.fault("results deleted while the engine runs")
def test_a_folder_that_is_deleted_while_the_engine_runs_is_made_again(cell):
    cell.old_results()
    cell.engine(f"import shutil; shutil.rmtree({os.fspath(cell.out)!r}); answer()")
    assert cell.run().returncode == 0
    assert cell.record()["outcome"] == "ok"
    assert CELL in str(cell.out)
