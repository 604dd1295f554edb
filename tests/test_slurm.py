"""The tiny matrix through a real SLURM of one node."""

import importlib.util
import json
import subprocess

import one_node_slurm
import pytest
from conftest import TINY_MATRIX

pytestmark = pytest.mark.slow

WITHOUT_ACCOUNTING = (
    "--slurm-status-command",
    "squeue",
    "--slurm-no-account",
    "--slurm-init-seconds-before-status-checks",
    "2",
)


@pytest.fixture
def slurm(tmp_path):
    if reason := one_node_slurm.why_not():
        pytest.skip(reason)
    if not importlib.util.find_spec("snakemake_executor_plugin_slurm"):
        pytest.skip("no snakemake-executor-plugin-slurm; install requirements/slurm.txt")
    with one_node_slurm.running(tmp_path / "slurm"):
        yield


def test_the_cells_are_jobs_each_alone_on_a_node_and_the_finding_is_rendered(measured, slurm):
    """Only the two cells are missing."""
    measured.set_matrix(TINY_MATRIX | {"kv_caches": ["cat"], "protocol": {"generate": 7}})
    done = measured.snakemake("--profile", "profiles/slurm", *WITHOUT_ACCOUNTING)
    assert done.returncode == 0, done.stdout
    asked = ["scontrol", "show", "jobs"]
    jobs = subprocess.run(asked, capture_output=True, text=True, check=True).stdout
    assert jobs.count("JobState=COMPLETED") == 2
    assert jobs.count("OverSubscribe=NO") == 2  # --exclusive
    for cap in ("none", "1MiB"):
        cell = f"results/cells/mlx-0.32.4/tiny/alice-16/cat/{cap}/default/r1"
        record = json.loads(measured.read(f"{cell}/cell.json"))
        assert (record["outcome"], record["request"]["protocol"]["generate"]) == ("ok", 7)
    assert measured.planned() == {}
