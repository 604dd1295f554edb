"""The statistics against SciPy, against numbers worked out by hand, and by simulation (seeded)."""

import itertools

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from scipy.optimize import brentq

from kvpeak.analysis import statistics

TRIALS = 2000


def noisy(seed, n, mean=1.0, noise=0.1):
    """TRIALS samples of n process means, log-normal: skewed to the right as timings are."""
    rng = np.random.default_rng(seed)
    return mean * np.exp(rng.normal(-(noise**2) / 2, noise, (TRIALS, n)))


@pytest.mark.parametrize(("n", "m"), [(4, 4), (5, 5), (8, 8), (4, 12)])
def test_the_interval_covers_the_true_ratio_in_93_to_97_percent_of_2000_trials(n, m):
    low, high = statistics.bootstrap_t(noisy(1, n, mean=1.3), noisy(2, m))
    assert 0.93 <= np.mean((low <= 1.3) & (high >= 1.3)) <= 0.97


def test_the_percentile_interval_of_scipy_would_not_cover():
    low, high = stats.bootstrap(
        (noisy(1, 5), noisy(2, 5)),
        lambda of, to, axis: of.mean(-1) / to.mean(-1),
        n_resamples=statistics.RESAMPLES,
        batch=100,
        axis=-1,
        method="percentile",
        rng=0,
    ).confidence_interval
    assert np.mean((low <= 1) & (high >= 1)) < 0.93


def test_equivalence_within_a_margin_in_2000_trials():
    low, high = statistics.bootstrap_t(noisy(3, 5, noise=0.02), noisy(4, 5, noise=0.02))
    margin_low, margin_high = statistics.within(0.05)

    def claimed(true_ratio):  # the interval of k × of is k × the interval
        return np.mean((margin_low <= true_ratio * low) & (true_ratio * high <= margin_high))

    assert claimed(0.95) <= 0.05  # at the margin every claim is a false positive
    assert claimed(1.05) <= 0.05
    assert claimed(1.0) > 0.7


def test_a_large_sample_gives_the_interval_of_welch():
    rng = np.random.default_rng(5)
    of, to = rng.normal(100, 5, 200), rng.normal(80, 8, 200)
    ratio = statistics.ratio_of_means(of, to)
    error = np.hypot(stats.sem(of) / of.mean(), stats.sem(to) / to.mean())
    assert ratio.value == pytest.approx(of.mean() / to.mean())
    assert ratio.low == pytest.approx(ratio.value * np.exp(-1.966 * error), rel=0.003)
    assert ratio.high == pytest.approx(ratio.value * np.exp(1.966 * error), rel=0.003)


def test_the_interval_is_that_of_all_256_resamples_of_four_values():
    """Beside a side without spread: 4 of the resamples take one value four times, and have no
    error at all. Their pivot is infinite, with the sign of what they differ by.
    """
    of, to = np.array([10.0, 11, 12, 14]), np.full(4, 8.0)
    every = np.array(list(itertools.product(of, repeat=4)))
    error = of.std(ddof=1) / of.mean() / 2
    with np.errstate(divide="ignore"):
        pivots = np.log(every.mean(1) / of.mean()) / (every.std(1, ddof=1) / every.mean(1) / 2)
    low, high = np.quantile(pivots, [0.025, 0.975], method="closest_observation")
    ratio = statistics.ratio_of_means(of, to)
    assert ratio.value == of.mean() / 8
    assert ratio.low == pytest.approx(ratio.value * np.exp(-high * error), rel=0.02)
    assert ratio.high == pytest.approx(ratio.value * np.exp(-low * error), rel=0.02)


def test_many_samples_at_once_have_the_intervals_that_each_has_alone():
    draw = np.random.default_rng(11)
    of, to = draw.normal(100, 10, (3, 5)), draw.normal(80, 10, (3, 4))
    low, high = statistics.bootstrap_t(of, to)
    for number in range(3):
        alone = statistics.bootstrap_t(of[number], to[number])
        assert (low[number], high[number]) == pytest.approx(alone)


def test_a_margin_lies_on_both_sides_of_one():
    assert statistics.within(0.05) == pytest.approx((0.95, 1.05))


