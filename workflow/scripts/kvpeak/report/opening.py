"""The first screen of a finding: the answer in a title and a few sentences, and one table."""

import math

from kvpeak.analysis.comparisons import Comparison, Pair
from kvpeak.analysis.headline import is_lower_bound
from kvpeak.analysis.lead import Lead, caution, lead, spell_name, spell_peak
from kvpeak.analysis.parts import PARTS
from kvpeak.analysis.pooled import PEAK, Effect
from kvpeak.analysis.results import Results
from kvpeak.analysis.setting import is_stock
from kvpeak.analysis.verdicts import Verdict
from kvpeak.analysis.workloads import spell_length, spell_prompt
from kvpeak.base.axes import AXES
from kvpeak.base.columns import SPEEDS
from kvpeak.base.kv_caches import kv_cache
from kvpeak.report import markdown
from kvpeak.report.markdown import Markdown, number

MOST_ROWS = 8
OWN_LOOP = "this project's loop, which never clears the pool"
AT_LEAST = "≥\u00a0"  # before a sampled peak, never at the end of a line
KEPT = 0.05  # a share of the peak that the title names
FASTER_OF = {"ttft_ms": {Verdict.FASTER: "shorter", Verdict.SLOWER: "longer"}}  # of a time
ESTABLISHED = (Verdict.SAME, Verdict.FASTER, Verdict.SLOWER)


def opening(
    results: Results, compared: list[Comparison], found: Lead, effects: dict[str, list[Effect]]
) -> dict:
    """The title, and the answers to what a reader asks first: (question, answer), plain text.

    With a cell that ran as its engine runs by itself the answer begins with what that takes; then
    comes the largest change that the data support, what would lower the peak, and the price.
    """
    stock, pair = stock_row(results), found.pair
    (comparison,) = [each for each in compared if pair and pair in each.pairs][:1] or [None]
    answers = {}
    if stock:
        answers["What takes the memory?"] = _stock_sentence(stock)
    lowers = pair and pair.before is stock and pair.peak_ratio < 1
    answers["What would lower it?" if lowers else "What changes it most?"] = found.sentence
    if stock and pair and not lowers:
        answers["What would lower it?"] = _lowering(compared, stock)
    if pair:
        answers["At what price?"] = spell_prices(comparison, effects[comparison.slug], pair)
        answers["How sure is this?"] = " ".join([_processes(pair), *caution(pair)])
    return {"title": _stock_title(stock) if stock else found.title, "answers": answers}


def _lowering(compared: list[Comparison], stock: dict) -> str:
    """What of all that was compared with a stock cell takes the most off its peak."""
    beside = [
        (pair, each.axis, other)
        for each in compared
        for pair in each.pairs
        for one, other in ((pair.before, pair.after), (pair.after, pair.before))
        if one is stock and other
    ]
    found = [
        (other["peak_mib"], axis, other)
        for pair, axis, other in beside
        if pair.above_noise and other["peak_mib"] < stock["peak_mib"]
    ]
    if not beside:
        return "Not known: no comparison has this cell on a side."
    if not found:
        return "Nothing that was compared with this cell lowers its peak above the noise."
    peak, axis, other = min(found, key=lambda each: each[0])
    one, another = (spell_name(axis, row[axis]) for row in (stock, other))
    return (
        f"{another} instead of {one} ({axis.replace('_', ' ')}): "
        f"{stock['peak_mib']:,.0f} → {peak:,.0f} MiB."
    )


def _processes(pair: Pair) -> str:
    """How many processes the largest change rests on."""
    counts = pair.rounds
    if max(counts) == 1:
        return "One process a side: how far these peaks repeat is not known from these data."
    many = f"{counts[0]}" if len(set(counts)) == 1 else f"{counts[0]} and {counts[1]}"
    return f"The peaks are medians of {many} processes a side, whose ranges do not meet."


def stock_row(results: Results) -> dict | None:
    """Of the cells that ran as mlx-lm runs the one with the largest peak, of the first commit."""
    rows = [row for row in results.summary.values() if is_stock(row) and row["peak_mib"]]
    rows = [row for row in rows if row["outcome"] == "ok"]
    first = [row for row in rows if row["commit"] == rows[0]["commit"]]
    return max(first, key=lambda row: row["peak_mib"], default=None)


def _stock_title(row: dict) -> str:
    least, bound = ("at least ", " (sampled)") if is_lower_bound(row) else ("", "")
    kept = row["parts"] and row["parts"][2]
    share = kept and kept / row["peak_mib"]
    more = f", {kept:,.0f} of it free memory that the pool keeps" if share and share > KEPT else ""
    return (
        f"{row['model']} takes {least}{row['peak_mib']:,.0f} MiB{bound} on "
        f"{spell_length(row)} as mlx-lm runs it{more}"
    )


def _stock_sentence(row: dict) -> str:
    low, high = row["peak_min_mib"], row["peak_max_mib"]
    spread = (
        "" if low == high else f" ({low:,.0f} to {high:,.0f} in {int(row['rounds'])} processes)"
    )
    first = (
        f"As mlx-lm runs it ({row['commit']}, {row['variant']}), {row['model']} peaks at "
        f"{spell_peak(row)}{spread} on {spell_prompt(row)}"
    )
    if row["parts"]:
        weights, live, kept, rest = row["parts"]
        first += (
            f". {_whole(row)} {weights:,.0f} MiB are weights, at most {live:,.0f} other live "
            f"arrays, at least {kept:,.0f} free memory that the pool keeps, and {rest:,.0f} the "
            "rest of the process"
        )
    return f"{first}."


