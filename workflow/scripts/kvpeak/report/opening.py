"""The first screen of a finding: the answer in a title and a few sentences, and one table."""

import math
import re
from dataclasses import replace

from kvpeak.analysis.alternatives import (
    AXIS_WORDS,
    NOT_KNOWN,
    Change,
    changes,
    least_of_all,
    lowering,
    lowest,
)
from kvpeak.analysis.comparisons import PRACTICAL, Comparison, Pair, compare
from kvpeak.analysis.headline import counter_of, is_lower_bound, outside_runs
from kvpeak.analysis.lead import (
    Lead,
    caution,
    lead,
    of_what,
    order,
    spell_change_of,
    spell_name,
    spell_peak,
    spell_speeds,
)
from kvpeak.analysis.pooled import PEAK, Effect
from kvpeak.analysis.results import Results
from kvpeak.analysis.setting import is_stock, spell_penalty
from kvpeak.analysis.verdicts import Verdict
from kvpeak.analysis.workloads import spell_length, spell_prompt
from kvpeak.base.columns import SPEEDS
from kvpeak.base.numbers import percent

NEARLY = 0.95  # of the peak: loading alone nearly reaches it
MOST = "What changes it most, in MiB?"
MOST_NEARLY = 3  # changes as large as the largest that are named
KEPT = 0.05  # a share of the peak that the title names
FASTER_OF = {"ttft_ms": {Verdict.FASTER: "shorter", Verdict.SLOWER: "longer"}}  # of a time
ESTABLISHED = (Verdict.SAME, Verdict.FASTER, Verdict.SLOWER)


def opening(
    results: Results,
    compared: list[Comparison],
    found: Lead,
    effects: dict[str, list[Effect]],
    facts: tuple[str, ...] = (),
) -> dict:
    """The title, and the answers to what a reader asks first: (question, answer), plain text.

    Every finding answers the same questions in the same order, if only by saying that its data do
    not. They are about one cell: of those that ran as their engine runs by itself the one with the
    largest peak, else the one that the largest change begins with. `facts` are sentences about all
    cells.
    """
    stock, every = stock_row(results), changes(results, compared)
    clear = [change for change in every if change.pair.above_noise]
    most = max(clear, key=lambda change: order(change.pair), default=None)
    cell = stock or (most and most.pair.before) or (found.pair and found.pair.before)
    around = [
        change
        for change in every
        if change.pair.before is cell or change.pair.after is cell  # one object for each cell
    ]
    lower = lowest(cell, around)
    priced = lower or most
    return {
        "title": _stock_title(stock, results) if stock else _title(found, most),
        "answers": {
            "What takes the memory?": _takes(cell) if cell else NOT_KNOWN,
            MOST: spell_change_of(most.axis, most.pair) + _nearly(most, clear)
            if most
            else f"Nothing that was compared: {found.sentence}",
            "What would lower it?": lowering(cell, around, lower)
            + least_of_all(cell, results, lower),
            "At what price?": _price(results, cell, priced, compared, effects, bool(lower))
            if around or not priced
            else NOT_KNOWN,
            "How sure is this?": " ".join([*_sureness(most), *facts]) or NOT_KNOWN,
        },
    }


def _nearly(most: Change, clear: list[Change]) -> str:
    """The largest changes between other names that are as large, up to what counts as a difference,
    and that larger ones are replayed.
    """
    least = (1 - PRACTICAL) * abs(most.pair.peak_change_mib)
    alike = [each for each in clear if each.pair.live == most.pair.live]
    others = {
        _of_names(each): each
        for each in sorted(alike, key=lambda each: order(each.pair))
        if abs(each.pair.peak_change_mib) >= least
        and (each.axis, most.axis) != ("commit", "commit")  # one step between many releases
    }
    others.pop(_of_names(most), None)
    named = []
    for each in list(reversed(others.values()))[:MOST_NEARLY]:
        axis, before, after = each.axis, each.pair.before, each.pair.after
        named.append(
            f"{AXIS_WORDS[axis]}, {spell_name(axis, before[axis])} → "
            f"{spell_name(axis, after[axis])} "
            f"({before['peak_mib']:,.0f} → {after['peak_mib']:,.0f})"
        )
    more = len(others) - len(named)
    named += [f"{more} more"] * bool(more)
    within = percent(PRACTICAL, 0, sign=False)
    text = f" Changes as large, within {within}: {'; '.join(named)}." if named else ""
    replayed = [each for each in clear if not each.pair.live and most.pair.live]
    larger = any(abs(e.pair.peak_change_mib) > abs(most.pair.peak_change_mib) for e in replayed)
    return text + " Replayed cells, which are predictions, change more." * larger