def test_the_interval_of_the_inverse_ratio_is_the_inverse_interval():
    of, to = [10.0, 11, 12, 13, 11], [7.0, 8, 8, 9, 7]
    one, other = statistics.ratio_of_means(of, to), statistics.ratio_of_means(to, of)
    assert one.value * other.value == pytest.approx(1)
    assert one.low * other.high == pytest.approx(1, rel=0.05)  # other resamples


def test_one_outcome_each_time():
    of, to = [10.0, 11, 12, 13], [7.0, 8, 8, 9]
    assert statistics.ratio_of_means(of, to) == statistics.ratio_of_means(of, to)


def test_values_without_spread_have_the_point_as_interval():
    assert statistics.ratio_of_means([20.0] * 4, [10.0] * 4) == statistics.Ratio(2, 2, 2, (4, 4))


def test_three_processes_have_a_ratio_but_no_interval():
    ratio = statistics.ratio_of_means([10.0, 11, 12], [10.0, 10, 10, 10])
    assert (ratio.value, ratio.low, ratio.n) == (1.1, None, (3, 4))
    assert not ratio.inside(0, 9) and not ratio.outside(2, 9)


def test_an_interval_across_the_margin_is_neither_inside_nor_outside():
    ratio = statistics.Ratio(1.04, 1.0, 1.08, (5, 5))
    assert not ratio.inside(0.95, 1.05) and not ratio.outside(0.95, 1.05)
    assert ratio.outside(0.5, 0.9) and ratio.inside(1.0, 1.08)


@pytest.mark.parametrize(
    ("low", "high", "inside", "outside"),
    [
        (0.9, 1.1, True, False),
        (0.91, 1.1, False, False),
        (0.9, 1.09, False, False),
        (0.5, 2.0, True, False),
        (1.1, 2.0, False, False),  # they meet
        (1.11, 2.0, False, True),
        (0.5, 0.9, False, False),
        (0.5, 0.89, False, True),
    ],
)
def test_an_interval_that_touches_a_bound_is_inside_and_not_outside(low, high, inside, outside):
    ratio = statistics.Ratio(1.0, 0.9, 1.1, (5, 5))
    assert (ratio.inside(low, high), ratio.outside(low, high)) == (inside, outside)


def test_a_ratio_is_spelled_with_its_interval_and_its_processes():
    assert statistics.Ratio(1.0031, 0.981, 1.0259, (5, 6)).spelled() == (
        "1.003 (0.981 to 1.026), n = 5 and 6"
    )
    assert statistics.Ratio(1.0031, None, None, (3, 6)).spelled(2) == "1.00, n = 3 and 6"


def test_half_a_mean_s_interval_is_student_s():
    """Of 10, 12 and 14: 4.3027 times 2 / √3."""
    assert statistics.half_width([10, 12, 14]) == pytest.approx(4.30265 * 2 / 3**0.5, rel=1e-5)
    assert statistics.half_width([10, 12]) is None
    assert statistics.half_width([5, 5, 5, 5]) == 0


@pytest.mark.parametrize(
    ("of", "to", "low", "high"),
    [
        ([100.0, 130, 70, 100], [50.0, 55, 45], 0.95, 1.05),
        ([100.0, 130, 70, 100], [95.0, 140, 80], 0.8, 1.2),
        ([90.0, 96, 84], [100.0, 101, 99], 0.95, 1.05),
        ([102.0, 96, 108], [100.0, 101, 99], 0.95, 1.05),
    ],
)
def test_the_number_of_processes_is_the_first_whose_interval_leaves_the_bounds_alone(
    of, to, low, high
):
    def half(n: int) -> float:
        spread = np.hypot(np.std(of, ddof=1) / np.mean(of), np.std(to, ddof=1) / np.mean(to))
        return stats.t.ppf(0.975, 2 * n - 2) * spread / n**0.5

    value = np.log(np.mean(of) / np.mean(to))
    room = min(abs(value - np.log(bound)) for bound in (low, high))
    least = max(4, len(to) + 1, len(of) if len(of) < len(to) else 0)
    expected = next(n for n in range(least, 1001) if half(n) <= room)
    assert statistics.processes_to_tell(of, to, low, high, 0.05) == expected


