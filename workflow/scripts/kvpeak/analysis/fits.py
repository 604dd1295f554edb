"""The longest prompt that fits: how the peak grows with the prompt, fitted and carried on.

What does not grow is subtracted first: the weights, and the process beside the allocator. The rest is
fitted by non-negative least squares, each length with the same relative weight. A law that misses a
length which was left out is refused.
"""

from dataclasses import dataclass
from itertools import combinations

import numpy as np
from scipy.optimize import nnls

LEAST_LENGTHS = 3
MOST_LEFT_OUT = 0.2  # a law that misses a left-out length by more is no law
NO_POSITIONS = 1_000_000  # tokens; where a model's files do not say how many it takes
# The terms of a law: what they are in words. `scores` are the largest tokens · all tokens of a chunk.
TERMS = {"constant": "a constant", "tokens": "the tokens", "scores": "the attention's scores"}


@dataclass(frozen=True)
class Point:
    """One cell at one length; MiB. `peak_low` is the smallest peak of its processes."""

    tokens: int
    peak: float
    peak_low: float
    pool: float | None  # the allocator's most live plus cached bytes; None if it does not say
    loaded: float  # the weights; 0 if not known


@dataclass(frozen=True)
class Series:
    """The cells that differ in their prompts only."""

    names: dict[str, str]  # the other axes
    points: tuple[Point, ...]  # by length
    chunk: int | None  # tokens of a chunk of the prefill; None: whole
    generated: int  # tokens after the prompt
    positions: int | None  # of the model; None if its files do not say
    machine_mib: float | None  # the memory of the machine, or of its GPU where that is the peak's
    replayed: bool = False


@dataclass(frozen=True)
class Law:
    """Coefficients of `terms`, in MiB per unit of each."""

    terms: tuple[str, ...]
    coefficients: tuple[float, ...]
    chunk: int | None

    def at(self, tokens: int) -> float:
        """The grown memory at this length, MiB."""
        return float(_design([tokens], self.terms, self.chunk)[0] @ np.array(self.coefficients))


@dataclass(frozen=True)
class Growth:
    """A series' law, with one law for each length left out and its relative miss of that length."""

    series: Series
    law: Law
    left_out: tuple[tuple[Law, float], ...]
    weights: float  # MiB
    process: tuple[float, float, float]  # MiB beside the allocator: used, least, most

    @property
    def error(self) -> float:
        """The largest relative miss of a length that was left out, of what grows (0.05 = 5 %)."""
        return max(abs(miss) for _, miss in self.left_out)

    def peak(self, tokens: int) -> tuple[float, float, float]:
        """The predicted peak in MiB, and the ends of its interval.

        The interval holds every law with one length left out, each widened by its own miss
        (jackknife-minmax: Barber et al. 2021, doi:10.1214/20-AOS1965). It widens beyond the measured
        lengths, because there the laws differ more. It is no confidence level.
        """
        used, least, most = (self.weights + beside for beside in self.process)
        middle = self.law.at(tokens)
        ends = [
            law.at(tokens) * (1 + sign * abs(miss))
            for law, miss in self.left_out
            for sign in (-1, 1)
        ]
        return used + middle, least + min(*ends, middle), most + max(*ends, middle)


@dataclass(frozen=True)
class Longest:
    """The longest prompts whose predicted peak, and whose interval's ends, stay within a memory.

    0: not even one token. `all_positions`: the model has no more positions than that.
    """

    tokens: int
    low: int
    high: int
    all_positions: bool


def _scores(tokens: int, chunk: int | None) -> int:
    """The most new tokens times all tokens of one chunk of the prefill."""
    if chunk is None or tokens <= chunk:
        return tokens * tokens
    whole, rest = divmod(tokens, chunk)
    return max(chunk * whole * chunk, rest * tokens)


def _design(tokens: list[int], terms: tuple[str, ...], chunk: int | None) -> np.ndarray:
    columns = {
        "constant": [1.0] * len(tokens),
        "tokens": [float(n) for n in tokens],
        "scores": [float(_scores(n, chunk)) for n in tokens],
    }
    return np.array([columns[term] for term in terms]).T


