"""The sentence that a comparison comes to, on the small result set (tests/data/small)."""

from dataclasses import replace
from pathlib import Path

import pytest

from kvpeak.analysis.comparisons import Comparison, compare
from kvpeak.analysis.lead import TITLES, lead, leading
from kvpeak.analysis.results import read_results
from kvpeak.analysis.setting import STOCK, is_stock, spell_env
from kvpeak.base.fields import join_texts

SMALL = Path(__file__).parent / "data/small"


@pytest.fixture(scope="module")
def small():
    return read_results(*(SMALL / name for name in ("plan.csv", "summary.csv", "runs.csv")))


def test_the_lead_is_the_largest_change_in_plain_numbers(small):
    found = lead(compare(small, "cap", "none", "32MiB"))
    assert found.title == (
        "In a laboratory setting: with a cap of 32MiB on the buffer pool the peak of tiny with cat "
        "at 513 tokens falls from 1,000 to 440 MiB"
    )
    assert found.sentence.startswith(
        "In a laboratory setting, not as mlx-lm runs (the cat cache, neither cap is "
        "the engine's own, this project's loop): with a cap of 32MiB on the buffer pool, tiny with "
        "the cat cache on a prompt of 513 tokens (mlx-0.32.4) peaks at 440 MiB "
        "(438 to 441) instead of 1,000 MiB (998 to 1,001) "
        "(2.27× less; medians of 4 processes a side)."
    )
    assert found.speeds.startswith(
        "Prefill is the same within 5 % (ratio 1.000 (1.000 to 1.000), n = 4 and 4), "
        "decode is the same within 5 % (ratio 1.002 (0.9"
    )


def test_a_workload_is_named_in_the_title_and_the_sentence(small):
    summary = {cell: row | {"workload": "batch 4"} for cell, row in small.summary.items()}
    found = lead(compare(replace(small, summary=summary), "cap", "none", "32MiB"))
    assert "the peak of tiny with cat on a batch of 4 sequences falls" in found.title
    assert "tiny with the cat cache on a batch of 4 sequences (mlx-0.32.4)" in found.sentence


def stock(small, **changes):
    """The small result set, each cell as mlx-lm runs it but for its cap."""
    renamed = {}
    for cell, row in small.summary.items():
        cap = row["cap"].replace("none", "default")
        renamed[cell] = row | {"kv_cache": "mlx-lm", "loop": "mlx-lm", "cap": cap} | changes
    return replace(small, summary=renamed)


def test_a_setting_that_mlx_lm_has_on_one_side_needs_no_preface(small):
    both = stock(small)
    assert not lead(compare(both, "cap", "none", "32MiB")).title.startswith("In a laboratory")
    naive = lead(compare(stock(small, attention="naive"), "cap", "none", "32MiB"))
    assert naive.sentence.startswith(
        "In a laboratory setting, not as mlx-lm runs (naive attention): with"
    )


def test_a_pair_with_a_stock_side_leads_before_a_larger_change_of_the_laboratory(small):
    """The largest change is of cat at 513 tokens; a smaller one has mlx-lm's own setting before."""
    summary = dict(small.summary)
    for cap, peak in (("none", 200.0), ("32MiB", 150.0)):
        cell = ("mlx-0.32.4", "tiny", "alice-512", "prealloc", cap, "default")
        ends = dict.fromkeys(("peak_mib", "peak_min_mib", "peak_max_mib"), peak)
        own = {"kv_cache": "mlx-lm", "loop": "mlx-lm", "cap": "default"}
        summary[cell] = summary[cell] | ends | own
    found = leading([compare(replace(small, summary=summary), "cap", "none", "32MiB")])
    assert found.pair.names["kv_cache"] == "prealloc"
    assert "In a laboratory" not in found.sentence