def _of_names(change: Change) -> tuple[str, frozenset[str]]:
    """The axis and the two names, whichever comes first."""
    return change.axis, frozenset((change.comparison.before, change.comparison.after))


def _title(found: Lead, most: Change | None) -> str:
    """Of a finding without a cell of the engine's own setting: its largest change."""
    if not most or most.pair is found.pair:
        return found.title
    return lead(replace(most.comparison, pairs=[most.pair])).title


def _price(
    results: Results,
    cell: dict | None,
    change: Change | None,
    compared: list[Comparison],
    effects: dict[str, list[Effect]],
    lowers: bool,
) -> str:
    """What happens to the speeds, and whose price that is."""
    if not change:
        return NOT_KNOWN
    pair, comparison = change.pair, change.comparison
    turned = lowers and pair.peak_ratio > 1  # what lowers the peak is the side before
    names = [comparison.before, comparison.after][:: -1 if turned else 1]
    before, after = (spell_name(change.axis, name) for name in names)
    whose = f"Of {after} instead of {before}: "
    if not lowers:
        elsewhere = ", in another cell," * (cell not in (pair.before, pair.after))
        whose = (
            f"Nothing that was tried lowers this peak. The largest change{elsewhere} is "
            f"{before} → {after}: "
        )
    if comparison in compared:
        other_way = f"from {after} to {before} " * turned
        return whose + other_way + spell_prices(comparison, effects[comparison.slug], pair)
    found = compare(results, comparison.axis, *names).pairs
    alike = next((each for each in found if each.names == pair.names), pair)
    if any("load" in flag for flag in alike.flags):
        return f"{whose}not known, the machine was busy."
    return f"{whose}{_lower(spell_speeds(alike))}. It was found by looking, not declared before."


def _lower(text: str) -> str:
    return text[0].lower() + text[1:]


def _sureness(change: Change | None) -> list[str]:
    """How many processes the largest change rests on, and what makes it less sure."""
    if not change:
        return []
    pair = change.pair
    counts = pair.rounds
    if not pair.live:
        first = "Replayed: these peaks are predictions and have no noise."
    elif max(counts) == 1:
        first = "One process a side: how far these peaks repeat is not known from these data."
    else:
        many = f"{counts[0]}" if len(set(counts)) == 1 else f"{counts[0]} and {counts[1]}"
        first = (
            f"The two peaks of the largest change are medians of {many} processes a side, whose "
            "ranges lie apart."
        )
    flags = [f"The pair carries flags ({_kinds(pair)})."] if pair.flags else []
    return [first, *caution(pair), *flags]


def _kinds(pair: Pair) -> str:
    """The first word of each flag of a pair, e.g. `load`."""
    return ", ".join(dict.fromkeys(flag.split(": ")[1] for flag in pair.flags))


def stock_row(results: Results) -> dict | None:
    """Of the cells that ran as mlx-lm runs the one with the largest peak, of the newest release."""
    rows = [row for row in results.summary.values() if is_stock(row) and row["peak_mib"]]
    rows = [row for row in rows if row["outcome"] == "ok"]
    return max(rows, key=lambda row: (_release(row), row["peak_mib"]), default=None)


def _release(row: dict) -> list[int]:
    """What a cell's versions order by: [0, 32, 4, …] of `mlx 0.32.4; …`."""
    return [int(digits) for digits in re.findall(r"\d+", row.get("versions") or "")]


