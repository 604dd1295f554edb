"""The matrix for NVIDIA GPUs: planned here, run there."""

import pytest
from conftest import ROOT

from kvpeak.base.errors import UserError
from kvpeak.experiment.matrix import load_matrix
from kvpeak.system import host
from kvpeak.system.host import gpus_asked_for


@pytest.fixture
def matrix(monkeypatch):
    monkeypatch.chdir(ROOT)
    return load_matrix("config/cuda/matrix.yaml")


def test_without_a_gpu_every_cell_stays_in_the_plan_with_the_reason(matrix, monkeypatch):
    monkeypatch.setenv("KVPEAK_ACCELERATOR", "cpu")
    plan = list(matrix.plan())
    assert len(plan) == 114
    assert all(reason.startswith("needs a GPU") for _, reason in plan)
    assert matrix.cells_here == []


def test_with_one_every_cell_runs(matrix, monkeypatch):
    monkeypatch.setenv("KVPEAK_ACCELERATOR", "cuda")
    assert len(matrix.cells_here) == 114


def test_more_gpus_than_the_machine_has_are_one_line(tmp_path, monkeypatch):
    monkeypatch.setattr(host, "DEV", tmp_path)
    assert gpus_asked_for(2, "cuda") == 2  # WSL shows none
    for name in ("nvidia0", "nvidia3", "nvidiactl", "nvidia-uvm", "nvidia-caps"):
        (tmp_path / name).touch()
    assert gpus_asked_for(2, "cuda") == 2
    with pytest.raises(UserError, match="--config gpus: 3; expected at most 2, the GPUs of this"):
        gpus_asked_for(3, "cuda")


def test_several_gpus_are_a_number_and_need_cuda(tmp_path, monkeypatch):
    monkeypatch.setattr(host, "DEV", tmp_path)
    assert gpus_asked_for("2", "cuda") == 2
    assert gpus_asked_for(0, "cpu") == 0
    for given, accelerator in ((2, "cpu"), (-1, "cuda"), ("all", "cuda"), (None, "cuda")):
        with pytest.raises(UserError, match=f"--config gpus: {given}; expected"):
            gpus_asked_for(given, accelerator)
