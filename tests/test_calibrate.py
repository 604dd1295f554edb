"""calibrate.py as it is called."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kvpeak.live import blas, calibration

ROOT = Path(__file__).parents[1]
PROGRAM = ROOT / "workflow/scripts/calibrate.py"


@pytest.fixture
def run(tmp_path):
    """A function that runs the program with a lock of the machine of its own."""

    def run(*arguments):
        command = [sys.executable, PROGRAM, *map(str, arguments)]
        environment = os.environ | {"TMPDIR": str(tmp_path)}
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)

    return run


def test_a_type_has_a_peak_of_arithmetic_and_of_bandwidth(project):
    """Quickly (conftest.Project)."""
    program = project.folder / "workflow/scripts/calibrate.py"
    command = [sys.executable, program, "--commit", "mlx", "--dtypes", "float32", "--out", "x.json"]
    subprocess.run(command, cwd=project.folder, env=project.environment, check=True)
    found = json.loads(project.read("x.json"))
    assert (found["commit"], list(found["dtypes"])) == ("mlx", ["float32"])
    assert found["machine"] and found["device"]["accelerator"] in ("cpu", "cuda", "metal")
    figures = found["dtypes"]["float32"]
    own = {"sgemv"} if found["blas"] and "reference" not in found["blas"] else set()
    assert set(figures) == {"matmul_rows", "flops", "copy", "matvec", "reduction"} | own
    assert all(value > 0 for value in figures.values())


@pytest.mark.slow
def test_the_memory_is_measured_beyond_the_cache_of_this_machine(run, tmp_path):
    out = tmp_path / "calibration/mlx.json"
    done = run("--commit", "mlx", "--dtypes", "float32", "--out", out)
    assert done.returncode == 0, done.stderr
    found = json.loads(out.read_text())
    assert found["moved_bytes"] > (found["last_level_cache_bytes"] or 0)
    assert all(value > 0 for value in found["dtypes"]["float32"].values())


def test_on_a_cpu_the_memory_is_measured_in_float32_whatever_the_models_compute_in(small):
    found = calibration.measure(["bfloat16"], None)
    if found["device"]["accelerator"] != "cpu":
        pytest.skip("this machine has a GPU")
    assert set(found["dtypes"]["bfloat16"]) == {"matmul_rows", "flops"}
    assert {"copy", "matvec", "reduction"} <= set(found["dtypes"]["float32"])
    assert "flops" not in found["dtypes"]["float32"]


@pytest.fixture
def small(monkeypatch):
    """Arrays that are quick to read."""
    monkeypatch.setattr(calibration, "moved_bytes", lambda accelerator, cache: 1 << 20)
    monkeypatch.setattr(calibration, "BUDGET_S", 0.01)


@pytest.mark.parametrize(
    ("accelerator", "cache", "expected"),
    [
        ("cpu", 8 << 20, 64 << 20),
        ("cpu", 48 << 20, 96 << 20),
        ("cpu", None, 64 << 20),
        ("cuda", None, 512 << 20),
    ],
)
def test_an_array_is_larger_than_the_cache(accelerator, cache, expected):
    assert calibration.moved_bytes(accelerator, cache) == expected


@pytest.mark.parametrize(("call_s", "rounds"), [(0.2, 10), (0.01, 50)])
def test_ten_calls_are_made_however_long_they_take_and_short_ones_fill_the_budget(call_s, rounds):
    now, calls = [0.0], []

    def run():
        calls.append(None)
        now[0] += call_s

    found = calibration.shortest(run, 10, 0.5, clock=lambda: now[0])
    assert found == pytest.approx(call_s)
    assert len(calls) == pytest.approx(1 + rounds, abs=1)


def test_the_matrix_vector_product_of_the_blas_reads_every_row():
    gemv = blas.sgemv()
    if gemv is None:
        pytest.skip("no other BLAS than the reference serves here")
    seen = []

    def product(*arguments):
        seen.append(arguments[2:4])
        gemv(*arguments)

    assert calibration.sgemv_bytes_s(product, 1 << 20) > 0
    assert set(seen) == {(64, 4096)}


def test_an_environment_that_cannot_measure_is_one_line_and_no_file(run, tmp_path):
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nexit 3\n")
    python.chmod(0o755)
    done = run("--commit", "mlx", "--python", python, "--out", tmp_path / "mlx.json")
    assert done.returncode == 1
    assert done.stderr == "calibrate: mlx: exit code 3; the lines above say why\n"
    assert not (tmp_path / "mlx.json").exists()
