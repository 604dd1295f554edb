"""calibrate.py as it is called."""

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import calibrate

ROOT = Path(__file__).parents[1]
PROGRAM = ROOT / "workflow/scripts/calibrate.py"


def run(*arguments):
    command = [sys.executable, PROGRAM, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_a_type_has_a_peak_of_arithmetic_and_of_bandwidth(tmp_path):
    out = tmp_path / "calibration/mlx.json"
    done = run("--commit", "mlx", "--dtypes", "float32", "--out", out)
    assert done.returncode == 0, done.stderr
    found = json.loads(out.read_text())
    assert (found["commit"], list(found["dtypes"])) == ("mlx", ["float32"])
    assert found["machine"] and found["device"]["accelerator"] in ("cpu", "cuda", "metal")
    figures = found["dtypes"]["float32"]
    assert set(figures) == {"matmul_rows", "flops", "copy", "matvec"}
    assert all(value > 0 for value in figures.values())


@pytest.mark.parametrize(("call_s", "rounds"), [(0.2, 10), (0.01, 50)])
def test_ten_calls_are_made_however_long_they_take_and_short_ones_fill_the_budget(
    monkeypatch, call_s, rounds
):
    now, calls = [0.0], []

    def evaluate(results):
        calls.extend(results)
        now[0] += call_s

    monkeypatch.setattr(calibrate.time, "perf_counter", lambda: now[0])
    fastest = calibrate.best(SimpleNamespace(eval=evaluate), object, 1)
    assert fastest == pytest.approx(call_s)
    assert len(calls) == pytest.approx(1 + rounds, abs=1)


def test_an_environment_that_cannot_measure_is_one_line_and_no_file(tmp_path):
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nexit 3\n")
    python.chmod(0o755)
    done = run("--commit", "mlx", "--python", python, "--out", tmp_path / "mlx.json")
    assert done.returncode == 1
    assert done.stderr == "calibrate: mlx: exit code 3; the lines above say why\n"
    assert not (tmp_path / "mlx.json").exists()
