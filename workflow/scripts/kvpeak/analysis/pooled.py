"""What a comparison comes to over all its pairs of cells, and what is small but always the same
way.

A pair of cells is a block: its two sides differ on the compared axis only. The effect is the mean
of the logarithms of after / before over the blocks, so that no cell counts more than another and
the order of the sides does not matter. Its 95 % interval is Student's t over the blocks (a paired t
on logarithms: Bland and Altman 1996, BMJ 312:1153), which holds how cells differ among each other
and how processes differ within them. It is an interval for the mean over cells like these. With
fewer pairs but enough processes, the interval of a speed is for the mean over these very cells; of
one pair it is the pair's own.
"""

import itertools
from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
from scipy import special

from kvpeak.analysis.comparisons import PRACTICAL, Change, Comparison, Pair, ranges_meet
from kvpeak.analysis.statistics import CONFIDENCE, MIN_PROCESSES, holm, t_quantile, within
from kvpeak.analysis.verdicts import Verdict

MIN_BLOCKS = 5  # fewer pairs of cells have no interval
PEAK = "peak_mib"
QUANTITIES = (PEAK, "prefill_tok_s", "decode_tok_s")
# Fewer pairs may all point one way by chance: of 6 with one process a side that has p = 0.03, and
# of 4 it is as rare where also the ranges over several processes do not meet.
MIN_SAME_WAY, MIN_SAME_WAY_SINGLE = 4, 6
MOST_SMALL = 2 * PRACTICAL  # a group with a larger change is not small


@dataclass(frozen=True)
class Effect:
    """The pooled ratio after / before of one quantity of a comparison."""

    quantity: str  # of QUANTITIES
    ratio: float  # geometric mean over the pairs
    smallest: float  # of the pairs' ratios
    largest: float
    low: float | None  # of the 95 % interval; None where the pairs are too few, or replayed
    high: float | None
    below: int  # pairs whose ratio is below 1; of peaks those that are lower above the noise
    above: int
    pairs: int
    noisy: int  # pairs whose peaks differ by no more than their processes do
    decided: int  # pairs that have a verdict of their own, the way in which the ratio points
    live: bool  # measured, not replayed
    p: float | None  # of no effect, Holm-corrected over the family; None without an interval
    verdict: Verdict

    @property
    def same_way(self) -> int:
        """How many pairs point the way in which the ratio points."""
        return self.below if self.ratio < 1 else self.above

    @property
    def counts(self) -> str:
        """What the pairs' peaks do, by Pair.above_noise and within_noise, e.g. `of 3 pairs 1
        lower, 2 within the noise`.
        """
        small = self.pairs - self.below - self.above - self.noisy
        under = f"under {PRACTICAL:.0%}".replace("%", " %")
        kinds = {
            "lower": self.below,
            "higher": self.above,
            "within the noise": self.noisy,
            under: small,
        }
        found = [f"{count} {kind}" for kind, count in kinds.items() if count]
        if len(found) > 1:
            return f"of {self.pairs} pairs {', '.join(found)}"
        every = {1: "one pair", 2: "both pairs"}.get(self.pairs, f"all {self.pairs} pairs")
        return found[0].replace(str(self.pairs), every, 1)


def effects(comparisons: list[Comparison]) -> dict[str, list[Effect]]:
    """A comparison's slug → its effects, in the order of QUANTITIES.

    The declared family of tests is: every comparison of the matrix, times peak, prefill and decode.
    Holm's correction is over all of it.
    """
    found = [
        (comparison.slug, effect)
        for comparison in comparisons
        for quantity in QUANTITIES
        if (effect := pooled(comparison, quantity))
    ]
    corrected = holm([1 if effect.p is None else effect.p for _, effect in found])
    named: dict[str, list[Effect]] = {comparison.slug: [] for comparison in comparisons}
    for (slug, effect), p in zip(found, corrected, strict=True):
        p = None if effect.p is None else float(p)
        named[slug].append(replace(effect, p=p, verdict=_verdict(effect, p)))
    return named


def pooled(comparison: Comparison, quantity: str) -> Effect | None:
    """The effect of one comparison, its p not yet corrected; None without a pair that has both
    sides.

    Replayed pairs are predictions: they have a ratio and a direction, and no interval.
    """
    pairs = [pair for pair in comparison.pairs if pair.complete]
    live = [pair for pair in pairs if pair.live]
    ratios = list(filter(None, (_ratio(pair, quantity) for pair in live or pairs)))
    counted = ratios
    if quantity == PEAK:
        counted = [pair.peak_ratio for pair in live or pairs if pair.above_noise]
    if not ratios:
        return None
    low, high, p = t_interval(np.log(ratios)) if live else (None, None, None)
    if live and len(ratios) < MIN_BLOCKS and quantity != PEAK:
        changes = [pair.speeds[quantity] for pair in live if quantity in pair.speeds]
        low, high, p = fixed_interval(changes)
        if len(changes) == 1 and low is not None:  # one interval for one pair, wherever it stands
            low, high = changes[0].ratio.low, changes[0].ratio.high
    ratio = float(np.exp(np.mean(np.log(ratios))))
    return Effect(
        quantity=quantity,
        ratio=ratio,
        smallest=min(ratios),
        largest=max(ratios),
        low=low,
        high=high,
        below=sum(ratio < 1 for ratio in counted),
        above=sum(ratio > 1 for ratio in counted),
        pairs=len(ratios),
        noisy=sum(pair.within_noise for pair in live or pairs) if quantity == PEAK else 0,
        decided=sum(_decided(pair, quantity, ratio) for pair in live or pairs),
        live=bool(live),
        p=p,
        verdict=Verdict.NOT_TESTABLE,
    )


