"""The power cut in small; `make faults` does it 30 times from nothing."""

import shutil

import power_cut
import pytest
from conftest import TINY_MATRIX, Project

pytestmark = pytest.mark.slow


@pytest.mark.fault("power cut: SIGKILL to Snakemake's process group at a random moment")
def test_after_a_power_cut_one_plain_run_ends_in_the_same_finding(_measured, tmp_path):
    def make(folder) -> Project:
        """The measured project without results, so that a run is two cells and the analysis."""
        shutil.copytree(_measured, folder, symlinks=True)
        shutil.rmtree(folder / "results/cells")
        shutil.rmtree(folder / "results/logs")
        project = Project(folder)
        project.set_matrix(TINY_MATRIX | {"kv_caches": ["cat"]})
        return project

    power_cut.power_cuts(2, 1, tmp_path, make)
