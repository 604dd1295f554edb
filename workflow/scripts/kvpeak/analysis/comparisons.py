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
from kvpeak.base.numbers import percent

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
    ratio: statistics.Ratio
    p: float | None  # of the rank test, Holm-corrected; None where it could not reach significance
    verdict: Verdict  # SAME, FASTER, SLOWER, UNCLEAR or NOT_TESTABLE
    needs: int | None  # processes a side at least, where the verdict is UNCLEAR or NOT_TESTABLE


@dataclass(frozen=True)
class Pair:
    """Two cells that differ on the compared axis only; a side that was not run here is None."""

    names: dict[str, str]  # on the other axes
    before: dict | None  # rows of the summary, with peak_mib and peak_min_mib
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
        """Whether the peaks differ by more than PRACTICAL and the ranges over their processes do
        not meet.
        """
        if not self.complete or abs(self.peak_ratio - 1) <= PRACTICAL:
            return False
        (before_low, before_high), (after_low, after_high) = map(
            peak_range, (self.before, self.after)
        )
        return after_high < before_low or before_high < after_low

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

    @cached_property
    def several(self) -> set[str]:
        """The axes on which its pairs differ from one another."""
        names = (pair.names for pair in self.pairs)
        seen: dict[str, set[str]] = {}
        for axis, name in (item for each in names for item in each.items()):
            seen.setdefault(axis, set()).add(name)
        return {axis for axis, values in seen.items() if len(values) > 1}


@dataclass(frozen=True)
class Lead:
    """What a comparison comes to: plain text, not yet escaped for Markdown. `pair` is None if
    nothing was found.
    """

    title: str
    sentence: str
    pair: Pair | None


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


# The lead.

TITLES = {
    "commit": "From {before} to {after}",
    "model": "With {after} instead of {before}",
    "prompt": "With {after} instead of {before}",
    "kv_cache": "With the {after} cache instead of {before}",
    "cap": "With a cap of {after} on the buffer pool",
    "variant": "With the variant {after} instead of {before}",
    "results": "From {before} to {after}",
}


def lead(comparison: Comparison) -> Lead:
    """The largest change of a peak that the data support, in one sentence, or the honest opposite.

    The largest in MiB; measured pairs before replayed ones.
    """
    subject = _subject(comparison)
    found = [pair for pair in comparison.pairs if pair.above_noise]
    if not found:
        return _no_lead(comparison, subject)
    pair = max(found, key=lambda pair: (pair.live, abs(pair.peak_change_mib)))
    before, after = pair.before["peak_mib"], pair.after["peak_mib"]
    change = "falls" if after < before else "rises"
    mib = f"from {before:,.0f} to {after:,.0f} MiB"
    title = f"{subject} the peak of {_what(pair)} {change} {mib}"
    factor = max(before, after) / min(before, after)
    sentence = (
        f"{subject}, {_where(pair)} peaks at {after:,.0f} MiB instead of {before:,.0f} MiB "
        f"({factor:.2f}× {'less' if after < before else 'more'}){_method(pair)}; "
        f"{spell_speeds(pair)}."
    )
    return Lead(title, sentence, pair)


def leading(comparisons: list[Comparison]) -> Lead | None:
    """The lead with the largest change of all comparisons, else the first one; None without
    comparisons.
    """
    leads = [lead(comparison) for comparison in comparisons]
    found = [each for each in leads if each.pair]
    if not found:
        return next(iter(leads), None)
    return max(found, key=lambda each: (each.pair.live, abs(each.pair.peak_change_mib)))


def _subject(comparison: Comparison) -> str:
    if comparison.axis == "cap" and comparison.after == "none":
        return f"Without the cap of {comparison.before} on the buffer pool"
    if comparison.axis == "cap" and comparison.before != "none":
        return f"With a cap of {comparison.after} on the buffer pool instead of {comparison.before}"
    return TITLES[comparison.axis].format(before=comparison.before, after=comparison.after)


def _no_lead(comparison: Comparison, subject: str) -> Lead:
    complete = [pair for pair in comparison.pairs if pair.complete]
    if not complete:
        return Lead(
            f"{subject}: nothing to compare",
            f"{subject}: no pair of cells was measured to the end here, so nothing can be said.",
            None,
        )
    largest = max(abs(pair.peak_ratio - 1) for pair in complete)
    return Lead(
        f"{subject} no peak changes above the noise",
        f"{subject}, no difference above the noise was found: of {len(complete)} pairs of cells "
        f"the peaks differ by at most {percent(largest, sign=False)}, or by less than the "
        "processes do among themselves.",
        None,
    )


def _what(pair: Pair) -> str:
    """E.g. `qwen2-tiny with cat at 513 tokens`, without the name on the compared axis."""
    names = pair.names
    cache = f" with {names['kv_cache']}" if "kv_cache" in names else ""
    tokens = f" at {int(pair.before['prompt_tokens']):,} tokens" if "prompt" in names else ""
    return f"{names.get('model', 'each model')}{cache}{tokens}"


def _where(pair: Pair) -> str:
    names = pair.names
    cache = f" with the {names['kv_cache']} cache" if "kv_cache" in names else ""
    tokens = (
        f" on a prompt of {int(pair.before['prompt_tokens']):,} tokens" if "prompt" in names else ""
    )
    others = [names["commit"]] if "commit" in names else []
    if "cap" in names:
        others.append(spell_name("cap", names["cap"]))
    if names.get("variant", "default") != "default":
        others.append(f"variant {names['variant']}")
    return f"{names.get('model', 'the model')}{cache}{tokens} ({', '.join(others)})"


def _method(pair: Pair) -> str:
    if pair.live:
        return ""
    methods = dict.fromkeys(side["method"] for side in (pair.before, pair.after))
    where = "books" if "replayed: counted" in methods else "process that holds them"
    return f" for the replayed pool and the weights, in the {where} ({' and '.join(methods)})"


def spell_name(axis: str, name: str) -> str:
    """A name on an axis, clear without its axis: the cap `none` is `no cap`."""
    if axis != "cap":
        return name
    return "no cap" if name == "none" else f"cap {name}"


def spell_speeds(pair: Pair) -> str:
    """What happened to the speeds of prefill and decode, in words and plain numbers."""
    spoken = [
        spell_change(column, pair.speeds[column])
        for column in ("prefill_tok_s", "decode_tok_s")
        if column in pair.speeds
    ]
    return ", ".join(spoken) if spoken else "speed was not measured"


def spell_change(column: str, change: Change) -> str:
    """E.g. `decode is the same within 5 % (ratio 1.002 (0.991 to 1.013), n = 5 and 5)`."""
    ratio, (name, unit) = change.ratio, SPEEDS[column]
    numbers = f"{change.before:,.1f} → {change.after:,.1f} {unit}"
    shown = f"ratio {ratio.spelled()}"
    more = f"; needs at least {change.needs} a side" if change.needs else ""
    if change.verdict == Verdict.SAME:
        return f"{name} is the {Verdict.SAME} ({shown})"
    if change.verdict in (Verdict.FASTER, Verdict.SLOWER):
        return f"{name} is {change.verdict}, {numbers} ({shown}, p = {change.p:.3g})"
    return f"{name} {numbers} is {change.verdict} ({shown}{more})"
