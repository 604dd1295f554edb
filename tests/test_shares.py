"""What a peak consists of, and which axis it goes with."""

import json
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from kvpeak.analysis.parts import parts_of
from kvpeak.analysis.results import Results
from kvpeak.analysis.variance import residual_freedom, shares_of_variance
from kvpeak.report.deciders import variance_lines

CACHES = ("cat", "prealloc", "mlx-lm", "own", "paged", "cat-contiguous", "ring")
# Read, as a table is: equal words are not the same object.
ROW = json.loads('{"method": "live", "outcome": "ok", "accelerator": "cpu"}')


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
    """Cells of two attentions and seven caches at two lengths; `peak(prompt, cache, variant)`."""
    summary = {}
    for tokens in (513, 8193):
        for cache in CACHES:
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
        assert (shares.cells, shares.first) == (14, "variant")
        assert shares.shares == {"variant": pytest.approx(1), "kv_cache": pytest.approx(0)}


def test_two_axes_share_the_variance_by_their_sums_of_squares():
    steps = dict(zip(CACHES, (0.3, 0.2, 0.1, 0.0, -0.1, -0.2, -0.3), strict=True))
    effect = {"naive": np.log(2), "fused": 0.0} | steps
    found = shares_of_variance(
        results(lambda tokens, cache, variant: 1000 * np.exp(effect[cache] + effect[variant]))
    )
    between = {"variant": np.log(2) ** 2 / 4, "kv_cache": 2 * (0.09 + 0.04 + 0.01) / 7}
    whole = sum(between.values())
    assert found[0].shares == {axis: pytest.approx(part / whole) for axis, part in between.items()}


@pytest.mark.parametrize(
    "change",
    [
        {"method": "replayed: real"},
        {"method": "imagined"},  # in the alphabet before live
        {"outcome": "oom"},
        {"peak_mib": 0.0},
        {"peak_mib": None},
    ],
)
def test_only_live_cells_that_ended_well_and_have_a_peak_are_counted(change):
    cells = results(lambda tokens, cache, variant: {"naive": 2000.0, "fused": 1000.0}[variant])
    one, *_ = cells.summary
    cells.summary[one] |= change
    found = shares_of_variance(cells)
    assert [each.cells for each in found] == [13, 14]
    assert found[0].shares["variant"] == pytest.approx(1)


def test_equal_peaks_have_no_shares():
    assert shares_of_variance(results(lambda *_: 1000.0)) == []


def capped(cap_of) -> Results:
    """Cells whose peak goes with the variant, one a little less, and whose cap is
    `cap_of(cache, variant)`.
    """
    peaks = {("own", "fused"): 7_000.0}
    found = results(
        lambda tokens, cache, variant: (
            14_000.0 if variant == "naive" else peaks.get((cache, variant), 4_000.0)
        )
    )
    summary = {
        cell: row | {"cap": cap_of(row["kv_cache"], row["variant"])}
        for cell, row in found.summary.items()
    }
    return Results({}, summary, {})


def test_axes_whose_names_change_together_are_not_told_apart():
    caps = {"naive": "none", "fused": "default"}
    first, *_ = shares_of_variance(capped(lambda cache, variant: caps[variant]))
    assert first.together == ["cap", "variant"]
    assert first.overlapping == []
    assert "the cap and the variant, which these cells do not tell apart" in first_line(caps)


def first_line(caps: dict[str, str]) -> str:
    return variance_lines(capped(lambda cache, variant: caps[variant]))[0]


def test_axes_with_shares_as_large_are_told_apart_where_one_cell_tells():
    """One cell of the fused has the naive ones' cap: both axes go with the peak, not as one."""
    one = capped(lambda cache, variant: "naive" if cache == "own" else variant)
    first, *_ = shares_of_variance(one)
    assert first.together == ["variant"]
    assert first.overlapping == ["cap"]
    assert "about as much with the cap: the shares overlap" in variance_lines(one)[0]


def test_a_model_with_a_parameter_for_nearly_every_cell_has_no_shares():
    """Four cells of four settings: any peaks would give shares near 1."""
    some = results(lambda tokens, cache, variant: {"naive": 14_000.0, "fused": 4_000.0}[variant])
    rows = [row for row in some.summary.values() if row["kv_cache"] in CACHES[:2]][:4]
    assert (residual_freedom(rows), residual_freedom(rows * 2)) == (1, 5)
    few = {cell: row for cell, row in some.summary.items() if row["kv_cache"] in CACHES[:2]}
    assert shares_of_variance(Results({}, few, {})) == []
    more = few | {cell: row for cell, row in some.summary.items() if row["prompt"] == "p8193"}
    assert [shares.cells for shares in shares_of_variance(Results({}, more, {}))] == [14]