@pytest.mark.parametrize(("more", "needed"), [(-1e-6, 1000), (1e-6, None)])
def test_no_more_than_a_thousand_processes_are_proposed(more, needed):
    """Two values around one, whose spread leaves just room enough at a thousand."""
    spread = np.log(1.05) * 1000**0.5 / stats.t.ppf(0.975, 1998) * (1 + more)
    of = 1 + np.array([-1, 0, 1]) * spread
    assert statistics.processes_to_tell(of, [1.0] * 3, 0.95, 1.05, 0.05) == needed


def test_how_many_processes_it_takes_to_tell():
    def needed(of, to, low=0.95, high=1.05, alpha=0.05):
        return statistics.processes_to_tell(of, to, low, high, alpha)

    quiet, noisy_one = [100.0, 101, 99], [100.0, 130, 70, 100]
    assert needed(quiet, quiet) == 4
    many = needed(noisy_one, quiet)
    spread = np.hypot(np.std(noisy_one, ddof=1), np.std(quiet, ddof=1)) / 100
    assert many == pytest.approx((1.96 * spread / np.log(1.05)) ** 2, rel=0.05)
    assert needed([1.0], [1.0], alpha=0.05 / 10) == 4  # to be the same no rank test is needed
    assert needed([1.5], [1.0], alpha=0.05 / 10) == needed([0.5], [1.0], alpha=0.05 / 10) == 6
    assert needed([150.0, 151, 149], quiet, alpha=0.05 / 10) == 6
    assert needed([150.0] * 7, quiet * 3) == 8  # more than there are
    assert needed([105.0, 115, 95], quiet) is None  # at the margin itself no number tells
    assert needed(quiet, quiet, low=-np.inf) == 4


def test_beyond_the_bounds_takes_the_interval_and_the_rank_test():
    quiet = np.array([100.0, 101, 99, 100])
    one = statistics.place_ratios({"a": (quiet * 0.8, quiet)}, 0.95, 1.05)["a"]
    assert (one.place, one.p, one.needs) == (
        statistics.BEYOND,
        pytest.approx(2 / 70, rel=0.2),
        None,
    )
    three = {name: (quiet * factor, quiet) for name, factor in {"a": 0.8, "b": 1, "c": 1.5}.items()}
    found = statistics.place_ratios(three, 0.95, 1.05)
    assert [found[name].place for name in three] == ["too few", "inside", "too few"]
    assert (found["a"].p, found["a"].needs) == (None, 5)  # 2 / C(10, 5) = 0.008 < 0.05 / 3


def test_each_side_s_error_is_that_of_its_own_number_of_processes():
    """Relative errors of the means: 1 / 2 of two values, and √12 / √4 / 7 of four."""
    found = statistics._standard_error(np.array([1.0, 3]), np.array([4.0, 4, 10, 10]))
    assert found == pytest.approx(np.sqrt(1 / 4 + 3 / 49))


def test_an_interval_beyond_the_bounds_needs_a_rank_test_that_says_so_after_its_correction():
    """Five against five, 252 ways to divide them: 4 of them have at most two pairs the wrong way
    round, 7 at most three. Against 1.05 × `to` the values are 1 to 10 without the shown ones.
    """
    ranks = np.arange(1.0, 11) / 1000 + 2

    def placed(of, beside=()):
        of = ranks[[rank - 1 for rank in of]]
        to = np.array([rank for rank in ranks if rank not in of]) / 1.05
        samples = {"a": (of, to)} | {name: (to, to) for name in beside}
        found = statistics.place_ratios(samples, 0.0, 1.05)["a"]
        return found.place, found.p

    two_wrong, three_wrong = (4, 7, 8, 9, 10), (3, 7, 8, 9, 10)
    least = ranks[[0, 1, 2, 3, 6]]  # two pairs the wrong way round, below the lower bound
    others = np.array([rank for rank in ranks if rank not in least]) / 0.95
    below = statistics.place_ratios({"a": (least, others)}, 0.95, 2.0)["a"]
    assert (below.place, below.p) == (statistics.BEYOND, pytest.approx(8 / 252))
    assert placed(two_wrong) == (statistics.BEYOND, pytest.approx(8 / 252))
    assert placed(two_wrong, "b") == (statistics.UNCLEAR, pytest.approx(16 / 252))
    assert placed(three_wrong) == (statistics.UNCLEAR, pytest.approx(14 / 252))


