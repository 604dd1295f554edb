"""Effects pooled over pairs of cells: against numbers worked out by hand, and by simulation
(seeded).
"""

import csv
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from kvpeak.analysis.comparisons import Change, Comparison, Pair
from kvpeak.analysis.lead import lead
from kvpeak.analysis.pooled import (
    MIN_BLOCKS,
    QUANTITIES,
    effects,
    fixed_interval,
    pooled,
    small_effects,
    t_interval,
)
from kvpeak.analysis.statistics import Ratio
from kvpeak.analysis.verdicts import Verdict

TRIALS = 2000


def row(peak: float, spread: float = 1, rounds: int = 3, **more) -> dict:
    ends = {"peak_min_mib": peak - spread, "peak_max_mib": peak + spread}
    return {"outcome": "ok", "method": "live", "peak_mib": peak, "rounds": rounds} | ends | more


def change(ratio: float, errors=(0.01, 0.01), processes=(4, 4)) -> Change:
    """A speed of 100 that changes; `errors` are the standard errors of the means before and after,
    in parts, and `processes` their numbers.
    """
    means = (100.0, 100.0 * ratio)
    halves = [
        mean * error * stats.t.ppf(0.975, n - 1)
        for mean, error, n in zip(means, errors, processes, strict=True)
    ]
    return Change(*means, tuple(halves), Ratio(ratio, None, None, processes[::-1]), *[None] * 3)


def of_speeds(changes: list[Change], **more) -> Comparison:
    """Pairs of cells with equal peaks whose speeds of either phase change so."""
    found = comparison([(100, 100)] * len(changes), **more)
    pairs = [
        replace(pair, speeds=dict.fromkeys(QUANTITIES[1:], each))
        for pair, each in zip(found.pairs, changes, strict=True)
    ]
    return replace(found, pairs=pairs)


def comparison(peaks: list[tuple[float, float]], **more) -> Comparison:
    """Pairs of cells with these peaks before and after, in turn of the prompts p0 and p1."""
    pairs = [
        Pair(
            {"prompt": f"p{number % 2}", "kv_cache": f"c{number // 2}"},
            row(before, **more),
            row(after, **more),
        )
        for number, (before, after) in enumerate(peaks)
    ]
    return Comparison("cap", "none", "32MiB", pairs)


@pytest.mark.parametrize("blocks", [MIN_BLOCKS, 8, 32])
@pytest.mark.parametrize("processes", [1, 6])
def test_the_interval_covers_the_mean_effect_in_93_to_97_percent_of_2000_trials(blocks, processes):
    """Cells differ in their effect (5 %), and each side's mean is of noisy processes (10 %)."""
    rng = np.random.default_rng(blocks + processes)
    true = rng.normal(np.log(0.9), 0.05, (TRIALS, blocks))
    noise = rng.normal(0, 0.1, (2, TRIALS, blocks, processes))
    logs = true + np.log(np.exp(noise[1]).mean(-1) / np.exp(noise[0]).mean(-1))
    bounds = [t_interval(trial)[:2] for trial in logs]
    covered = np.mean([low <= 0.9 <= high for low, high in bounds])
    assert 0.93 <= covered <= 0.97


def test_the_ratio_is_the_geometric_mean_and_its_interval_student_s():
    found = pooled(comparison([(100, 90), (200, 170), (50, 47), (80, 73), (10, 9.6)]), "peak_mib")
    logs = np.log([0.9, 0.85, 0.94, 0.9125, 0.96])
    half = stats.t.ppf(0.975, 4) * logs.std(ddof=1) / np.sqrt(5)
    assert found.ratio == pytest.approx(np.exp(logs.mean()))
    bounds = np.exp([logs.mean() - half, logs.mean() + half])
    assert (found.low, found.high) == pytest.approx(tuple(bounds))
    assert (found.below, found.above, found.same_way, found.pairs) == (4, 0, 4, 5)
    assert found.counts == "of 5 pairs 4 lower, 1 within the noise"
    assert (found.smallest, found.largest) == pytest.approx((0.85, 0.96))


@pytest.mark.parametrize(
    ("peaks", "counts"),
    [
        ([(100, 96)] * 3, "all 3 pairs under 5 %"),
        ([(100, 50)] * 2, "both pairs lower"),
        ([(100, 200)], "one pair higher"),
        ([(100, 50), (100, 99), (100, 200)], "of 3 pairs 1 lower, 1 higher, 1 within the noise"),
    ],
)
def test_a_pair_is_lower_or_higher_by_the_rule_of_the_sentence(peaks, counts):
    """The line counts what `no difference of the peak above the noise` does not."""
    found = comparison(peaks, prompt_tokens=513, accelerator="cpu", peak_source="VmHWM")
    effect = pooled(found, "peak_mib")
    assert effect.counts == counts
    nothing = "no difference of the peak by more than 5 % was found" in lead(found).sentence
    assert nothing == (effect.below + effect.above == 0)