def t_interval(logs: np.ndarray) -> tuple[float | None, float | None, float | None]:
    """The 95 % interval of exp(mean) by Student's t over the blocks, and the p of a mean of 0.

    None each with fewer than MIN_BLOCKS.
    """
    if logs.size < MIN_BLOCKS:
        return None, None, None
    mean, error = logs.mean(), logs.std(ddof=1) / np.sqrt(logs.size)
    if error == 0:
        point = float(np.exp(mean))
        return point, point, float(point == 1)
    half = t_quantile(logs.size - 1) * error
    p = 2 * special.stdtr(logs.size - 1, -abs(mean) / error)
    return float(np.exp(mean - half)), float(np.exp(mean + half)), float(p)


def fixed_interval(
    changes: list[Change],
) -> tuple[float | None, float | None, float | None]:
    """As t_interval, for the mean over these very cells: from how their processes differ alone.

    Each side's variance is that of its mean (delta method on the logarithm), and the degrees of
    freedom are Welch and Satterthwaite's. None each where a side has fewer than MIN_PROCESSES.
    """
    sides = [
        (half / mean, n)
        for change in changes
        for half, mean, n in zip(
            change.half_widths, (change.before, change.after), change.ratio.n[::-1], strict=True
        )
        if half is not None
    ]
    if len(sides) < 2 * len(changes) or min(n for _, n in sides) < MIN_PROCESSES:
        return None, None, None
    variances = [(half / t_quantile(n - 1)) ** 2 for half, n in sides]
    mean = float(np.mean([np.log(change.ratio.value) for change in changes]))
    error = np.sqrt(sum(variances)) / len(changes)
    if error == 0:
        return float(np.exp(mean)), float(np.exp(mean)), float(mean == 0)
    terms = [variance**2 / (n - 1) for variance, (_, n) in zip(variances, sides, strict=True)]
    freedom = sum(variances) ** 2 / sum(terms)
    half = t_quantile(freedom) * error
    p = 2 * special.stdtr(freedom, -abs(mean) / error)
    return float(np.exp(mean - half)), float(np.exp(mean + half)), float(p)


def _decided(pair: Pair, quantity: str, ratio: float) -> bool:
    if quantity == PEAK:
        return pair.above_noise
    change = pair.speeds.get(quantity)
    return change is not None and change.verdict == (
        Verdict.SLOWER if ratio < 1 else Verdict.FASTER
    )


def _ratio(pair: Pair, quantity: str) -> float | None:
    if quantity == PEAK:
        return pair.peak_ratio
    change = pair.speeds.get(quantity)
    return change and change.ratio.value


def _verdict(effect: Effect, p: float | None) -> Verdict:
    if p is None:
        return Verdict.NOT_TESTABLE
    low, high = within(PRACTICAL)
    if low <= effect.low and effect.high <= high:
        return Verdict.SAME
    if p > 1 - CONFIDENCE:
        return Verdict.UNCLEAR
    if effect.quantity == PEAK:
        return Verdict.LOWER if effect.ratio < 1 else Verdict.HIGHER
    return Verdict.SLOWER if effect.ratio < 1 else Verdict.FASTER


@dataclass(frozen=True)
class SmallEffect:
    """Peaks that change by less than counts, but the same way in every pair of a group of cells."""

    where: dict[str, str]  # the names that the group's pairs share, on axes that have several
    pairs: list[Pair]

    @property
    def ratios(self) -> list[float]:
        return [pair.peak_ratio for pair in self.pairs]


def small_effects(comparison: Comparison) -> list[SmallEffect]:
    """The largest groups of live pairs, by names on up to two other axes, whose peaks all go one
    way by about PRACTICAL or less, the ranges over their processes not meeting in any.

    They were looked for, not declared: each is a hint, and no p belongs to it.
    """
    pairs = [pair for pair in comparison.pairs if pair.complete and pair.live]
    axes = [axis for axis in comparison.axes if axis in comparison.several]
    found: list[SmallEffect] = []
    for count in range(3):
        for chosen in itertools.combinations(axes, count):
            for names, group in _grouped(pairs, chosen).items():
                small = SmallEffect(dict(zip(chosen, names, strict=True)), group)
                if _one_way(small) and not _covered(small, found):
                    found.append(small)
    return found


def _one_way(small: SmallEffect) -> bool:
    ratios = small.ratios
    single = any(min(pair.rounds) < 2 for pair in small.pairs)
    if len(ratios) < (MIN_SAME_WAY_SINGLE if single else MIN_SAME_WAY):
        return False
    same = all(ratio > 1 for ratio in ratios) or all(ratio < 1 for ratio in ratios)
    sizes = [abs(ratio - 1) for ratio in ratios]
    tiny = max(sizes) <= MOST_SMALL and float(np.median(sizes)) <= PRACTICAL
    return same and tiny and not any(ranges_meet(pair.before, pair.after) for pair in small.pairs)


def _covered(small: SmallEffect, found: Iterable[SmallEffect]) -> bool:
    members = {id(pair) for pair in small.pairs}
    return any(members <= {id(pair) for pair in other.pairs} for other in found)


def _grouped(pairs: list[Pair], axes: tuple[str, ...]) -> dict[tuple[str, ...], list[Pair]]:
    groups: dict[tuple[str, ...], list[Pair]] = {}
    for pair in pairs:
        groups.setdefault(tuple(pair.names[axis] for axis in axes), []).append(pair)
    return groups
