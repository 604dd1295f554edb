"""What may be said about a difference, and how sure it is. The replicate is the process, never the
run.

Runs inside one process share its memory layout, its place in time and the machine's mood, so they
are averaged first (process_means). Speeds are compared by the ratio of means of the processes with
a bootstrap interval; memory is nearly deterministic and is reported as its maximum and range.
"""

from dataclasses import dataclass
from functools import cache

import numpy as np
import pandas as pd
from scipy import special

from kvpeak.base.axes import AXES

CONFIDENCE = 0.95
RESAMPLES = 1999
# From 4 processes a side on, the interval's coverage is 95 ± 2 % (tests/test_statistics.py), and a
# rank test of 4 against 4 is the smallest that can reach p < 0.05.
MIN_PROCESSES = 4
MIN_SPREAD = 3  # processes a side; of fewer the spread is too uncertain to plan with
MAX_PROCESSES = 1000  # no more are ever proposed
OUTLIER_ALPHA = 0.01
INSIDE, BEYOND = "inside", "beyond"
UNCLEAR, TOO_FEW = "unclear", "too few"
MIN_OUTLIER_GROUP = 6  # of fewer values hardly any can be so far off that Grubbs' test finds it
FAR = 0.05  # a value nearer to the median than this share is no outlier


@dataclass(frozen=True)
class Ratio:
    """A ratio of means with its 95 % interval; low and high are None where the processes are too
    few.
    """

    value: float
    low: float | None
    high: float | None
    n: tuple[int, int]  # processes on each side: of, to

    @property
    def testable(self) -> bool:
        return self.low is not None

    def spelled(self, digits: int = 3) -> str:
        """E.g. `1.003 (0.981 to 1.026), n = 5 and 5`."""
        interval = f" ({self.low:.{digits}f} to {self.high:.{digits}f})" if self.testable else ""
        return f"{self.value:.{digits}f}{interval}, n = {self.n[0]} and {self.n[1]}"

    def inside(self, low: float, high: float) -> bool:
        """Whether the whole interval lies in [low, high]."""
        return self.testable and low <= self.low and self.high <= high

    def outside(self, low: float, high: float) -> bool:
        """Whether the whole interval lies beyond [low, high], on one side."""
        return self.testable and (self.high < low or high < self.low)


def process_means(runs: pd.DataFrame, column: str) -> dict[tuple, np.ndarray]:
    """Collapse the recorded runs of each process to their mean: cell (names in the order of AXES) →
    one value a round.

    Runs without a value are left out, and so are cells without any.
    """
    recorded = runs[~runs["warmup"].astype(bool)].dropna(subset=[column])
    means = recorded.groupby([*AXES, "round"], sort=True)[column].mean()
    cells: dict[tuple, list[float]] = {}
    for (*cell, _), value in means.items():
        cells.setdefault(tuple(cell), []).append(value)
    return {cell: np.array(values) for cell, values in cells.items()}


def t_quantile(freedom):
    """By how many standard errors an interval of CONFIDENCE reaches to each side: Student's t with
    so many degrees of freedom.
    """
    return special.stdtrit(freedom, (1 + CONFIDENCE) / 2)


def half_width(values) -> float | None:
    """Half the width of the mean's 95 % interval, by Student's t; None with fewer than 3 values."""
    values = np.asarray(values, float)
    if values.size < 3:
        return None
    return float(t_quantile(values.size - 1) * values.std(ddof=1) / np.sqrt(values.size))


def ratio_of_means(of, to) -> Ratio:
    """mean(of) / mean(to) for positive values of independent processes, with its bootstrap-t
    interval.
    """
    of, to = np.asarray(of, float), np.asarray(to, float)
    value, low, high = float(of.mean() / to.mean()), None, None
    if min(of.size, to.size) >= MIN_PROCESSES:
        low, high = map(float, bootstrap_t(of, to))
    return Ratio(value, low, high, (of.size, to.size))


