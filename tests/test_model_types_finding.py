"""Models of unusual types through the whole pipeline: cells, tables, limits, figures, finding."""

import shutil

import pytest
import yaml
from conftest import ROOT, Project

from kvpeak.base.untrusted import read_csv
from kvpeak.experiment.matrix import load_matrix

pytestmark = pytest.mark.slow

MATRIX = ROOT / "config/model-types/matrix.yaml"
UNUSUAL = ("gpt2", "mamba2", "qwen3_next", "gemma3n", "deepseek_v3", "gpt_oss")
UNSUPPORTED = {
    ("mamba2", "cat"): "and this one has none: layers 0-3: ArraysCache",
    ("mamba2", "quantized-8"): "and this one has none: layers 0-3: ArraysCache",
    ("deepseek_v3", "quantized-8"): "layer 0 (QuantizedKVCache): ",
    ("gpt_oss", "quantized-8"): "layer 1 (QuantizedKVCache): ",
}
GROWTH = """
claims:
  - claim: The pool keeps what the cache frees
    kind: pool-growth
    source: a test
    of: {kv_cache: cat, cap: none}
    to: {kv_cache: prealloc}
    column: peak_pool_mib
    tolerance_pct: 5
"""


@pytest.fixture
def cut(project):
    """A project of some models of the matrix of all types, with changes of its sections."""

    def make(*models: str, **sections) -> Project:
        shutil.copytree(MATRIX.parent, project.folder / "config/model-types")
        matrix = yaml.safe_load(MATRIX.read_text())
        chosen = {name: matrix["models"][name] for name in models}
        project.set_matrix(matrix | {"models": chosen} | sections)
        return project

    return make


def test_the_matrix_has_every_config_but_the_one_that_corrupts_memory(monkeypatch):
    monkeypatch.chdir(ROOT)
    matrix = load_matrix(str(MATRIX.relative_to(ROOT)))
    configs = {file.stem for file in MATRIX.parent.glob("*.json")}
    assert configs - set(matrix.models) == {"phi3small"}
    assert len(matrix.models) >= 52
    assert len(matrix.cells_here) == 3 * len(matrix.models)


def test_every_cell_is_in_the_finding_or_unsupported_by_layer_and_cache(cut):
    project = cut(*UNUSUAL)
    done = project.snakemake()
    assert done.returncode == 0, done.stdout
    summary = read_csv(project.folder / "results/summary.csv")
    assert len(summary) == 3 * len(UNUSUAL)
    for row in summary:
        reason = UNSUPPORTED.get((row["model"], row["kv_cache"]))
        assert row["outcome"] == ("unsupported" if reason else "ok"), row["detail"]
        assert (reason or "") in row["detail"]
        if not reason:
            assert row["kv_layers"] and float(row["peak_footprint_mib"]) > 0
            same = row["kv_bytes_per_token"] == row["kv_bytes_from_shapes"]
            assert bool(row["kv_difference"]) != same
    details = project.read("report/details.md")
    table = details.split("## What the KV caches hold")[1].split("\n## ")[0]
    assert all(f"| `{name}` |" in table for name in UNUSUAL)
    assert "a latent of 128 values and 64 of the position, not the heads" in table
    assert "4 of 18 cells" in project.read("report/finding.md")
    assert project.read("report/finding.html").startswith("<!DOCTYPE html>")


def test_the_pool_grows_by_what_a_latent_cache_frees(cut):
    """The shapes of its heads say a third less."""
    project = cut(
        "deepseek_v3",
        prompts={"alice-128": {"tokens": 129}},
        kv_caches=["cat", "prealloc"],
        caps=["none"],
        compare=[],
        protocol={"warmup": 0, "recorded": 1, "generate": 32},
    )
    project.write("config/expected.yaml", GROWTH)
    assert project.snakemake().returncode == 0
    (verdict,) = read_csv(project.folder / "results/checks.csv")
    assert verdict["verdict"] == "holds", verdict["detail"]
