"""Before → after: the pairs of cells that differ on one axis only, what changed, and the sentence
that it supports.
"""

from dataclasses import dataclass, field
from functools import cached_property

from kvpeak.analysis import statistics
from kvpeak.analysis.results import CellName, Results
from kvpeak.analysis.verdicts import Verdict
from kvpeak.base.axes import AXES
from kvpeak.base.columns import SPEEDS
from kvpeak.base.fields import split_texts
from kvpeak.base.numbers import rounded

# A difference counts if it is larger than this share and larger than what the processes differ
# among themselves. Peaks of equal cells repeat within 1 %.
PRACTICAL = 0.05


@dataclass(frozen=True)
class Change:
    """What happened to one speed: the ratio after / before over processes, and what may be said of
    it.
    """

    before: float
    after: float
    half_widths: tuple[float | None, float | None]  # of the two means' 95 % intervals
    ratio: statistics.Ratio
    p: float | None  # of the rank test, Holm-corrected; None where it could not reach significance
    verdict: Verdict  # SAME, FASTER, SLOWER, UNCLEAR or NOT_TESTABLE
    needs: int | None  # processes a side at least, where the verdict is UNCLEAR or NOT_TESTABLE

    @property
    def spelled(self) -> str:
        """E.g. `88 → 91`, with the digits that the wider of the two intervals supports."""
        half = None if None in self.half_widths else max(self.half_widths)
        return f"{rounded(self.before, half)} → {rounded(self.after, half)}"


@dataclass(frozen=True)
class Pair:
    """Two cells that differ on the compared axis only; a side that was not run here is None."""

    names: dict[str, str]  # on the other axes
    before: dict | None  # rows of the summary, with what headline() adds
    after: dict | None
    speeds: dict[str, Change] = field(default_factory=dict)  # by column; only what both sides have
    flags: tuple[str, ...] = ()

    @property
    def complete(self) -> bool:
        """Whether both sides ended well and have a peak."""
        return has_peak(self.before) and has_peak(self.after)

    @property
    def peak_ratio(self) -> float | None:
        """Peak after / before; None if a side has none."""
        return self.after["peak_mib"] / self.before["peak_mib"] if self.complete else None

    @property
    def peak_change_mib(self) -> float | None:
        """Peak after − before in MiB; None if a side has none."""
        return self.after["peak_mib"] - self.before["peak_mib"] if self.complete else None

    @property
    def above_noise(self) -> bool:
        """Whether the peaks differ by more than PRACTICAL and ranges_meet() says that the processes
        do not.
        """
        if not self.complete or abs(self.peak_ratio - 1) <= PRACTICAL:
            return False
        return not ranges_meet(self.before, self.after)

    @property
    def within_noise(self) -> bool:
        """Whether the processes are known to differ by as much as the peaks do: the ranges meet,
        of several processes on each side where the peaks differ by less than PRACTICAL.
        """
        if not self.complete or not ranges_meet(self.before, self.after):
            return False
        return min(self.rounds) > 1 or abs(self.peak_ratio - 1) > PRACTICAL

    @property
    def rounds(self) -> tuple[int, int]:
        """How many processes each side has."""
        return tuple(int(side.get("rounds") or 1) for side in (self.before, self.after))

    @property
    def live(self) -> bool:
        return all(side["method"] == "live" for side in (self.before, self.after))


@dataclass(frozen=True)
class Comparison:
    """One entry of the matrix's `compare`, with every pair of which a side was measured here."""

    axis: str
    before: str
    after: str
    pairs: list[Pair]

    @property
    def slug(self) -> str:
        """A name for files and anchors, e.g. cap-none-32MiB."""
        return f"{self.axis}-{self.before}-{self.after}"

    @property
    def axes(self) -> list[str]:
        """The axes on which its pairs are named."""
        return list(self.pairs[0].names) if self.pairs else []

    @cached_property
    def several(self) -> set[str]:
        """The axes on which its pairs differ from one another."""
        names = (pair.names for pair in self.pairs)
        seen: dict[str, set[str]] = {}
        for axis, name in (item for each in names for item in each.items()):
            seen.setdefault(axis, set()).add(name)
        return {axis for axis, values in seen.items() if len(values) > 1}