def _stock_title(row: dict, results: Results) -> str:
    commits = {each["commit"] for each in results.summary.values() if is_stock(each)}
    as_it_runs = "as mlx-lm runs it" + f" ({row['commit']})" * (len(commits) > 1)
    middle = " median" * (row["rounds"] > 1)
    least, bound = ("at least ", f" (sampled{middle})") if is_lower_bound(row) else ("", "")
    if when := outside_runs(row):
        return (
            f"{row['model']} takes {least}{row['peak_mib']:,.0f} MiB{of_what(row)}{bound} {when}, "
            f"and {row['sampled_run_mib']:,.0f} on {spell_length(row)} {as_it_runs}"
        )
    kept = row["parts"] and row["parts"][2]
    share = kept and kept / row["peak_mib"]
    more = f", {kept:,.0f} of it free memory that the pool keeps" if share and share > KEPT else ""
    return (
        f"{row['model']} takes {least}{row['peak_mib']:,.0f} MiB{of_what(row)}{bound} on "
        f"{spell_length(row)} {as_it_runs}{more}"
    )


def _takes(row: dict) -> str:
    """What a cell's peak consists of."""
    low, high = row["peak_min_mib"], row["peak_max_mib"]
    spread = (
        f" (median; {low:,.0f} to {high:,.0f} in {int(row['rounds'])} processes)"
        if f"{low:,.0f}" != f"{high:,.0f}"
        else ""
    )
    as_it_runs = "In a setting of this project"
    if is_stock(row):
        as_it_runs = "As mlx-lm runs it"
        as_it_runs += f", with {penalty}" if (penalty := spell_penalty(row)) else ""
    names = [row["commit"], row["variant"]]
    if not is_stock(row):
        names += [f"the {row['kv_cache']} cache", spell_name("cap", row["cap"])]
    first = (
        f"{as_it_runs} ({', '.join(names)}), {row['model']} peaks at "
        f"{spell_peak(row)}{of_what(row)}{spread} on {spell_prompt(row)}"
    )
    if when := outside_runs(row):
        first += (
            f", reached {when}; the largest sample of the runs is {row['sampled_run_mib']:,.0f} MiB"
        )
    elif (load := row.get("sampled_load_mib")) and load > NEARLY * row["peak_mib"]:
        first += f" (loading alone reaches {load:,.0f})"
    if row["parts"]:
        weights, live, kept, rest = row["parts"]
        free = f"{kept:,.0f} free memory that the pool keeps, " * (round(kept) > 0)
        first += (
            f". {_whole(row)} {weights:,.0f} MiB are weights, at most {live:,.0f} other live "
            f"arrays, {free}and {'at least ' * is_lower_bound(row)}{rest:,.0f} the rest of the "
            "process"
        )
        if row.get("loop_mib") and counter_of(row) == "footprint":
            first += f", {row['loop_mib']:,.0f} of it what importing the loop takes"
    elif row.get("pool_rule"):
        first += (
            f". Under the pool's rule {row['pool_rule']} its parts are not known: the rule counts "
            "whole buffers, and pages that nobody has touched"
        )
    else:
        first += ". Its parts are not known from these data"
    return f"{first}."


def _whole(row: dict) -> str:
    """What the parts of a cell's peak add up to, in words."""
    whole = f"{sum(row['parts']):,.0f}"
    if outside_runs(row):
        return f"Of the {whole} MiB while running"
    if row["rounds"] == 1 and whole == f"{row['peak_mib']:,.0f}":
        return "Of it"
    return f"Of the {whole} MiB of one process with the median peak"


