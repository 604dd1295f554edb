"""Pairs of cells in figures: which of many are shown, what they share, and how each is spelled."""

from kvpeak.analysis.comparisons import Comparison, Pair, has_peak
from kvpeak.analysis.headline import is_lower_bound, outside_runs
from kvpeak.analysis.lead import spell_name
from kvpeak.base.columns import SPEEDS
from kvpeak.report.style import MOST_PANELS, MOST_ROWS, MOST_SPOKEN


def two_sided(comparison: Comparison) -> list[Pair]:
    """The pairs of which both sides were measured, whichever way they ended."""
    return [pair for pair in comparison.pairs if pair.before and pair.after]


def largest(pairs: list[Pair]) -> list[Pair]:
    """At most MOST_ROWS pairs, those whose peak changes most, in their own order."""
    chosen = sorted(pairs, key=lambda pair: -abs(pair.peak_change_mib or 0))[:MOST_ROWS]
    kept = {id(pair) for pair in chosen}
    return [pair for pair in pairs if id(pair) in kept]


def largest_panels(panels: dict[str, list[Pair]]) -> dict[str, list[Pair]]:
    """At most MOST_PANELS panels, those with the largest change of a peak, in their own order."""

    def change(title: str) -> float:
        return max(abs(pair.peak_change_mib or 0) for pair in panels[title])

    chosen = set(sorted(panels, key=change, reverse=True)[:MOST_PANELS])
    return {title: members for title, members in panels.items() if title in chosen}


def grouped(items, key) -> dict:
    groups = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


def sides(comparison: Comparison) -> tuple[str, str]:
    """The compared names, clear without their axis."""
    return tuple(
        spell_name(comparison.axis, name) for name in (comparison.before, comparison.after)
    )


def panel(comparison: Comparison, pair: Pair) -> str:
    """What a panel's pairs share: every axis but prompt and KV cache; commit and variant where
    there are several.
    """
    several = comparison.several
    return ", ".join(
        spell_name(axis, name)
        for axis, name in pair.names.items()
        if axis not in ("prompt", "kv_cache") and (axis == "model" or axis in several)
    )


def cache_of(pair: Pair) -> str:
    return pair.names.get("kv_cache", "")


def label(comparison: Comparison, pair: Pair) -> str:
    return ", ".join(
        filter(None, (panel(comparison, pair), pair.names.get("prompt"), cache_of(pair)))
    )


def spoken(pairs: list[Pair], spell) -> str:
    """The pairs that change most in words, and how many more there are."""
    order = sorted(pairs, key=lambda pair: -abs(pair.peak_change_mib or 0))
    words = [spell(pair) for pair in order[:MOST_SPOKEN]]
    more = len(pairs) - len(words)
    return "; ".join(words) + (f"; and {more:,} more." if more else ".")


def spell_peaks(pair: Pair) -> str:
    names = " ".join(
        name for axis, name in pair.names.items() if axis in ("model", "prompt", "kv_cache")
    )
    before, after = (
        f"{side['peak_mib']:,.0f}" if has_peak(side) else side["outcome"] if side else "not run"
        for side in (pair.before, pair.after)
    )
    return f"{names} {before} → {after} MiB"


def spell_ratios(comparison: Comparison, pair: Pair, columns) -> str:
    spoken = [
        f"{SPEEDS[column][0]} {pair.speeds[column].ratio.spelled(2)}"
        for column in columns
        if column in pair.speeds
    ]
    return f"{label(comparison, pair)}: {', '.join(spoken)}"


def any_sampled(pairs: list[Pair]) -> bool:
    """Whether a peak that is compared was sampled; one of a cell that did not finish is not."""
    sides = [side for pair in pairs for side in (pair.before, pair.after)]
    return any(is_lower_bound(side) for side in sides if side and side["outcome"] == "ok")


def sampled(pairs: list[Pair]) -> str:
    """What a sampled peak is; '' where none was sampled."""
    return " Sampled peaks are lower bounds." if any_sampled(pairs) else ""


def most_changed(shown: int, of: int, what: str) -> str:
    """That a figure shows a part; '' where it shows all. what: of what, in the plural."""
    return f" Shown are those {shown:,} of {of:,} {what} that change most." if shown < of else ""


def not_in_runs(pairs: list[Pair]) -> str:
    """That a bar is not of the peak, where that was reached outside the runs."""
    sides = [side for pair in pairs for side in (pair.before, pair.after) if side]
    peaks = [f"{s['peak_mib']:,.0f} MiB {when}" for s in sides if (when := outside_runs(s))]
    more = f" Of a cell that takes more outside its runs ({', '.join(dict.fromkeys(peaks))})"
    return f"{more} it is that of the runs." if peaks else ""


def one_process(pairs: list[Pair]) -> str:
    """Whose peak a cell's parts are; '' where each cell has one process."""
    if max(max(pair.rounds) for pair in pairs) == 1:
        return ""
    return " A bar is one process, that with the median peak, of two the lower."


def replayed(pairs: list[Pair]) -> str:
    """What the peak of a replayed cell is; '' without one."""
    if all(pair.live for pair in pairs):
        return ""
    return (
        " The peak of a replayed cell is that of the process that holds the pool and the weights, "
        "without the engine's runtime and the host's mask."
    )