def compare(results: Results, axis: str, before: str, after: str) -> Comparison:
    """Pair the cells that differ on the axis only. The p values of all pairs and speeds are
    Holm-corrected together.
    """
    position = AXES.index(axis)
    cells = [
        (cell, (*cell[:position], after, *cell[position + 1 :]))
        for cell in results.plan
        if cell[position] == before
    ]
    cells = [
        pair
        for pair in cells
        if pair[1] in results.plan and any(c in results.summary for c in pair)
    ]
    others = [name for name in AXES if name != axis]
    return Comparison(axis, before, after, _pairs(results, results, cells, others, before, after))


def compare_results(one: Results, other: Results, before: str, after: str) -> Comparison:
    """Pair each cell with itself in another folder of results; `axis` is then `results`."""
    cells = [(cell, cell) for cell in one.summary | other.summary]
    return Comparison(
        "results", before, after, _pairs(one, other, cells, list(AXES), before, after)
    )


def _pairs(one: Results, other: Results, cells, axes: list[str], before: str, after: str):
    changes = _changes(one, other, cells)
    return [
        Pair(
            names={axis: cell[AXES.index(axis)] for axis in axes},
            before=one.summary.get(cell),
            after=other.summary.get(partner),
            speeds={
                column: changes[cell, column] for column in SPEEDS if (cell, column) in changes
            },
            flags=tuple(
                f"{name}: {flag}"
                for name, results, side in ((before, one, cell), (after, other, partner))
                for flag in _flags(results, side)
            ),
        )
        for cell, partner in cells
    ]


def has_peak(row: dict | None) -> bool:
    """Whether a row of the summary is of a cell that ended well and has a peak."""
    return row is not None and row["outcome"] == "ok" and row["peak_mib"] is not None


def peak_range(row: dict) -> tuple[float, float]:
    """The smallest and the largest peak of a cell's processes, MiB; the peak itself where they are
    not known.
    """
    peak, ends = row["peak_mib"], (row.get("peak_min_mib"), row.get("peak_max_mib"))
    low, high = (peak if value is None else value for value in ends)
    return low, high


def ranges_meet(one: dict, other: dict) -> bool:
    """Whether the ranges of two cells' peaks over their processes meet; a peak that samples are
    known to have missed may have been higher by as much.
    """
    (low, high), (other_low, other_high) = map(peak_range, (one, other))
    high, other_high = high + one.get("missed_mib", 0), other_high + other.get("missed_mib", 0)
    return not (other_high < low or high < other_low)


def _flags(results: Results, cell: CellName) -> list[str]:
    flags = (results.summary.get(cell) or {}).get("flags") or ""
    return [*split_texts(flags), *results.outliers.get(cell, [])]


def _changes(one: Results, other: Results, cells) -> dict[tuple[CellName, str], Change]:
    """(cell before, column) → its change, for the pairs that have the speed on both sides."""
    samples = {
        (cell, column): (other.speeds(partner, column), one.speeds(cell, column))
        for cell, partner in cells
        for column in SPEEDS
    }
    samples = {key: pair for key, pair in samples.items() if all(side.size for side in pair)}
    placed = statistics.place_ratios(samples, *statistics.within(PRACTICAL))
    return {
        (cell, column): Change(
            before=float(before.mean()),
            after=float(after.mean()),
            half_widths=(statistics.half_width(before), statistics.half_width(after)),
            ratio=placed[cell, column].ratio,
            p=placed[cell, column].p,
            verdict=_verdict(column, placed[cell, column]),
            needs=placed[cell, column].needs,
        )
        for (cell, column), (after, before) in samples.items()
    }


def _verdict(column: str, placed: statistics.Placed) -> Verdict:
    if placed.place == statistics.BEYOND:
        return (
            Verdict.FASTER if (placed.ratio.value > 1) == (column != "ttft_ms") else Verdict.SLOWER
        )
    return {
        statistics.INSIDE: Verdict.SAME,
        statistics.UNCLEAR: Verdict.UNCLEAR,
        statistics.TOO_FEW: Verdict.NOT_TESTABLE,
    }[placed.place]
