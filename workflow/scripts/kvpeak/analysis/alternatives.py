"""What was tried beside a cell: every cell that differs from it on one axis, whether a matrix
compares the two or not, and what of it takes less.
"""

import itertools
from collections import Counter
from dataclasses import dataclass

from kvpeak.analysis.comparisons import PRACTICAL, Comparison, Pair, has_peak
from kvpeak.analysis.lead import spell_name
from kvpeak.analysis.results import Results
from kvpeak.analysis.setting import laboratory
from kvpeak.analysis.variance import SETTINGS
from kvpeak.base.axes import AXES
from kvpeak.base.numbers import percent

NOT_KNOWN = "Not known from these data."
OVER = percent(PRACTICAL, 0, sign=False)  # that much less, the processes' ranges apart, is clear
FEW_NAMES = 4  # of settings that were tried and take no less
AXIS_WORDS = {axis: axis for axis in AXES} | {"kv_cache": "KV cache"}


@dataclass(frozen=True)
class Change:
    """Two cells that ended well and differ on one axis."""

    axis: str
    pair: Pair
    comparison: Comparison  # declared, or of all cells with these two names


def changes(results: Results, compared: list[Comparison]) -> list[Change]:
    """All declared comparisons, and all cells that differ in one setting only."""
    declared = {(each.axis, each.before, each.after): each for each in compared}
    for axis in SETTINGS:
        names = list(dict.fromkeys(row[axis] for row in results.summary.values()))
        for before, after in itertools.combinations(names, 2):
            known = {(axis, before, after), (axis, after, before)} & declared.keys()
            if not known and (found := _undeclared(results, axis, before, after)):
                declared[axis, before, after] = found
    return [
        Change(each.axis, pair, each)
        for each in declared.values()
        for pair in each.pairs
        if pair.complete
    ]


def _undeclared(results: Results, axis: str, before: str, after: str) -> Comparison | None:
    """A comparison that no matrix declares: the peaks alone, without a test of the speeds."""
    place = AXES.index(axis)
    pairs = []
    for cell, row in results.summary.items():
        partner = results.summary.get((*cell[:place], after, *cell[place + 1 :]))
        if cell[place] == before and partner:
            names = {name: row[name] for name in AXES if name != axis}
            pairs.append(Pair(names, row, partner))
    return Comparison(axis, before, after, pairs) if pairs else None


def _other(change: Change, cell: dict) -> dict:
    return change.pair.after if change.pair.before is cell else change.pair.before


def lowest(cell: dict | None, around: list[Change]) -> Change | None:
    """Of the changes around a cell the one whose other side takes the least, and clearly less."""
    less = [change for change in around if _is_less(change, cell)]
    return min(less, key=lambda change: _other(change, cell)["peak_mib"], default=None)


def _is_less(change: Change, cell: dict) -> bool:
    return change.pair.above_noise and _other(change, cell)["peak_mib"] < cell["peak_mib"]


def least_of_all(cell: dict | None, results: Results, lower: Change | None) -> str:
    """The setting of the same model and prompt that takes clearly less than all that differ from
    the cell in one name only; '' without one.
    """
    if not cell:
        return ""
    others = [
        row
        for row in results.summary.values()
        if all(row[axis] == cell[axis] for axis in ("commit", "model", "prompt", "method"))
        and has_peak(row)
    ]
    least = min(others, key=lambda row: row["peak_mib"], default=cell)
    best = _other(lower, cell) if lower else cell
    if least["peak_mib"] >= (1 - PRACTICAL) * best["peak_mib"]:
        return ""
    names = ", ".join(spell_name(axis, least[axis]) for axis in ("kv_cache", "cap", "variant"))
    return (
        f" Of all {len(others)} settings of this prompt the least is {least['peak_mib']:,.0f} MiB "
        f"({names})."
    )


def lowering(cell: dict | None, around: list[Change], lower: Change | None) -> str:
    """What was tried, on which axes and how often, and how much the best of it takes off."""
    if not around:
        return f"{NOT_KNOWN} No cell of this prompt was measured with one other setting only."
    counts = Counter(change.axis for change in around)
    kinds = [f"{n} other {AXIS_WORDS[axis]}{'s' * (n > 1)}" for axis, n in counts.items()]
    what = (
        f"With all else equal {' and '.join(kinds)} {'was' if len(around) == 1 else 'were'} tried"
    )
    if not lower:
        names = [
            f"{spell_name(change.axis, other[change.axis])}: "
            f"{other['peak_mib'] / cell['peak_mib']:.2f} times as much"
            for change in around
            for other in (_other(change, cell),)
        ]
        named = f"; {', '.join(names)}" if len(names) <= FEW_NAMES else ""
        none = "it does not take" if len(around) == 1 else "none takes"
        return f"{what}; {none} clearly less (over {OVER}{named})."
    less = sum(_is_less(change, cell) for change in around)
    other = _other(lower, cell)
    one, another = (spell_name(lower.axis, row[lower.axis]) for row in (cell, other))
    apart = other.get("tokens_sha256") != cell.get("tokens_sha256")
    tokens = " Its tokens are others." if apart and lower.axis in SETTINGS else ""
    packages = " A commit brings packages of its own." if lower.axis == "commit" else ""
    lab = [words for axis, words in laboratory(other).items() if axis not in laboratory(cell)]
    more = f" (a laboratory setting: {', '.join(lab)})" if lab else ""
    return (
        f"{another} instead of {one}: {cell['peak_mib']:,.0f} → {other['peak_mib']:,.0f} "
        f"MiB{more}. {what}; {less} of {len(around)} {'takes' if less == 1 else 'take'} clearly "
        f"less (over {OVER}).{packages}{tokens}"
    )
