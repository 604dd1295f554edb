"""One comparison as the finding shows it: its table, what was found, and what of it is doubtful."""

from collections.abc import Sequence
from dataclasses import replace

from kvpeak.analysis.comparisons import Comparison, Pair, peak_range
from kvpeak.analysis.lead import caution, lead
from kvpeak.analysis.pooled import PEAK, Effect
from kvpeak.analysis.results import repeats
from kvpeak.analysis.verdicts import Verdict
from kvpeak.analysis.workloads import is_session
from kvpeak.base.axes import AXES
from kvpeak.base.columns import SPEEDS
from kvpeak.report import markdown
from kvpeak.report.deciders import comparison_line, heading
from kvpeak.report.instruments import headline_mark, marked
from kvpeak.report.markdown import Markdown, code, number
from kvpeak.report.pairs import any_sampled
from kvpeak.report.tables import SHOWN

# Columns of the summary that should be equal on both sides of a pair, and what it means if not.
SIDES = {
    "machine": "come from different machines",
    "harness": "come from different versions of the harness",
    "blas": "computed with a different BLAS, or with a different number of its threads",
    "prompt_tokens": "have prompts of different lengths",
    "generated_tokens": "generated different numbers of tokens",
}


def comparison_section(
    comparison: Comparison, effects: Sequence[Effect] = (), mark: bool = True
) -> dict:
    """One comparison as the template shows it: heading, table, what was found, and what of it is
    doubtful. Without `mark` flags are the rule on this machine and no row is marked.
    """
    both = [pair for pair in comparison.pairs if pair.before and pair.after]
    largest = sorted(both, key=lambda pair: -abs(pair.peak_change_mib or 0))[:SHOWN]
    chosen = {id(pair) for pair in largest}
    shown = [pair for pair in both if id(pair) in chosen]
    found = lead(comparison)
    cautions = caution(found.pair) if found.pair else []
    return {
        "heading": heading(comparison),
        "axis": comparison.axis,
        "before": comparison.before,
        "after": comparison.after,
        "slug": comparison.slug,
        "line": comparison_line(comparison, list(effects), mark),
        "effects": list(map(effect_row, effects)),
        "found": " ".join(filter(None, [found.sentence, *cautions, found.speeds])),
        "replayed": any(not pair.live for pair in both),
        "table": _table(comparison, both, shown, mark),
        "pairs": len(shown),
        "left_out": len(both) - len(shown),
        "one_sided": len(comparison.pairs) - len(both),
        "flagged": mark and any(pair.flags for pair in shown),
        "unstable": any(not repeats(side) for pair in shown for side in (pair.before, pair.after)),
        "unflagged": without_flagged(replace(comparison, pairs=both)) if mark else "",
        "mixed": [*mixed(both, comparison.axis), *unequal(both)],
    }


def effect_row(effect: Effect) -> list:
    """A pooled effect as a row of a table."""
    name = "peak" if effect.quantity == PEAK else SPEEDS[effect.quantity][0]
    interval = "–" if effect.low is None else f"{effect.low:.3f} to {effect.high:.3f}"
    p = "–" if effect.p is None else f"{effect.p:.2g}"
    pairs = f"{effect.below} below 1, {effect.above} above, of {effect.pairs}"
    pairs = effect.counts if effect.quantity == PEAK else pairs
    return [name, f"{effect.ratio:.3f}", interval, pairs, p, str(effect.verdict)]


def _table(
    comparison: Comparison, both: list[Pair], shown: list[Pair], mark: bool
) -> Markdown | str:
    if not shown:
        return ""
    axes = [
        axis
        for axis in AXES
        if axis != comparison.axis and len({pair.names[axis] for pair in both}) > 1
    ]
    replayed = any(not pair.live for pair in both)
    sampled = any_sampled(both)
    header = [axis.replace("_", " ") for axis in axes] + ["method"] * replayed
    header += [f"peak before{', sampled (a lower bound)' * sampled}", "after", "after / before"]
    header += ["pool before", "after"]
    speeds = [column for column in SPEEDS if any(column in pair.speeds for pair in shown)]
    header += [f"{name}, {unit}" for name, unit in map(SPEEDS.get, speeds)]
    body = [_comparison_row(pair, axes, replayed, speeds, mark) for pair in shown]
    return markdown.table(header, body, " " * (len(axes) + replayed) + "r" * (5 + len(speeds)))


