"""One comparison as the finding shows it: its table, what was found, and what of it is doubtful."""

from dataclasses import replace

from kvpeak.analysis.comparisons import Comparison, Pair
from kvpeak.analysis.lead import lead
from kvpeak.analysis.verdicts import Verdict
from kvpeak.base.axes import AXES
from kvpeak.base.columns import SPEEDS
from kvpeak.report import markdown
from kvpeak.report.markdown import Markdown, code, number
from kvpeak.report.tables import SHOWN

# Columns of the summary that should be equal on both sides of a pair, and what it means if not.
SIDES = {
    "machine": "come from different machines",
    "harness": "come from different versions of the harness",
    "blas": "computed with a different BLAS, or with a different number of its threads",
    "prompt_tokens": "have prompts of different lengths",
    "generated_tokens": "generated different numbers of tokens",
}


def comparison_section(comparison: Comparison) -> dict:
    """One comparison as the template shows it: heading, table, what was found, and what of it is
    doubtful.
    """
    both = [pair for pair in comparison.pairs if pair.before and pair.after]
    largest = sorted(both, key=lambda pair: -abs(pair.peak_change_mib or 0))[:SHOWN]
    chosen = {id(pair) for pair in largest}
    shown = [pair for pair in both if id(pair) in chosen]
    axes = [
        axis
        for axis in AXES
        if axis != comparison.axis and len({pair.names[axis] for pair in both}) > 1
    ]
    replayed = any(not pair.live for pair in both)
    header = [axis.replace("_", " ") for axis in axes] + ["method"] * replayed
    header += ["peak before", "after", "after / before", "pool before", "after"]
    speeds = [column for column in SPEEDS if any(column in pair.speeds for pair in shown)]
    header += [f"{name}, {unit}" for name, unit in map(SPEEDS.get, speeds)]
    body = [_comparison_row(pair, axes, replayed, speeds) for pair in shown]
    right = " " * (len(axes) + replayed) + "r" * (5 + len(speeds))
    return {
        "axis": comparison.axis,
        "before": comparison.before,
        "after": comparison.after,
        "slug": comparison.slug,
        "found": lead(comparison).sentence,
        "replayed": replayed,
        "table": markdown.table(header, body, right) if body else "",
        "left_out": len(both) - len(shown),
        "one_sided": len(comparison.pairs) - len(both),
        "flagged": any(pair.flags for pair in shown),
        "unflagged": without_flagged(replace(comparison, pairs=both)),
        "mixed": mixed(both, comparison.axis),
    }


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
    return f"Without the {rows}: {lead(rest).sentence}"


def mixed(pairs: list[Pair], axis: str) -> list[str]:
    """What else than the compared axis differs between the two sides of pairs, in words; only what
    both sides say.
    """
    found = []
    for column, what in SIDES.items():
        if column == f"{axis}_tokens":
            continue
        values = [(pair.before[column], pair.after[column]) for pair in pairs]
        count = sum(None not in sides and sides[0] != sides[1] for sides in values)
        if count:
            found.append(f"The two sides of {count} of {len(pairs)} pairs {what}.")
    return found


def _comparison_row(pair: Pair, axes: list[str], with_method: bool, speeds: list[str]) -> list:
    before, after = pair.before, pair.after
    names = [code(pair.names[axis]) for axis in axes]
    if pair.flags and names:
        names[0] = Markdown(f"{names[0]} ⚑")
    return [
        *names,
        *([" / ".join(dict.fromkeys((before["method"], after["method"])))] if with_method else []),
        peak_or_outcome(before),
        peak_or_outcome(after),
        markdown.times(pair.peak_ratio),
        number(before["peak_pool_mib"]),
        number(after["peak_pool_mib"]),
        *(_speed(pair, column) for column in speeds),
    ]


def peak_or_outcome(row: dict) -> Markdown:
    """The cell's peak in MiB, and how it ended if not well."""
    if row["outcome"] != "ok":
        at = "" if row["peak_mib"] is None else f" at {number(row['peak_mib'])}"
        return Markdown(f"{markdown.escape(row['outcome'])}{at}")
    return number(row["peak_mib"])


def _speed(pair: Pair, column: str) -> Markdown:
    """E.g. 85.9 → 88.3, with the verdict where there are enough processes for one."""
    change = pair.speeds.get(column)
    if not change:
        return Markdown("–")
    text = f"{number(change.before, 1)} → {number(change.after, 1)}"
    return Markdown(text if change.verdict == Verdict.NOT_TESTABLE else f"{text}, {change.verdict}")
