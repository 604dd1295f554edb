"""What decides the peak, a line each: the comparisons, the axes' shares, small effects, growth."""

import math
from pathlib import Path

from kvpeak.analysis.comparisons import PRACTICAL, Comparison, Pair
from kvpeak.analysis.lead import beside_runs, spell_name
from kvpeak.analysis.plateaus import Growth, growth_of, spell_growth
from kvpeak.analysis.pooled import PEAK, Effect, SmallEffect, small_effects
from kvpeak.analysis.results import Results, repeats, spell_outputs
from kvpeak.analysis.setting import imported, is_stock
from kvpeak.analysis.variance import Shares, shares_of_variance
from kvpeak.analysis.verdicts import Verdict
from kvpeak.base.axes import AXES
from kvpeak.base.columns import SPEEDS
from kvpeak.base.errors import UserError
from kvpeak.base.layout import shown_folder
from kvpeak.base.numbers import percent
from kvpeak.report.markdown import Markdown, escape, link
from kvpeak.report.opening import ESTABLISHED, spell_effect, spell_single_speeds

MIN_SHARE = 0.5  # of the variance: an axis with less does not decide
MOST_TIMELINES = 200  # cells whose samples are read
MOST_GROWING = 40  # of them that details.md lists


def heading(comparison: Comparison) -> str:
    """The heading of a comparison in details.md, from which its anchor is made."""
    axis = "KV cache" if comparison.axis == "kv_cache" else comparison.axis.capitalize()
    return f"{axis}: {comparison.before} to {comparison.after}"


def comparison_line(comparison: Comparison, effects: list[Effect], mark: bool = True) -> Markdown:
    """The pooled effect first, then the largest pair, then what is established of the speeds.

    With `mark` also how many pairs carry flags.
    """
    parts = [_peak(effect) for effect in effects if effect.quantity == PEAK]
    if pair := _most(comparison):
        told = comparison.several | {"model"} | (set() if pair.live else {"commit"})
        names = ", ".join(spell_name(*named) for named in pair.names.items() if named[0] in told)
        most = f"most: {pair.before['peak_mib']:,.0f} → {pair.after['peak_mib']:,.0f} MiB"
        parts.append(f"{most} ({names})" if names else most)
        parts += [imported(pair.before, pair.after)] if comparison.axis == "variant" else []
        parts += beside_runs(pair)
    speeds = [effect for effect in effects if effect.quantity != PEAK]
    parts += [spell_effect(effect) for effect in speeds if effect.verdict in ESTABLISHED]
    parts += spell_single_speeds(comparison, effects)
    complete = [pair for pair in comparison.pairs if pair.complete]
    live = [pair for pair in complete if pair.live]
    counted = live or complete
    if mark and (flagged := sum(bool(pair.flags) for pair in counted)):
        parts.append(f"{flagged} of {len(counted)} pairs flagged")
    if more := len(complete) - len(counted):
        parts.append(f"{more} replayed pairs not counted")
    text = escape("; ".join(filter(None, parts)) or "no pair of cells was measured to the end")
    title = heading(comparison)
    return Markdown(f"{link(title, f'details.md#{title}')}: {text}.")


def _most(comparison: Comparison) -> Pair | None:
    """The pair whose peak changes by the largest factor above the noise; live ones come first."""
    found = [pair for pair in comparison.pairs if pair.above_noise and pair.peak_ratio]
    live = [pair for pair in found if pair.live]
    return max(live or found, key=lambda pair: abs(math.log(pair.peak_ratio)), default=None)


def _times(ratio: float) -> str:
    """Two decimals, three where these would hide on which side of what counts as a change it is."""
    edges = (f"{1 - PRACTICAL:.2f}", f"{1 + PRACTICAL:.2f}")
    return f"{ratio:.3f}" if f"{ratio:.2f}" in edges else f"{ratio:.2f}"


def _peak(effect: Effect) -> str:
    count, predicted = effect.counts, "" if effect.live else "replayed, a prediction: "
    if effect.pairs == 1:
        return f"{predicted}{count} (ratio {_times(effect.ratio)})"
    spread = f"ratios {_times(effect.smallest)} to {_times(effect.largest)}"
    if not effect.live:
        return f"{predicted}{count} ({spread})"
    if effect.verdict == Verdict.NOT_TESTABLE:
        return f"{count} ({spread})"
    interval = f"pooled ratio {effect.ratio:.3g}, 95 % {effect.low:.3g} to {effect.high:.3g}"
    if effect.verdict == Verdict.UNCLEAR:
        return f"no common change of the peak is established ({interval}; {count})"
    is_what = f"the {effect.verdict}" if effect.verdict == Verdict.SAME else effect.verdict
    return f"the peak is {is_what} ({interval}; {count})"


def spell_pooled(effect: Effect) -> str:
    """A pooled effect in a sentence of its own, whatever it comes to."""
    if effect.quantity == PEAK:
        few = effect.live and effect.pairs > 1 and effect.verdict == Verdict.NOT_TESTABLE
        text = f"{_peak(effect)}{'; too few to pool' * few}"
    elif effect.verdict in ESTABLISHED:
        text = spell_effect(effect)
    else:
        name = SPEEDS[effect.quantity][0]
        interval = "" if effect.low is None else f", 95 % {effect.low:.3g} to {effect.high:.3g}"
        few = "; too few pairs" if effect.low is None else ""
        text = f"{name}: no change established (ratio {effect.ratio:.3g}{interval}{few})"
    return f"over {effect.pairs} pairs of cells, {text}."