def test_where_the_peak_does_not_differ_the_pool_s_may():
    found = comparison([(100, 99), (100, 97)], prompt_tokens=513)
    assert "The pool's own peak" not in lead(found).sentence
    for pair, pool in zip(found.pairs, ((80, 79), (70, 50)), strict=True):
        pair.before["peak_pool_mib"], pair.after["peak_pool_mib"] = pool
    assert lead(found).sentence.endswith(
        " The pool's own peak differs by more than 5 % in 1 of them (most: 70 → 50 MiB)."
    )


def test_noise_is_named_only_where_several_processes_show_it():
    """The ranges meet, and nothing is known of the noise with one process a side."""
    single = pooled(comparison([(100, 99)], rounds=1), "peak_mib")
    assert single.counts == "one pair under 5 %"
    many = pooled(comparison([(100, 99)], rounds=2), "peak_mib")
    assert many.counts == "one pair within the noise"
    told = lead(comparison([(100, 99)], rounds=2, prompt_tokens=513)).sentence
    assert "differs by at most 5 %, or the ranges of its processes meet (ratio" in told


def test_a_pair_whose_samples_missed_as_much_as_they_differ_is_within_the_noise():
    assert comparison([(100, 120)]).pairs[0].above_noise
    assert comparison([(100, 120)], missed_mib=17).pairs[0].above_noise
    found = comparison([(100, 120)], missed_mib=18, prompt_tokens=513)
    assert not found.pairs[0].above_noise
    assert "meet, or may by what samples missed (ratio 1.20)" in lead(found).sentence


def test_the_inverse_comparison_has_the_inverse_effect():
    peaks = [(100, 90), (200, 170), (50, 47), (80, 73), (10, 9.6)]
    one = pooled(comparison(peaks), "peak_mib")
    other = pooled(comparison([pair[::-1] for pair in peaks]), "peak_mib")
    assert one.ratio * other.ratio == pytest.approx(1)
    assert one.low * other.high == pytest.approx(1)


def test_p_values_are_corrected_over_every_comparison_of_the_family():
    peaks = [(100, 90), (200, 170), (50, 47), (80, 73), (10, 9.6)]
    first = comparison(peaks)
    second = replace(
        comparison([(100, 100.1), (200, 199), (50, 50.2), (80, 81), (10, 9.9)]), after="x"
    )
    alone = effects([first])[first.slug][0]
    both = effects([first, second])
    assert both[first.slug][0].p == pytest.approx(2 * alone.p)
    assert both[first.slug][0].verdict == Verdict.LOWER
    assert both[second.slug][0].verdict == Verdict.SAME


@pytest.mark.parametrize("pairs", [1, 2, MIN_BLOCKS - 1])
def test_too_few_pairs_have_a_ratio_and_no_interval(pairs):
    (found,) = effects([comparison([(100, 50)] * pairs)])["cap-none-32MiB"]
    assert (found.ratio, found.low, found.p) == (0.5, None, None)
    assert found.verdict == Verdict.NOT_TESTABLE


def test_equal_pairs_have_a_point_for_an_interval():
    (found,) = effects([comparison([(100, 100)] * 6)])["cap-none-32MiB"]
    assert (found.low, found.high, found.verdict) == (1, 1, Verdict.SAME)


@pytest.mark.parametrize(("ratio", "p"), [(0.5, 0), (1, 1), (2, 0)])
def test_pairs_that_change_alike_have_a_point_for_an_interval(ratio, p):
    assert t_interval(np.log([ratio] * 8)) == (pytest.approx(ratio), pytest.approx(ratio), p)