def test_the_lead_says_when_speed_cannot_be_told(small):
    found = lead(compare(small, "kv_cache", "cat", "prealloc"))
    assert found.title.endswith(
        "with the prealloc cache instead of cat the peak of tiny with no cap at 513 tokens falls "
        "from 1,000 to 430 MiB"
    )
    assert found.sentence.endswith("(2.33× less; medians of 1 and 4 processes).")
    assert found.speeds == (
        "There are too few processes to compare this pair's speeds: it takes 4 a side at least."
    )
    assert "(mlx-0.32.4, no cap)" in found.sentence


def test_the_lead_says_when_there_is_nothing(small):
    prealloc = {cell: row for cell, row in small.summary.items() if cell[3] == "prealloc"}
    found = lead(compare(replace(small, summary=prealloc), "cap", "none", "32MiB"))
    assert found.pair is None
    assert found.title == "With a cap of 32MiB on the buffer pool no peak changes by more than 5 %"
    assert found.sentence.endswith(
        "each of 2 pairs of cells differs by at most 5 % (ratios 1.00 to 1.00)."
    )
    found = lead(compare(replace(small, summary={}), "cap", "none", "32MiB"))
    assert found.title.endswith("nothing to compare")


def test_a_measured_change_leads_before_a_larger_prediction(small):
    replayed = ("candle", "tiny", "alice-512", "cat")
    plan, summary = dict(small.plan), dict(small.summary)
    for cap, peak in (("none", 9000.0), ("32MiB", 1000.0)):
        cell = (*replayed, cap, "default")
        row = small.summary["mlx-0.32.4", "tiny", "alice-512", "cat", cap, "default"]
        peaks = {"peak_mib": peak, "peak_min_mib": peak, "peak_max_mib": peak}
        plan[cell], summary[cell] = "", row | peaks | {"method": "replayed: counted"}
    both = replace(small, plan=plan, summary=summary)
    assert lead(compare(both, "cap", "none", "32MiB")).pair.names["commit"] == "mlx-0.32.4"
    only = {cell: row for cell, row in summary.items() if cell[0] == "candle"}
    found = lead(compare(replace(both, summary=only), "cap", "none", "32MiB"))
    assert found.sentence.endswith(
        "(9.00× less; medians of 4 processes a side) for the replayed pool and the weights, "
        "in the books (replayed: counted)."
    )
    assert found.speeds == "Speed was not measured."


@pytest.mark.parametrize("axis", TITLES)
def test_every_axis_has_a_title(axis):
    found = lead(Comparison(axis, "a", "b", []))
    assert "b" in found.title


def test_the_audited_upgrade_leads_with_the_limit_that_mlx_has_by_itself(small):
    """From 0.31.2 to 0.32.4 the peak is 85 to 104 MiB with MLX's own limit, 85 to 660 without."""
    template = next(iter(small.summary.values()))
    own = {"kv_cache": "mlx-lm", "loop": "mlx-lm"}
    plan, summary = {}, {}
    for cap, new in (("default", 104.0), ("none", 660.0)):
        for commit, peak in (("mlx-0.31.2", 85.0), ("mlx-0.32.4", new)):
            cell = (commit, "qwen2-tiny", "alice-512", "mlx-lm", cap, "stock")
            ends = dict.fromkeys(("peak_mib", "peak_min_mib", "peak_max_mib"), peak)
            names = {"commit": commit, "model": "qwen2-tiny", "cap": cap}
            plan[cell], summary[cell] = "", template | ends | own | names
    results = replace(small, plan=plan, summary=summary)
    found = leading([compare(results, "commit", "mlx-0.31.2", "mlx-0.32.4")])
    assert found.title.endswith("rises from 85 to 104 MiB")
    assert "In a laboratory" not in found.title


def test_a_cell_with_an_environment_variable_of_its_own_is_not_stock():
    row = {"method": "live", "versions": "mlx 0.32.4", "attention": "fused", **STOCK}
    assert is_stock(row)
    assert not is_stock(row | {"env": "MLX_CUDA_USE_CUDNN_SDPA=0"})
    several = join_texts([join_texts(["A=1", "B=2"])])  # of a process, and of its cell
    assert spell_env({"env": several}) == spell_env({"env": "A=1; B=2"}) == "A=1 and B=2"