def speed_line(found: dict[str, list[Effect]]) -> list[Markdown]:
    """Once for all comparisons: what a line that names no speed or no pooled ratio leaves open, and
    what the noise is.
    """
    every = [effect for some in found.values() for effect in some]
    peaks = [effect for effect in every if effect.quantity == PEAK]
    speeds = [effect for effect in every if effect.quantity != PEAK]
    told = []
    if not all(effect.verdict in ESTABLISHED for effect in speeds):
        told.append("Where no speed is named, none is known to change.")
    if any(effect.verdict == Verdict.NOT_TESTABLE and effect.pairs > 1 for effect in peaks):
        replayed = ", or replayed" * any(not effect.live for effect in peaks)
        told.append(f"Without a pooled ratio: too few pairs{replayed}.")
    if any(effect.noisy for effect in peaks):
        told.append("Within the noise: the processes' ranges meet, or may by what samples missed.")
    if any(effect.verdict in ESTABLISHED and effect.pairs > 1 for effect in speeds):
        told.append("Alone: pairs with that verdict themselves.")
    return [escape(" ".join(told))] if told else []


def variance_lines(results: Results) -> list[Markdown]:
    """For each model: which axis goes with most of the differences at its longest prompt, and how
    much of them at its shortest; and the same for each of its workloads, which have no length.
    """
    models: dict[tuple[str, str], list[Shares]] = {}
    for shares in shares_of_variance(results):
        models.setdefault((shares.model, shares.workload and shares.prompt), []).append(shares)
    lines = []
    for (model, _), found in models.items():
        short, *_, long = sorted([*found, *found], key=lambda shares: shares.tokens)
        axis = long.first
        if max(long.shares[axis], short.shares.get(axis, 0.0)) < MIN_SHARE:
            continue
        text = (
            f"Of {model}'s {long.cells} cells {_where(long)}, "
            f"{percent(long.shares[axis], 0, sign=False)} of the variance of the peak (its "
            f"logarithm) goes with {_named(long.together)}"
        )
        if len(long.together) > 1:
            text += ", which these cells do not tell apart"
        elif short.tokens != long.tokens:
            share = percent(short.shares.get(axis, 0.0), 0, sign=False)
            text += f"; {_where(short)} {share}"
        if long.overlapping:
            text += f", and about as much with {_named(long.overlapping)}: the shares overlap"
        text += f" ({long.freedom} residual degrees of freedom)"
        lines.append(escape(f"{text}."))
    return lines


def _where(shares: Shares) -> str:
    return f"on {shares.workload}" if shares.workload else f"at {shares.tokens:,} tokens"


def _named(axes: list[str]) -> str:
    return " and ".join(f"the {axis.replace('_', ' ')}" for axis in axes)


def small_lines(compared: list[Comparison]) -> list[Markdown]:
    """The effects below what counts as a change that all go one way."""
    return [escape(_spell_small(each, small)) for each in compared for small in small_effects(each)]


def _spell_small(comparison: Comparison, small: SmallEffect) -> str:
    where = ", ".join(spell_name(*named) for named in small.where.items()) or "all cells"
    way = "rises" if small.ratios[0] > 1 else "falls"
    changes = sorted(abs(ratio - 1) for ratio in small.ratios)
    span = f"{percent(changes[0], sign=False)} to {percent(changes[-1], sign=False)}"
    before, after = (spell_name(comparison.axis, n) for n in (comparison.before, comparison.after))
    return (
        f"Small, but always the same way: from {before} to {after} the peak {way} by {span} in all "
        f"{len(small.ratios)} pairs at {where}, and the ranges over the processes do not meet. "
        "This was found by looking, not declared before."
    )


def unstable_lines(results: Results) -> list[Markdown]:
    """The cells whose runs disagree in their tokens, the number and one example."""
    rows = [row for row in results.summary.values() if not repeats(row)]
    if not rows:
        return []
    worst = max(rows, key=lambda row: row.get("outputs") or 0)
    names = ", ".join(spell_name(axis, worst[axis]) for axis in AXES)
    alike = sum((row.get("outputs") or 0) == (worst.get("outputs") or 0) for row in rows) - 1
    more = f"; {alike} more give{'s' * (alike == 1)} as many" if alike else ""
    count = f"{len(rows)} of {len(results.summary)} cells do" if len(rows) > 1 else "One cell does"
    return [
        escape(
            f"{count} not repeat: runs of one prompt, all greedy, gave different tokens. The most: "
            f"{spell_outputs(worst)} of {names}{more}."
        )
    ]


def growth_lines(results: Results, cells: Path) -> list[Markdown]:
    """How the memory grows in the first process of each cell while it decodes; stock cells
    first.
    """
    found = []
    for row in list(results.summary.values())[:MOST_TIMELINES]:
        if row["method"] != "live" or row["outcome"] != "ok":
            continue
        if growth := _growth(cells, row):
            names = ", ".join(spell_name(axis, row[axis]) for axis in AXES)
            text = escape(f"{names}: in the first run the process {spell_growth(growth)}.")
            found.append((not is_stock(row), -growth.mib_per_token, text))
    return [text for *_, text in sorted(found)[:MOST_GROWING]]


def _growth(cells: Path, row: dict) -> Growth | None:
    try:
        return growth_of(shown_folder(cells, row), row)
    except UserError:  # a link out of the results
        return None