@pytest.mark.parametrize(
    ("quantity", "ratios", "verdict"),
    [
        ("peak_mib", [0.5, 0.6, 0.4, 0.5, 0.55], Verdict.LOWER),
        ("peak_mib", [1.5, 1.6, 1.4, 1.5, 1.55], Verdict.HIGHER),
        ("peak_mib", [0.7, 1.4, 0.6, 1.5, 1], Verdict.UNCLEAR),
        ("decode_tok_s", [0.5, 0.6, 0.4, 0.5, 0.55], Verdict.SLOWER),
        ("decode_tok_s", [1.5, 1.6, 1.4, 1.5, 1.55], Verdict.FASTER),
        ("decode_tok_s", [1.02, 1.01, 1.02, 1.01, 1.02], Verdict.SAME),
    ],
)
def test_a_verdict_says_which_way_where_the_effect_is_more_than_chance(quantity, ratios, verdict):
    if quantity == "peak_mib":
        found = comparison([(100, 100 * ratio) for ratio in ratios])
    else:
        found = of_speeds([change(ratio) for ratio in ratios])
    named = {effect.quantity: effect.verdict for effect in effects([found])[found.slug]}
    assert named[quantity] == verdict


def test_a_speed_that_did_not_change_is_neither_above_nor_below():
    found = pooled(of_speeds([change(ratio) for ratio in (0.9, 1, 1.1, 1.2)]), "decode_tok_s")
    assert (found.below, found.above, found.same_way, found.pairs) == (1, 2, 2, 4)


def test_a_replay_has_no_interval():
    (found,) = effects([comparison([(100, 50)] * 6, method="replayed: real")])["cap-none-32MiB"]
    assert (found.ratio, found.below, found.p) == (0.5, 6, None)
    replayed = of_speeds([change(0.9)] * 3, method="replayed: real")
    assert pooled(replayed, "decode_tok_s").p is None


def test_a_small_effect_that_is_always_the_same_way_is_named():
    """At p1 all four caches rise by 2 to 4 %; at p0 two rise and two fall."""
    changes = [(102, 1040), (98, 1020), (103, 1030), (97, 1025)]
    peaks = [pair for p0, p1 in changes for pair in ((100, p0), (1000, p1))]
    (small,) = small_effects(comparison(peaks))
    assert small.where == {"prompt": "p1"}
    assert small.ratios == [1.04, 1.02, 1.03, 1.025]


def test_of_groups_within_each_other_the_largest_is_named():
    (small,) = small_effects(comparison([(1000, 1020)] * 12))
    assert (small.where, len(small.pairs)) == ({}, 12)
    rise, fall = small_effects(comparison([(1000, 1020), (1000, 980)] * 4))
    assert (rise.where, rise.ratios) == ({"prompt": "p0"}, [1.02] * 4)
    assert (fall.where, fall.ratios) == ({"prompt": "p1"}, [0.98] * 4)


def test_a_group_may_share_its_names_on_two_axes():
    """Of four variants each, all rise at p1 with c1; elsewhere two rise and two fall."""
    pairs = [
        Pair(
            {"prompt": prompt, "kv_cache": cache, "variant": f"v{number}"},
            row(1000),
            row(1020 if (number + p + c) % 2 or (p and c) else 980),
        )
        for p, prompt in enumerate(("p0", "p1"))
        for c, cache in enumerate(("c0", "c1"))
        for number in range(4)
    ]
    (small,) = small_effects(Comparison("cap", "none", "32MiB", pairs))
    assert small.where == {"prompt": "p1", "kv_cache": "c1"}


def test_a_group_with_one_large_change_is_not_small():
    assert len(small_effects(comparison([(1000, 1020)] * 5 + [(1000, 1095)]))) == 1
    assert small_effects(comparison([(1000, 1020)] * 5 + [(1000, 1105)])) == []
    assert small_effects(comparison([(1000, 1020)] * 2 + [(1000, 1095)] * 4)) == []


def test_a_small_effect_within_the_range_of_the_processes_is_not_named():
    assert small_effects(comparison([(1000, 1020)] * 6, spread=15)) == []
    assert len(small_effects(comparison([(1000, 1020)] * 6, spread=5))) == 1


def test_it_takes_four_pairs_and_with_one_process_a_side_six():
    assert small_effects(comparison([(1000, 1020)] * 3, rounds=2)) == []
    assert len(small_effects(comparison([(1000, 1020)] * 4, rounds=2))) == 1
    assert small_effects(comparison([(1000, 1020)] * 5, rounds=1, spread=0)) == []
    assert len(small_effects(comparison([(1000, 1020)] * 6, rounds=1, spread=0))) == 1