def test_the_rank_test_is_against_the_bound_that_is_refused():
    quiet = np.array([100.0, 101, 99, 100])
    same = statistics.place_ratios({"a": (quiet, quiet + 0.1)}, 1.5, np.inf)["a"]
    assert same.place == statistics.BEYOND
    assert statistics.place_ratios({"a": (2 * quiet, quiet)}, 1.5, np.inf)["a"].place == "inside"


def test_a_rank_test_of_three_against_three_cannot_reach_significance():
    low, high = [1.0, 2, 3], [4.0, 5, 6]
    assert statistics.smallest_rank_p(3, 3) == pytest.approx(0.1)
    assert stats.mannwhitneyu(low, high).pvalue == pytest.approx(0.1)
    assert statistics.rank_test(low, high) is None
    assert statistics.smallest_rank_p(1, 1) == 1
    assert statistics.processes_for_rank_test(0.1) == 3
    assert statistics.processes_for_rank_test(0.05) == 4
    assert statistics.processes_for_rank_test(0.05 / 10) == 6


def test_the_rank_test_is_scipys():
    low, high = [1.0, 2, 3, 5], [4.0, 6, 7, 8]
    assert statistics.rank_test(low, high) == stats.mannwhitneyu(low, high).pvalue
    assert statistics.rank_test(low, high, alpha=0.01) is None


def test_holm_by_hand():
    # sorted 0.01, 0.02, 0.04 × 3, 2, 1
    assert statistics.holm([0.04, 0.01, 0.02]) == pytest.approx([0.04, 0.03, 0.04])
    assert statistics.holm([0.6, 0.5]) == pytest.approx([1, 1])
    assert statistics.holm([]).size == 0


def test_outliers_are_far_in_spread_and_in_practice():
    assert statistics.outliers([100, 101, 99, 100, 101, 70]).tolist() == [False] * 5 + [True]
    assert not statistics.outliers([100.0] * 5 + [102.0]).any()  # far in spread only
    assert not statistics.outliers([80, 100, 120, 140, 90, 110]).any()  # far in practice only


@pytest.mark.parametrize(("n", "critical"), [(6, 1.973), (10, 2.482), (20, 3.001)])
def test_far_is_beyond_the_critical_values_of_grubbs_table(n, critical):
    """Two-sided at 1 %; the distance from the mean in standard deviations."""
    others = 100 + np.resize([-5.0, 5], n - 1)

    def distance(value: float) -> float:
        values = np.append(others, value)
        return (value - values.mean()) / values.std(ddof=1)

    for wanted, flagged in ((critical - 0.004, False), (critical + 0.004, True)):
        value = brentq(lambda x, wanted=wanted: distance(x) - wanted, 100, 1e5)
        assert statistics.outliers([*others, value]).tolist() == [False] * (n - 1) + [flagged]
        mirrored = 200 - np.append(others, value)
        assert statistics.outliers(mirrored).tolist() == [False] * (n - 1) + [flagged]


def test_in_fewer_than_six_values_none_is_far_off():
    assert not statistics.outliers([100, 101, 99, 100, 1]).any()
    values = [100, 101, 99, 100, 1, 100, 101, 99, 100, 101, 1]
    assert statistics.outliers(values, [0] * 5 + [1] * 6).tolist() == [False] * 10 + [True]


@pytest.mark.parametrize("count", [6, 15])
def test_one_group_of_normal_values_in_a_hundred_has_an_outlier(count):
    groups = 4000
    values = np.random.default_rng(count).normal(100, 30, (groups, count))
    flags = statistics.outliers(values.ravel(), np.repeat(np.arange(groups), count))
    assert 0.005 < flags.reshape(groups, count).any(axis=1).mean() < 0.015


def test_runs_inside_a_process_count_as_one_value():
    cell = ("mlx", "tiny", "p", "cat", "none", "default")
    axes = dict(zip(statistics.AXES, cell, strict=True))
    runs = pd.DataFrame(
        [
            axes | {"round": number, "warmup": warmup, "decode_tok_s": speed}
            for number, warmup, speed in [
                (1, True, 1.0),
                (1, False, 10.0),
                (1, False, 20.0),
                (2, True, 1.0),
                (2, False, 30.0),
                (2, False, None),
            ]
        ]
    )
    means = statistics.process_means(runs, "decode_tok_s")
    assert list(means) == [cell]
    assert means[cell].tolist() == [15.0, 30.0]