def bootstrap_t(of: np.ndarray, to: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Bounds of the studentised bootstrap interval of mean(of) / mean(to) along the last axis.

    Each resample's log ratio is centred and divided by its own standard error (delta method); the
    quantiles of that pivot, times the sample's standard error, give the interval (Efron and
    Tibshirani 1993, section 12.5). The logarithm keeps the bounds positive and makes of/to and
    to/of agree. In simulation at 4 to 12 processes a side with 2 to 30 % noise this covers 94 to 97
    %; the percentile and BCa intervals of 4 to 8 cover 85 to 92 %, because a resample of n values
    varies less than the population by (n − 1)/n and knows nothing of Student's t.
    """
    centre, error = _log_ratio(of, to), _standard_error(of, to)

    def pivot(of, to, axis):
        shape = (...,) + (None,) * (np.ndim(of) - 1 - np.ndim(centre))
        with np.errstate(divide="ignore", invalid="ignore"):
            t = (_log_ratio(of, to) - centre[shape]) / _standard_error(of, to)
        return np.nan_to_num(t, nan=0.0, posinf=np.inf, neginf=-np.inf)

    from scipy import stats  # takes a second

    with np.errstate(invalid="ignore"):  # an infinite pivot: the resample took one value n times
        resampled = stats.bootstrap(
            (of, to), pivot, n_resamples=RESAMPLES, batch=100, axis=-1, method="percentile", rng=0
        ).bootstrap_distribution
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(resampled, [tail, 1 - tail], axis=-1, method="closest_observation")
    constant = error == 0  # no spread at all: the interval is the point
    low, high = np.where(constant, 0, low), np.where(constant, 0, high)
    return np.exp(centre - high * error), np.exp(centre - low * error)


def _log_ratio(of, to):
    return np.log(of.mean(-1) / to.mean(-1))


def _standard_error(of, to):
    """Of the log ratio of means, by the delta method: the root of the summed squared relative
    errors.
    """
    return np.hypot(*(x.std(-1, ddof=1) / x.mean(-1) / np.sqrt(x.shape[-1]) for x in (of, to)))


def within(margin: float) -> tuple[float, float]:
    """The ratios that count as no practical difference: ± margin (0.05 is 5 %)."""
    return 1 - margin, 1 + margin


def processes_to_tell(of, to, low: float, high: float, alpha: float) -> int | None:
    """How many processes a side it takes at least, and more than there are, to tell where the ratio
    lies.

    By Student's t with the spread and the ratio seen so far, for an interval inside [low, high] or
    beyond; a ratio that lies beyond needs the rank test at alpha as well. With fewer than
    MIN_SPREAD a side it is what any spread needs. None where MAX_PROCESSES would not do.
    """
    of, to = np.asarray(of, float), np.asarray(to, float)
    value, there = of.mean() / to.mean(), min(of.size, to.size)
    least = max(MIN_PROCESSES, there + 1)
    if not low <= value <= high:
        least = max(least, processes_for_rank_test(alpha))
    if there < MIN_SPREAD:
        return least
    with np.errstate(divide="ignore"):
        room = np.abs(np.log(value) - np.log(np.maximum((low, high), 0))).min()
    n = np.arange(least, MAX_PROCESSES + 1)
    spread = np.hypot(of.std(ddof=1) / of.mean(), to.std(ddof=1) / to.mean())
    half_width = t_quantile(2 * n - 2) * spread / np.sqrt(n)
    enough = n[half_width <= room]
    return int(enough[0]) if enough.size else None


@cache
def smallest_rank_p(n: int, m: int) -> float:
    """The smallest two-sided p that a rank test of n against m values can reach: 2 / C(n + m,
    n).
    """
    return min(1.0, 2 / special.comb(n + m, n))


@cache
def processes_for_rank_test(alpha: float) -> int:
    """The smallest equal number a side with which a rank test can reach p ≤ alpha."""
    return next(n for n in range(1, MAX_PROCESSES) if smallest_rank_p(n, n) <= alpha)


def rank_test(a, b, alpha: float = 1 - CONFIDENCE) -> float | None:
    """The two-sided Mann-Whitney p; None where no outcome could be significant at alpha.

    alpha is what the smallest of several p must reach: 0.05 divided by their number (Holm's first
    step).
    """
    if smallest_rank_p(len(a), len(b)) > alpha:
        return None
    from scipy import stats

    return float(stats.mannwhitneyu(a, b, alternative="two-sided").pvalue)


def holm(p_values) -> np.ndarray:
    """Holm's step-down correction: the adjusted p of each, in the order given (Holm 1979)."""
    p = np.asarray(p_values, float)
    order = np.argsort(p)
    adjusted = np.maximum.accumulate(p[order] * np.arange(p.size, 0, -1))
    result = np.empty_like(p)
    result[order] = np.minimum(adjusted, 1)
    return result


