"""The longest prompt that fits: how the peak grows with the prompt, fitted and carried on.

What does not grow is subtracted first: the weights, and the process beside the allocator. The rest
is fitted by non-negative least squares, each length's error in parts of its peak. A law that misses
a length which was left out is refused.
"""

from dataclasses import dataclass

import numpy as np
from scipy.optimize import nnls

LEAST_LENGTHS = 3
MOST_LEFT_OUT = 0.1  # a law that misses a left-out length by more of its peak is no law
NOISE_MIB = 1.0  # by which a part of the peak may grow and still be called constant
NO_POSITIONS = 1_000_000  # tokens; where a model's files do not say how many it takes
# The terms of a law: what they are in words.
TERMS = {"constant": "a constant", "tokens": "the tokens", "scores": "the attention's scores"}
# A coefficient may be 0, so that each law holds those with fewer terms.
CLEARLY = 0.8  # a longer law has to miss by less than this part of the shorter one's miss
NOTHING = 1e-9  # a miss that is only rounding
LAWS = (("tokens", "scores"), ("constant", "tokens", "scores"))


Grown = list[tuple[int, float, float]]  # (tokens, what grows, the peak), by length; MiB


@dataclass(frozen=True)
class Point:
    """One cell at one length; MiB."""

    tokens: int
    peak: float
    pool: float | None  # the allocator's most live plus cached bytes; None if it does not say
    active: float | None  # its most live bytes
    loaded: float  # the weights; 0 if not known
    loading: float = 0.0  # the largest sample before the first run; 0 if there is none


@dataclass(frozen=True)
class Prefill:
    """How a prompt is taken in: `chunk` tokens at a time (None: whole). `cached` are the MiB of
    keys and values that a token adds; None if they are not known.
    """

    chunk: int | None = None
    cached: float | None = None

    def scores(self, tokens: int) -> int:
        """The most new tokens times all tokens of one chunk."""
        if self.chunk is None:
            return tokens * tokens
        whole, rest = divmod(tokens, self.chunk)
        return max(self.chunk * whole * self.chunk, rest * tokens)

    def at_once(self, tokens: int) -> int:
        """The most tokens that have activations at a time."""
        if self.chunk is None or self.cached is None:
            return tokens
        return min(tokens, self.chunk)

    def beyond(self, tokens: int) -> float:
        """The keys and values of the tokens that at_once leaves out, MiB."""
        return (self.cached or 0.0) * (tokens - self.at_once(tokens))


@dataclass(frozen=True)
class Series:
    """The cells that differ in their prompts only."""

    names: dict[str, str]  # the other axes
    points: tuple[Point, ...]  # by length
    prefill: "Prefill"
    generated: int  # tokens after the prompt
    positions: int | None  # of the model; None if its files do not say
    machine_mib: float | None  # the memory of the machine, or of its GPU where that is the peak's
    replayed: bool = False


@dataclass(frozen=True)
class Law:
    """Coefficients of `terms`, in MiB per unit of each."""

    terms: tuple[str, ...]
    coefficients: tuple[float, ...]
    prefill: Prefill

    def at(self, tokens: int) -> float:
        """The grown memory at this length, MiB."""
        (columns,) = _design([tokens], self.terms, self.prefill)
        return float(columns @ np.array(self.coefficients)) + self.prefill.beyond(tokens)


@dataclass(frozen=True)
class Fixed:
    """What does not grow with the prompt, MiB: the weights, and (used, least, most) of the process
    beside the allocator and of what its pool keeps. No peak is below that of loading.
    """

    weights: float
    loading: float = 0.0
    process: tuple[float, float, float] = (0.0, 0.0, 0.0)
    kept: tuple[float, float, float] = (0.0, 0.0, 0.0)

    def peaks(self, grown: float) -> tuple[float, float, float]:
        """The peak with this much grown memory, and the least and the most that it may be."""
        constants = zip(self.process, self.kept, strict=True)
        used, least, most = (self.weights + process + kept + grown for process, kept in constants)
        return max(used, self.loading), max(least, self.loading), max(most, self.loading)


@dataclass(frozen=True)
class Growth:
    """A series' law, with one law for each length left out and its miss of that length's peak."""

    series: Series
    law: Law
    left_out: tuple[tuple[Law, float], ...]
    fixed: "Fixed"

    @property
    def error(self) -> float:
        """The largest miss of a length that was left out, in parts of its peak (0.05 = 5 %)."""
        return max(abs(miss) for _, miss in self.left_out)

    def peak(self, tokens: int) -> tuple[float, float, float]:
        """The predicted peak in MiB, and the ends of its interval.

        The interval holds every law with one length left out, each widened by its own miss
        (jackknife-minmax: Barber et al. 2021, doi:10.1214/20-AOS1965). It widens beyond the
        measured lengths, because there the laws differ more. It is no confidence level.
        """
        used, low, high = self.fixed.peaks(self.law.at(tokens))
        for law, miss in self.left_out:
            _, least, most = self.fixed.peaks(law.at(tokens))
            low, high = min(low, least * (1 - abs(miss))), max(high, most * (1 + abs(miss)))
        return used, low, high


