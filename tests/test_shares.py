"""What a peak consists of, and which axis it goes with."""

import numpy as np
import pytest

from kvpeak.analysis.parts import parts_of
from kvpeak.analysis.results import Results
from kvpeak.analysis.variance import shares_of_variance

ROW = {"method": "live", "outcome": "ok", "accelerator": "cpu"}


def process(peak, pool, active, loaded=20) -> dict:
    return {
        "peak_footprint_mib": peak,
        "peak_pool_mib": pool,
        "peak_active_mib": active,
        "loaded_mib": loaded,
    }


def test_counters_of_different_processes_are_not_subtracted():
    """The pool exceeds the live bytes by 100 in the middle process, whatever the others show."""
    processes = [process(1000, 900, 300), process(500, 400, 300), process(800, 700, 600)]
    assert parts_of(ROW, processes) == [20, 580, 100, 100]


def test_without_processes_the_cell_s_own_figures_serve():
    assert parts_of(ROW | process(660, 614, 37), []) == [20, 17, 577, 46]


def test_a_replay_a_failure_and_a_missing_counter_have_no_parts():
    whole = ROW | process(660, 614, 37)
    assert parts_of(whole | {"method": "replayed: real"}, []) is None
    assert parts_of(whole | {"outcome": "oom"}, []) is None
    assert parts_of(whole | {"peak_pool_mib": None}, []) is None


def results(peak) -> Results:
    """Cells of two attentions and three caches at two lengths; `peak(prompt, cache, variant)`."""
    summary = {}
    for tokens in (513, 8193):
        for cache in ("cat", "prealloc", "mlx-lm"):
            for variant in ("naive", "fused"):
                names = ("mlx", "m", f"p{tokens}", cache, "none", variant)
                axes = ("commit", "model", "prompt", "kv_cache", "cap", "variant")
                summary[names] = ROW | dict(zip(axes, names, strict=True))
                summary[names] |= {
                    "prompt_tokens": tokens,
                    "peak_mib": peak(tokens, cache, variant),
                }
    return Results({}, summary, {})


def test_the_axis_that_decides_has_the_whole_variance():
    peak = {"naive": 14_000.0, "fused": 4_000.0}
    for shares in shares_of_variance(results(lambda tokens, cache, variant: peak[variant])):
        assert (shares.cells, shares.first) == (6, "variant")
        assert shares.shares == {"variant": pytest.approx(1), "kv_cache": pytest.approx(0)}


def test_two_axes_share_the_variance_by_their_sums_of_squares():
    effect = {"naive": np.log(2), "fused": 0.0, "cat": 0.3, "prealloc": 0.0, "mlx-lm": -0.3}
    found = shares_of_variance(
        results(lambda tokens, cache, variant: 1000 * np.exp(effect[cache] + effect[variant]))
    )
    between = {"variant": np.log(2) ** 2 / 4, "kv_cache": 2 * 0.3**2 / 3}
    whole = sum(between.values())
    assert found[0].shares == {axis: pytest.approx(part / whole) for axis, part in between.items()}


def test_equal_peaks_have_no_shares():
    assert shares_of_variance(results(lambda *_: 1000.0)) == []


def test_axes_that_change_together_are_named_together():
    found = results(lambda tokens, cache, variant: {"naive": 14_000.0, "fused": 4_000.0}[variant])
    summary = {
        cell: row | {"cap": {"naive": "none", "fused": "default"}[row["variant"]]}
        for cell, row in found.summary.items()
    }
    first, *_ = shares_of_variance(Results({}, summary, {}))
    assert first.together == ["cap", "variant"]