def _fitted(tokens: list[int], grown: list[float], terms: tuple, chunk: int | None) -> Law:
    """Non-negative least squares of the relative errors."""
    design = _design(tokens, terms, chunk) / np.array(grown)[:, None]
    scale = design.max(axis=0)
    solution, _ = nnls(design / scale, np.ones(len(tokens)))
    return Law(terms, tuple(map(float, solution / scale)), chunk)


def _left_out(
    tokens: list[int], grown: list[float], terms: tuple, chunk: int | None
) -> tuple[tuple[Law, float], ...]:
    """For each length the law of the others, and its relative miss."""
    found = []
    for index, (length, value) in enumerate(zip(tokens, grown, strict=True)):
        others = [*tokens[:index], *tokens[index + 1 :]], [*grown[:index], *grown[index + 1 :]]
        law = _fitted(*others, terms, chunk)
        found.append((law, law.at(length) / value - 1))
    return tuple(found)


def growth_of(series: Series) -> Growth | str:
    """The law of a series, or in words why the data do not support one."""
    if series.replayed:
        return "Candle's pool grows in steps; ask the replay: kvpeak predict --longest"
    points, lengths = series.points, len(series.points)
    if lengths < LEAST_LENGTHS:
        return f"measured at {_counted(lengths)}; needs {LEAST_LENGTHS}"
    tokens = [point.tokens for point in points]
    weights, process, grown = _parts(points)
    if min(grown) <= 0 or grown[-1] <= grown[0]:
        return "its peak does not grow with the prompt"
    candidates = [
        (terms, _left_out(tokens, grown, terms, series.chunk))
        for number in range(1, min(len(TERMS), lengths - 1) + 1)
        for terms in combinations(TERMS, number)
        if terms != ("constant",)
    ]
    # The smallest miss decides; of two that differ by less than a thousandth the shorter law.
    terms, left_out = min(candidates, key=lambda each: (round(_worst(each[1]), 3), len(each[0])))
    found = Growth(series, _fitted(tokens, grown, terms, series.chunk), left_out, weights, process)
    if found.error > MOST_LEFT_OUT:
        return f"no law: the best misses a length that is left out by {100 * found.error:,.0f} %"
    return found


def _parts(points: tuple[Point, ...]) -> tuple[float, tuple[float, float, float], list[float]]:
    """(weights, process beside the allocator as used, least and most, what grows at each length).

    The process beside the allocator is that of the longest length: at short ones the peak may be that
    of loading. Without the allocator's own figures only the weights are known.
    """
    weights = max(point.loaded for point in points)
    if any(point.pool is None for point in points):
        return weights, (0.0, 0.0, 0.0), [point.peak - weights for point in points]
    beside = [point.peak - point.pool for point in points[-2:]]
    lowest = points[-1].peak_low - points[-1].pool
    process = beside[-1], min(*beside, lowest), max(beside)
    return weights, process, [point.pool - weights for point in points]


def _worst(left_out: tuple[tuple[Law, float], ...]) -> float:
    return max(abs(miss) for _, miss in left_out)


def _counted(lengths: int) -> str:
    return "1 length" if lengths == 1 else f"{lengths} lengths"


def longest(growth: Growth, memory_mib: float) -> Longest:
    """The longest prompt that fits into a memory, with the tokens that are generated after it."""
    series = growth.series
    most = series.positions - series.generated if series.positions else NO_POSITIONS
    used, least, greatest = (_last_below(growth, end, memory_mib, most) for end in range(3))
    return Longest(used, greatest, least, used == most)


def _last_below(growth: Growth, end: int, memory_mib: float, most: int) -> int:
    """The last length up to `most` whose peak, or an end of its interval, is within the memory."""
    low, high = 0, max(most, 0)
    while low < high:
        middle = (low + high + 1) // 2
        if growth.peak(middle)[end] <= memory_mib:
            low = middle
        else:
            high = middle - 1
    return low
