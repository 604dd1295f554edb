"""The default matrix on Apple silicon: planned here, run there."""

import os
import platform
import subprocess
import sys

import pytest
from conftest import ROOT

from kvpeak.environments import requirements, resolve
from kvpeak.environments.releases import until
from kvpeak.experiment.matrix import Matrix, load_matrix
from kvpeak.experiment.preparation import needs
from kvpeak.protocol.programs import PROGRAMS, SCRIPTS
from kvpeak.system import host

# Chip → its macOS: MLX has a wheel for each of the three that are named in their tags.
MACS = {
    "Apple M1 Max": "14.0",
    "Apple M2": "14.6",
    "Apple M3 Pro": "15.0",
    "Apple M4": "15.5",
    "Apple M4 Pro": "26.0",
}


@pytest.fixture
def matrix(monkeypatch, tmp_path) -> Matrix:
    """The default matrix on a Mac without git, cargo or any other program."""
    monkeypatch.chdir(ROOT)
    monkeypatch.delenv("KVPEAK_ACCELERATOR", raising=False)
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(platform, "machine", lambda: "arm64")
    monkeypatch.setattr(requirements, "installed_version", lambda *names: None)
    monkeypatch.setattr(resolve, "known", lambda *asked: None)  # what was found for this machine
    monkeypatch.setenv("PATH", str(tmp_path))
    return load_matrix("config/matrix.yaml")


def test_every_planned_cell_runs_on_a_mac(matrix):
    assert host.accelerator() == "metal"
    left_out = [reason for _, reason in matrix.plan() if reason]
    assert left_out == []
    assert {matrix.commits[cell.commit]["engine"] for cell in matrix.cells_here} == set(PROGRAMS)


def test_every_planned_cell_has_a_program_of_this_project_and_needs_no_other(matrix):
    for cell in matrix.cells_here:
        commit = matrix.commits[cell.commit]
        assert (SCRIPTS / PROGRAMS[commit["engine"]]).is_file()
        assert set(commit) <= {"engine", "packages"}  # nothing to clone, to build or to find
        assert not any("engines" in need.made.parts for need in needs(matrix, cell))


@pytest.mark.slow
@pytest.mark.parametrize("chip", MACS)
def test_every_planned_environment_has_wheels_for_that_mac(matrix, chip, monkeypatch, tmp_path):
    commits = {cell.commit for cell in matrix.cells_here}
    asked = [matrix.commits[name].get("packages", {}) for name in commits]
    monkeypatch.undo()
    for packages in filter(None, asked):
        wanted = tmp_path / "wanted.txt"
        wanted.write_text("\n".join(requirements.requirements(packages, None)))
        end = until(requirements.completed(packages))
        done = subprocess.run(
            [
                *(sys.executable, "-m", "uv", "pip", "compile", wanted, "--quiet"),
                *("--python-platform", "aarch64-apple-darwin", "--only-binary", ":all:"),
                *(["--exclude-newer", end] if end else []),
            ],
            env=os.environ | {"MACOSX_DEPLOYMENT_TARGET": MACS[chip]},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, f"{packages}: {done.stderr}"