def without_flagged(comparison: Comparison) -> str:
    """What the unflagged pairs alone come to; '' where no pair is flagged."""
    kept = [pair for pair in comparison.pairs if not pair.flags]
    if len(kept) == len(comparison.pairs):
        return ""
    if not any(pair.complete for pair in kept):
        return (
            "Every pair that was measured to the end has a flag: "
            "without flagged rows nothing is left."
        )
    rest = replace(comparison, pairs=kept)
    flagged = len(comparison.pairs) - len(kept)
    rows = "flagged row" if flagged == 1 else f"{flagged} flagged rows"
    if lead(rest).sentence == lead(comparison).sentence:
        return f"Without the {rows} the same change is named first."
    return f"Without the {rows}: {lead(rest).sentence}"


def mixed(pairs: list[Pair], axis: str) -> list[str]:
    """What else than the compared axis differs between the two sides of pairs, in words; only what
    both sides say.
    """
    found = []
    for column, what in SIDES.items():
        if column == f"{axis}_tokens":
            continue
        values = [(_told(pair.before, column), _told(pair.after, column)) for pair in pairs]
        count = sum(None not in sides and sides[0] != sides[1] for sides in values)
        if count:
            found.append(f"The two sides of {count} of {len(pairs)} pairs {what}.")
    return found


def _told(row: dict, column: str):
    """A row's value, None of the tokens of a session: it is the loop that decides whether the last
    one of an answer is computed with the next turn.
    """
    return None if column == "prompt_tokens" and is_session(row) else row[column]


def unequal(pairs: list[Pair]) -> list[str]:
    """How many pairs compare medians of unequal numbers of processes."""
    count = sum(pair.rounds[0] != pair.rounds[1] for pair in pairs)
    if not count:
        return []
    return [f"{count} of {len(pairs)} pairs have more processes on one side than on the other."]


def _comparison_row(
    pair: Pair, axes: list[str], with_method: bool, speeds: list[str], mark: bool
) -> list:
    before, after = pair.before, pair.after
    names = [code(pair.names[axis]) for axis in axes]
    marks = [" ⚑"] * bool(mark and pair.flags)
    marks += [" ∿"] * (not repeats(before) or not repeats(after))
    methods = [" / ".join(dict.fromkeys((before["method"], after["method"])))]
    first, *others = [*names, *(methods if with_method else []), peak_or_outcome(before)]
    return [
        Markdown("".join([first, *marks])),
        *others,
        peak_or_outcome(after),
        markdown.times(pair.peak_ratio),
        marked(before, "peak_pool_mib"),
        marked(after, "peak_pool_mib"),
        *(_speed(pair, column) for column in speeds),
    ]


def peak_or_outcome(row: dict) -> Markdown:
    """The cell's peak in MiB with its range over processes, and how it ended if not well."""
    if row["outcome"] != "ok":
        at = "" if row["peak_mib"] is None else f" at {number(row['peak_mib'])}"
        return Markdown(f"{markdown.escape(row['outcome'])}{at}")
    if row["peak_mib"] is None:
        return number(None)
    low, high = map(number, peak_range(row))
    spread = "" if low == high else f" ({low} to {high})"
    return Markdown(f"{number(row['peak_mib'])}{spread}{headline_mark(row)}")


def _speed(pair: Pair, column: str) -> Markdown:
    """E.g. 86 → 88, with the verdict where there are enough processes for one."""
    change = pair.speeds.get(column)
    if not change:
        return Markdown("–")
    known = change.verdict != Verdict.NOT_TESTABLE
    return Markdown(f"{change.spelled}, {change.verdict}" if known else change.spelled)