def spell_prices(comparison: Comparison, effects: list[Effect], pair: Pair) -> str:
    """What happened to the speeds of a comparison: what is established over all its pairs of cells,
    what is of single pairs, what is not, and what `pair` shows without a verdict.
    """
    speeds = [effect for effect in effects if effect.quantity != PEAK]
    if not speeds:
        return "Its speed was not measured."
    told = [spell_effect(effect, alone=False) for effect in speeds if effect.verdict in ESTABLISHED]
    open_ones = [effect for effect in speeds if effect.verdict not in ESTABLISHED]
    text = f"Over all pairs of cells {' and '.join(told)}. " if told else ""
    if single := ", ".join(spell_single_speeds(comparison, effects)):
        text += f"{single[0].upper()}{single[1:]}. "
    if not open_ones:
        return text.strip()
    names = " and ".join(SPEEDS[effect.quantity][0] for effect in open_ones)
    if any("load" in flag for flag in pair.flags):
        why = "there are too few processes, and the machine was busy"
        return f"{text}What it does to the speed of {names} is not known: {why}."
    few = all(effect.verdict == Verdict.NOT_TESTABLE for effect in open_ones)
    why = "there are too few cells and processes" if few else "cells and processes differ too much"
    open_one = f"What it does to the speed of {names} is not established: {why}."
    return " ".join([*filter(None, [text.strip()]), *_of_pair(pair), open_one])


def spell_effect(effect: Effect, alone: bool = True) -> str:
    """E.g. `decode is slower (0.754, 95 % 0.721 to 0.789; 32 pairs, 3 alone)`: with `alone`, so
    many have that verdict of their own.
    """
    interval = f"{effect.ratio:.3g}, 95 % {effect.low:.3g} to {effect.high:.3g}"
    is_what = f"the {effect.verdict}" if effect.verdict == Verdict.SAME else effect.verdict
    name = "the peak" if effect.quantity == PEAK else SPEEDS[effect.quantity][0]
    pairs = f"{effect.pairs} pairs" if effect.pairs > 1 else "one pair"
    if alone and effect.verdict != Verdict.SAME and effect.quantity != PEAK and effect.pairs > 1:
        pairs += f", {effect.decided or 'none'} alone"
    return f"{name} is {is_what} ({interval}; {pairs})"


def _of_pair(pair: Pair) -> list[str]:
    """What one pair shows of its speeds where no verdict is about all pairs."""
    same = [SPEEDS[name][0] for name, each in pair.speeds.items() if each.verdict == Verdict.SAME]
    shown = [
        f"{SPEEDS[column][0]} {change.spelled} {SPEEDS[column][1]}"
        for column, change in pair.speeds.items()
        if change.verdict == Verdict.NOT_TESTABLE
    ]
    found = [f"In this pair the {Verdict.SAME}: {', '.join(same)}."] if same else []
    return found + ([f"This pair, without a verdict: {', '.join(shown)}."] if shown else [])


def spell_single_speeds(comparison: Comparison, effects: list[Effect]) -> list[str]:
    """Of the speeds whose pairs are too few to pool: in how many pairs a change is, e.g. `time to
    first token is shorter in 3 of 3 pairs (most: 72 → 31 ms)`. What is unclear over all pairs is
    not told by single ones.
    """
    told = {effect.quantity for effect in effects if effect.verdict != Verdict.NOT_TESTABLE}
    if "prefill_tok_s" in told:
        told.add("ttft_ms")  # most of it is the prefill
    columns = [name for name in SPEEDS if name not in told]
    return list(filter(None, (_single_speed(comparison, name) for name in columns)))


def _single_speed(comparison: Comparison, column: str) -> str:
    found = [pair.speeds[column] for pair in comparison.pairs if column in pair.speeds]
    words = FASTER_OF.get(column, {})
    parts = []
    for verdict in (Verdict.FASTER, Verdict.SLOWER):
        changes = [change for change in found if change.verdict == verdict]
        if changes:
            most = max(changes, key=lambda change: abs(math.log(change.ratio.value)))
            name, unit = SPEEDS[column]
            parts.append(
                f"{name} is {words.get(verdict, verdict)} in {len(changes)} of {len(found)} pairs "
                f"(most: {most.spelled} {unit})"
            )
    return " and ".join(parts)