def test_a_share_of_nine_tenths_of_the_largest_is_about_as_large():
    one, *_ = shares_of_variance(
        results(lambda _, cache, variant: {"naive": 2000.0, "fused": 1000.0}[variant])
    )
    given = {"cap": 0.4, "variant": 0.37, "kv_cache": 0.35}
    assert replace(one, shares=given, together=["cap"]).overlapping == ["variant"]


def test_a_line_says_how_many_cells_are_left_over():
    line, *_ = variance_lines(
        results(lambda _, cache, variant: {"naive": 2000.0, "fused": 1000.0}[variant])
    )
    assert line.endswith("(6 residual degrees of freedom).")


def test_a_workload_has_a_line_of_its_own_and_no_length():
    found = results(lambda _, cache, variant: {"naive": 2000.0, "fused": 1000.0}[variant])
    for row in found.summary.values():
        if row["prompt"] == "p8193":
            row["workload"] = "turns 40"
    plain, session = variance_lines(found)
    assert "14 cells at 513 tokens, 100" in plain
    assert "14 cells on a session of 40 turns, 100" in session
    assert "8,193" not in plain + session


def crossed(logs: np.ndarray) -> Results:
    """One cell for each cache (row) and cap (column), with these logarithms of the peak."""
    summary = {}
    for row, cache in enumerate(CACHES[: len(logs)]):
        for column in range(logs.shape[1]):
            names = ("mlx", "m", "p", cache, f"{column}x", "v")
            axes = ("commit", "model", "prompt", "kv_cache", "cap", "variant")
            summary[names] = ROW | dict(zip(axes, names, strict=True))
            summary[names] |= {"prompt_tokens": 9, "peak_mib": float(np.exp(logs[row, column]))}
    return Results({}, summary, {})


def test_an_axis_has_a_share_where_the_f_test_of_two_ways_says_so():
    """Scheffé 1959, section 4.1: one observation a cell, the two axes crossed, no interaction."""
    rng, seen = np.random.default_rng(0), set()
    for _ in range(60):
        rows, columns = int(rng.integers(3, 8)), int(rng.integers(3, 5))
        logs = 5 + rng.normal(0, 0.1, (rows, columns)) + rng.normal(0, 0.1, (rows, 1))
        effects = {
            "kv_cache": (columns * ((logs.mean(1) - logs.mean()) ** 2).sum(), rows - 1),
            "cap": (rows * ((logs.mean(0) - logs.mean()) ** 2).sum(), columns - 1),
        }
        whole, freedom = ((logs - logs.mean()) ** 2).sum(), (rows - 1) * (columns - 1)
        left = (whole - sum(square for square, _ in effects.values())) / freedom
        expected = {
            axis: square / whole
            for axis, (square, degrees) in effects.items()
            if stats.f.sf(square / degrees / left, degrees, freedom) < 0.05
        }
        found = shares_of_variance(crossed(logs))
        if freedom < 5:
            assert found == []
            continue
        assert (found[0].shares if found else {}) == pytest.approx(expected)
        seen.add(frozenset(expected))
    assert len(seen) == 4  # neither, each alone, both


@pytest.mark.parametrize(("rows", "columns", "told"), [(3, 3, False), (6, 2, True)])
def test_fewer_than_five_residual_degrees_of_freedom_tell_nothing(rows, columns, told):
    logs = (
        5.0 + np.arange(rows)[:, None] + np.random.default_rng(1).normal(0, 0.01, (rows, columns))
    )
    assert bool(shares_of_variance(crossed(logs))) is told


def test_axes_go_together_only_where_their_names_change_one_to_one():
    """Each cache has its own commit; one variant belongs to two caches."""
    logs = 5.0 + np.arange(4)[:, None] + np.random.default_rng(2).normal(0, 0.01, (4, 4))
    variants = dict(zip(CACHES, ("a", "a", "b", "c"), strict=False))
    results, summary = crossed(logs), {}
    for names, row in results.summary.items():
        cache = row["kv_cache"]
        more = {"commit": f"of {cache}", "variant": variants[cache]}
        summary[names] = row | more | {"workload": "batch 2" if cache == "cat" else "batch 3"}
    (found,) = shares_of_variance(replace(results, summary=summary))
    assert set(found.together) == {"kv_cache", "commit"}
    assert found.workload == "a batch of 2 sequences"