@dataclass(frozen=True)
class Longest:
    """The longest prompts whose predicted peak, and whose interval's ends, stay within a memory.

    0: not even one token. `all_positions`: the model has no more positions than that.
    """

    tokens: int
    low: int
    high: int
    all_positions: bool


def _design(tokens: list[int], terms: tuple[str, ...], prefill: Prefill) -> np.ndarray:
    columns = {
        "constant": [1.0] * len(tokens),
        "tokens": [float(prefill.at_once(n)) for n in tokens],
        "scores": [float(prefill.scores(n)) for n in tokens],
    }
    return np.array([columns[term] for term in terms]).T


def _fitted(grown: Grown, terms: tuple[str, ...], prefill: Prefill) -> Law:
    """Non-negative least squares of the errors, each in parts of its peak."""
    tokens = [length for length, _, _ in grown]
    values = np.array([value - prefill.beyond(length) for length, value, _ in grown])
    peaks = np.array([peak for _, _, peak in grown])
    design = _design(tokens, terms, prefill) / peaks[:, None]
    scale = design.max(axis=0)
    solution, _ = nnls(design / scale, values / peaks)
    return Law(terms, tuple(map(float, solution / scale)), prefill)


def _left_out(
    grown: Grown, terms: tuple[str, ...], prefill: Prefill
) -> tuple[tuple[Law, float], ...]:
    """For each length the law of the others, and by which part of the peak it misses what grows."""
    found = []
    for index, (length, value, peak) in enumerate(grown):
        law = _fitted([*grown[:index], *grown[index + 1 :]], terms, prefill)
        found.append((law, (law.at(length) - value) / peak))
    return tuple(found)


def growth_of(series: Series) -> Growth | str:
    """The law of a series, or in words why the data do not support one."""
    if series.replayed:
        return "Candle's pool grows in steps; ask the replay: kvpeak predict --longest"
    points, lengths = series.points, len(series.points)
    if lengths < LEAST_LENGTHS:
        return f"measured at {_counted(lengths)}; needs {LEAST_LENGTHS}"
    fixed, values = _parts(points)
    if min(values) <= 0 or values[-1] <= values[0]:
        return "its peak does not grow with the prompt"
    grown = [(point.tokens, value, point.peak) for point, value in zip(points, values, strict=True)]
    candidates = [
        (terms, _left_out(grown, terms, series.prefill))
        for terms in LAWS
        if len(terms) < lengths  # else a law with one length left out is not determined
    ]
    terms, left_out = candidates[0]
    for longer, longer_left_out in candidates[1:]:
        if _worst(longer_left_out) < CLEARLY * _worst(left_out) - NOTHING:
            terms, left_out = longer, longer_left_out
    missed = tuple(
        (law, fixed.peaks(law.at(point.tokens))[0] / point.peak - 1)
        for point, (law, _) in zip(points, left_out, strict=True)
    )
    found = Growth(series, _fitted(grown, terms, series.prefill), missed, fixed)
    if found.error > MOST_LEFT_OUT:
        return f"no law: the best misses a length that is left out by {100 * found.error:,.0f} %"
    return found


def _parts(points: tuple[Point, ...]) -> tuple[Fixed, list[float]]:
    """What does not grow, and what does at each length.

    The peak is made of four parts: the weights, the live bytes above them, what the pool keeps
    beside those, and the process beside the allocator. The last two belong to the law where they
    grow with the prompt. Else they are constants, as they are at the longest length: at short ones
    the peak may be that of loading. Without the allocator's own figures only the weights are known.
    """
    weights = max(point.loaded for point in points)
    loading = max(point.loading for point in points)
    if any(point.pool is None for point in points):
        return Fixed(weights, loading), [point.peak - weights for point in points]
    live = [point.pool if point.active is None else point.active for point in points]
    kept = [point.pool - active for point, active in zip(points, live, strict=True)]
    beside = [point.peak - point.pool for point in points]
    constant_kept, growing_kept = _divided(kept, least=0.0)
    constant_beside, growing_beside = _divided(beside, least=_at_none(points, beside))
    grown = [
        active - weights + more + further
        for active, more, further in zip(live, growing_kept, growing_beside, strict=True)
    ]
    return Fixed(weights, loading, constant_beside, constant_kept), grown


def _at_none(points: tuple[Point, ...], part: list[float]) -> float:
    """Where the line through the shortest and the longest length meets no tokens, at least 0."""
    first, last = points[0].tokens, points[-1].tokens
    return max(0.0, part[0] - (part[-1] - part[0]) / (last - first) * first)


def _divided(part: list[float], least: float) -> tuple[tuple[float, float, float], list[float]]:
    """A part of the peak by length as (used, least, most) of a constant, and what grows above it.

    `least` is what is constant of a part that grows.
    """
    if part[-1] > part[0] + NOISE_MIB:
        return (least, least, least), [value - least for value in part]
    return (part[-1], min(part[-2:]), max(part[-2:])), [0.0] * len(part)


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