@pytest.mark.parametrize(
    ("cap", "column", "ratio", "low", "high", "below"),
    [
        ("0MiB", "decode_tok_s", 0.754, 0.721, 0.789, 31),
        ("0MiB", "prefill_tok_s", 0.907, 0.863, 0.953, 26),
        ("512MiB", "decode_tok_s", 1.005, 0.944, 1.070, 16),
    ],
)
def test_the_effects_are_those_that_an_audit_worked_out(cap, column, ratio, low, high, below):
    """From the means of 96 cells on an H200, with another program (tests/data/README.md)."""
    with (Path(__file__).parent / "data/h200-speeds.csv").open(newline="") as file:
        cells = {
            (row["prompt"], row["kv_cache"], row["variant"], row["cap"]): float(row[column])
            for row in csv.DictReader(file)
        }
    logs = np.log(
        [after / cells[(*key[:3], "none")] for key, after in cells.items() if key[3] == cap]
    )
    found = (np.exp(logs.mean()), *t_interval(logs)[:2])
    assert found == pytest.approx((ratio, low, high), abs=0.0006)
    assert (len(logs), int((logs < 0).sum())) == (32, below)


@pytest.mark.parametrize("processes", [4, 6])
def test_few_pairs_with_enough_processes_have_an_interval_for_these_cells(processes):
    """In 2000 trials of 3 pairs, whose effects are fixed, it covers their mean in 93 to 98
    percent.
    """
    rng = np.random.default_rng(processes)
    true = np.log([0.7, 0.8, 0.9])
    samples = rng.normal(1, 0.05, (TRIALS, 2, 3, processes))
    samples[:, 1] *= np.exp(true)[:, None]
    half = stats.t.ppf(0.975, processes - 1) * stats.sem(samples, axis=-1)
    means = samples.mean(-1)
    covered = []
    for (before, after), (low_half, high_half) in zip(means, half, strict=True):
        changes = [
            Change(b, a, (hb, ha), Ratio(a / b, None, None, (processes,) * 2), None, None, None)
            for b, a, hb, ha in zip(before, after, low_half, high_half, strict=True)
        ]
        low, high, _ = fixed_interval(changes)
        covered.append(np.log(low) <= true.mean() <= np.log(high))
    assert 0.93 <= np.mean(covered) <= 0.98


def test_the_interval_for_these_cells_is_welch_s():
    """Worked out by hand from four standard errors of 1 to 4 %, each of another number of
    processes.
    """
    changes = [change(0.8, (0.01, 0.02), (4, 6)), change(0.9, (0.03, 0.04), (5, 9))]
    mean, error = np.log(0.72) / 2, np.sqrt(0.01**2 + 0.02**2 + 0.03**2 + 0.04**2) / 2
    freedom = 30**2 / (1**2 / 3 + 4**2 / 5 + 9**2 / 4 + 16**2 / 8)
    half = stats.t.ppf(0.975, freedom) * error
    p = 2 * stats.t.sf(-mean / error, freedom)
    assert fixed_interval(changes) == pytest.approx((*np.exp([mean - half, mean + half]), p))


@pytest.mark.parametrize(("ratio", "p"), [(0.8, 0), (1, 1), (1.25, 0)])
def test_speeds_that_never_differ_have_a_point_for_an_interval(ratio, p):
    found = fixed_interval([change(ratio, errors=(0, 0))])
    assert found == (pytest.approx(ratio), pytest.approx(ratio), p)


def test_few_pairs_without_enough_processes_have_none():
    one = replace(change(0.8), half_widths=(1.0, None))  # one process after
    for changes in ([change(0.8, processes=(4, 3))], [one], [change(0.8), one]):
        assert fixed_interval(changes) == (None,) * 3


def test_the_interval_is_for_these_cells_where_the_pairs_are_too_few():
    some = [change(ratio) for ratio in (0.7, 0.8, 0.9, 0.8, 0.7)]
    for quantity in ("prefill_tok_s", "decode_tok_s"):
        few = pooled(of_speeds(some[:-1]), quantity)
        assert (few.low, few.high, few.p) == fixed_interval(some[:-1])
    for changes in (some, [*some, change(0.95)]):
        enough = pooled(of_speeds(changes), "decode_tok_s")
        logs = np.log([each.ratio.value for each in changes])
        assert (enough.low, enough.high, enough.p) == t_interval(logs)
    assert pooled(of_speeds(some[:-1]), "peak_mib").p is None


def test_of_one_pair_the_pool_s_peak_is_its():
    found = comparison([(100, 99)], prompt_tokens=513)
    found.pairs[0].before["peak_pool_mib"], found.pairs[0].after["peak_pool_mib"] = 70, 50
    assert lead(found).sentence.endswith(
        " The pool's own peak differs by more than 5 % (70 → 50 MiB)."
    )