def _whole(row: dict) -> str:
    """What the parts of a cell's peak add up to, in words."""
    whole = f"{sum(row['parts']):,.0f}"
    if whole == f"{row['peak_mib']:,.0f}":
        return "Of it"
    return f"Of the {whole} MiB of one process, the one with the median peak,"


def spell_prices(comparison: Comparison, effects: list[Effect], pair: Pair) -> str:
    """What happened to the speeds of a comparison: what is established over all its pairs of cells,
    what is of single pairs, what is not, and what `pair` shows without a verdict.
    """
    speeds = [effect for effect in effects if effect.quantity != PEAK]
    if not speeds:
        return "Its speed was not measured."
    told = [spell_effect(effect) for effect in speeds if effect.verdict in ESTABLISHED]
    open_ones = [effect for effect in speeds if effect.verdict not in ESTABLISHED]
    text = f"Over all pairs of cells {' and '.join(told)}. " if told else ""
    if single := ", ".join(spell_single_speeds(comparison, effects)):
        text += f"{single[0].upper()}{single[1:]}. "
    if not open_ones:
        return text.strip()
    names = " and ".join(SPEEDS[effect.quantity][0] for effect in open_ones)
    few = all(effect.verdict == Verdict.NOT_TESTABLE for effect in open_ones)
    why = "there are too few cells and processes" if few else "cells and processes differ too much"
    open_one = f"What it does to the speed of {names} is not established: {why}."
    return " ".join([*filter(None, [text.strip()]), *_of_pair(pair), open_one])


def spell_effect(effect: Effect) -> str:
    """E.g. `decode is slower (0.754, 95 % 0.721 to 0.789, 31 of 32 pairs)`."""
    interval = f"{effect.ratio:.3g}, 95 % {effect.low:.3g} to {effect.high:.3g}"
    is_what = f"the {effect.verdict}" if effect.verdict == Verdict.SAME else effect.verdict
    name = "the peak" if effect.quantity == PEAK else SPEEDS[effect.quantity][0]
    return f"{name} is {is_what} ({interval}, {effect.same_way} of {effect.pairs} pairs)"


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
    """Of the speeds for which no effect is established over all pairs: in how many pairs a change
    is, e.g. `time to first token is shorter in 3 of 3 pairs (most: 72 → 31 ms)`.
    """
    told = {effect.quantity for effect in effects if effect.verdict in ESTABLISHED}
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


def names_line(summary: list[dict]) -> Markdown:
    """What the variants of MLX and the KV caches are, by the names that the finding uses."""
    told = {}
    for row in summary:
        if row["method"] == "live" and (row["versions"] or "").startswith("mlx "):
            loop = "mlx-lm's loop" if row["loop"] == "mlx-lm" else OWN_LOOP
            more = ["naive attention"] * (row["attention"] == "naive")
            more += [row["env"]] if row["env"] else []
            told[row["variant"]] = " with ".join([loop, *more])
    caches = {row["kv_cache"]: kv_cache(row["kv_cache"]).words for row in summary}
    parts = [_words_of(words) for words in (told, caches) if len(words) > 1]
    return Markdown(". ".join(parts) + "." if parts else "")


def _words_of(told: dict[str, str]) -> str:
    """Names with what they are; those of which the same is said stand together."""
    names: dict[str, list[str]] = {}
    for name, text in told.items():
        names.setdefault(text, []).append(markdown.code(name))
    return "; ".join(f"{', '.join(some)}: {markdown.escape(text)}" for text, some in names.items())


def where_table(results: Results, compared: list[Comparison]) -> Markdown:
    """Where the bytes are at the peak: stock cells, and both sides of the pairs that changed
    most.
    """
    rows = [row for row in results.summary.values() if is_stock(row) and row["parts"]]
    rows = sorted(rows, key=lambda row: -row["peak_mib"])[: MOST_ROWS // 2]
    for comparison in compared:
        if (pair := lead(comparison).pair) and pair.live:
            rows += [side for side in (pair.before, pair.after) if side["parts"]]
    rows = list({tuple(row[axis] for axis in AXES): row for row in rows}.values())[:MOST_ROWS]
    if not rows:
        return Markdown("")
    shared = [axis for axis in AXES if len({row[axis] for row in rows}) == 1]
    body = [
        [
            _label(row, shared),
            Markdown(f"{AT_LEAST * is_lower_bound(row)}{number(sum(row['parts']))}"),
            *map(number, row["parts"]),
        ]
        for row in rows
    ]
    names = ", ".join(spell_name(axis, rows[0][axis]) for axis in shared)
    header = [f"MiB ({names})" if names else "MiB", "peak", *PARTS]
    table = markdown.table([markdown.escape(header[0]), *header[1:]], body, " " + "r" * 5)
    notes = []
    if any(row["rounds"] > 1 for row in rows):
        notes.append(
            "A row is one process, so that its parts add up: of the cell's processes the one with "
            "the median peak, of two in the middle the lower."
        )
    if any(map(is_lower_bound, rows)):
        notes.append("≥: sampled, a lower bound; so is then the rest of the process.")
    return Markdown("\n\n".join([table, *([f"*{' '.join(notes)}*"] * bool(notes))]))


def _label(row: dict, shared: list[str]) -> str:
    """What tells a cell from the others of a table; a stock cell needs no names of its setting."""
    where = ("commit", "model", "prompt")
    setting = [axis for axis in AXES if axis not in where]
    told = [row[axis] for axis in where if axis not in shared]
    if is_stock(row):
        told.append("as mlx-lm runs")
    else:
        told += [spell_name(axis, row[axis]) for axis in setting if axis not in shared]
    return ", ".join(told) or row["model"]