@dataclass(frozen=True)
class Placed:
    """Where a ratio lies with respect to bounds, as far as its processes tell."""

    place: str  # INSIDE, BEYOND, UNCLEAR or TOO_FEW
    ratio: Ratio
    p: float | None  # of the rank test, Holm-corrected; None where it could not reach significance
    # processes a side at least, where it is UNCLEAR or TOO_FEW; None: no number would do
    needs: int | None


def place_ratios(samples: dict, low: float, high: float) -> dict:
    """Key → (of, to), the processes of both sides, to key → Placed: where mean(of) / mean(to) lies.

    INSIDE: the whole interval lies in [low, high]. BEYOND takes two things: the whole interval lies
    on one side of them, and a rank test refuses the nearer bound, its p values Holm-corrected over
    all the samples.
    """
    alpha = (1 - CONFIDENCE) / max(1, len(samples))
    ratios = {key: ratio_of_means(of, to) for key, (of, to) in samples.items()}
    p = [_p_within(*samples[key], ratio, low, high, alpha) for key, ratio in ratios.items()]
    # One that cannot reach significance is a comparison all the same: it enters the correction with
    # p = 1.
    corrected = holm([1 if value is None else value for value in p])
    found = {}
    for (key, ratio), raw, adjusted in zip(ratios.items(), p, corrected, strict=True):
        place = _place(ratio, None if raw is None else adjusted, low, high)
        told = place in (INSIDE, BEYOND)
        found[key] = Placed(
            place,
            ratio,
            None if raw is None else float(adjusted),
            None if told else processes_to_tell(*samples[key], low, high, alpha),
        )
    return found


def _p_within(of, to, ratio: Ratio, low: float, high: float, alpha: float) -> float | None:
    """The p of a true ratio in [low, high]: 1 where the ratio is in there, else that of the nearer
    bound.
    """
    if smallest_rank_p(*ratio.n) > alpha:
        return None
    if low <= ratio.value <= high:
        return 1.0
    return rank_test(of, np.asarray(to) * (low if ratio.value < low else high), alpha)


def _place(ratio: Ratio, p: float | None, low: float, high: float) -> str:
    if ratio.inside(low, high):
        return INSIDE
    beyond = ratio.outside(low, high)
    if not ratio.testable or (beyond and p is None):
        return TOO_FEW
    return BEYOND if beyond and p <= 1 - CONFIDENCE else UNCLEAR


def outliers(values, groups=None) -> np.ndarray:
    """Flag values far from the others of their group; a flag is shown, the value stays in every
    mean.

    Far is what Grubbs' test finds (Grubbs 1969: distance from the mean in standard deviations; of
    normal values it flags one in a group with the probability OUTLIER_ALPHA, whatever the group's
    size) and more than the share FAR of the median. In a group of fewer than MIN_OUTLIER_GROUP
    values none is. `groups`: the number of each value's group; without it all are of one.
    """
    values = pd.Series(np.asarray(values, float))
    grouped = values.groupby(np.zeros(values.size) if groups is None else np.asarray(groups))
    count, median = grouped.transform("count"), grouped.transform("median")
    distance = (values - grouped.transform("mean")).abs()
    tested = count >= MIN_OUTLIER_GROUP
    n = count.where(tested, MIN_OUTLIER_GROUP)
    t = special.stdtrit(n - 2, OUTLIER_ALPHA / (2 * n))  # the lower one; it is squared
    most = (n - 1) / np.sqrt(n) * np.sqrt(t**2 / (n - 2 + t**2)) * grouped.transform("std")
    far = (values - median).abs() > FAR * median.abs()
    return (tested & far & (distance > most)).to_numpy()
