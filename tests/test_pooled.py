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
        ([(100, 96)] * 3, "all 3 pairs within the noise"),
        ([(100, 50)] * 2, "both pairs lower"),
        ([(100, 200)], "one pair higher"),
        ([(100, 50), (100, 99), (100, 200)], "of 3 pairs 1 lower, 1 higher, 1 within the noise"),
    ],
)
def test_a_pair_is_lower_or_higher_by_the_rule_of_the_sentence(peaks, counts):
    """The line counts what `no difference above the noise` does not."""
    found = comparison(peaks, prompt_tokens=513, accelerator="cpu", peak_source="VmHWM")
    effect = pooled(found, "peak_mib")
    assert effect.counts == counts
    noise = "no difference above the noise was found" in lead(found).sentence
    assert noise == (effect.below + effect.above == 0)


def test_a_pair_whose_samples_missed_as_much_as_they_differ_is_within_the_noise():
    assert comparison([(100, 120)]).pairs[0].above_noise
    assert comparison([(100, 120)], missed_mib=17).pairs[0].above_noise
    assert not comparison([(100, 120)], missed_mib=18).pairs[0].above_noise


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


def test_a_replay_has_no_interval():
    (found,) = effects([comparison([(100, 50)] * 6, method="replayed: real")])["cap-none-32MiB"]
    assert (found.ratio, found.below, found.p) == (0.5, 6, None)


def test_a_small_effect_that_is_always_the_same_way_is_named():
    """At p1 all four caches rise by 2 to 4 %; at p0 two rise and two fall."""
    changes = [(102, 1040), (98, 1020), (103, 1030), (97, 1025)]
    peaks = [pair for p0, p1 in changes for pair in ((100, p0), (1000, p1))]
    (small,) = small_effects(comparison(peaks))
    assert small.where == {"prompt": "p1"}
    assert small.ratios == [1.04, 1.02, 1.03, 1.025]


def test_a_small_effect_within_the_range_of_the_processes_is_not_named():
    assert small_effects(comparison([(1000, 1020)] * 6, spread=15)) == []
    assert len(small_effects(comparison([(1000, 1020)] * 6, spread=5))) == 1


def test_with_one_process_a_side_it_takes_six_pairs():
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


def test_few_pairs_with_three_processes_a_side_have_none():
    ratio = Ratio(0.8, None, None, (3, 3))
    assert fixed_interval([Change(1.0, 0.8, (0.1, 0.1), ratio, None, None, None)]) == (None,) * 3
