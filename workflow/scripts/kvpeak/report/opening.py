"""The first screen of a finding: the answer in a title and a few sentences, and one table."""

from kvpeak.analysis.comparisons import Comparison
from kvpeak.analysis.headline import is_lower_bound
from kvpeak.analysis.lead import Lead, lead, spell_name
from kvpeak.analysis.parts import PARTS
from kvpeak.analysis.pooled import PEAK, Effect
from kvpeak.analysis.results import Results, repeats, spell_outputs
from kvpeak.analysis.setting import is_stock
from kvpeak.analysis.verdicts import Verdict
from kvpeak.base.axes import AXES
from kvpeak.base.columns import SPEEDS
from kvpeak.report import markdown
from kvpeak.report.markdown import Markdown, number

MOST_ROWS = 8
KEPT = 0.05  # a share of the peak that the title names
ESTABLISHED = (Verdict.SAME, Verdict.FASTER, Verdict.SLOWER)


def opening(results: Results, found: Lead, effects: list[Effect]) -> dict:
    """The title and the sentences, plain text.

    With a cell that ran as its engine runs by itself the answer begins with what that takes; then
    comes the largest change that the data support, and once what happened to the speeds.
    """
    stock = stock_row(results)
    sentences = [found.sentence]
    title = found.title
    if stock:
        title = _stock_title(stock)
        sentences = [*_stock_sentences(stock), *([found.sentence] if found.pair else [])]
    if found.pair:
        sentences.append(spell_prices(effects))
        sentences += [
            f"{_cell(row)} {spell_outputs(row)}."
            for row in (found.pair.before, found.pair.after)
            if not repeats(row)
        ]
    return {"title": title, "sentences": sentences}


def stock_row(results: Results) -> dict | None:
    """Of the cells that ran as mlx-lm runs the one with the largest peak, of the first commit."""
    rows = [row for row in results.summary.values() if is_stock(row) and row["peak_mib"]]
    rows = [row for row in rows if row["outcome"] == "ok"]
    first = [row for row in rows if row["commit"] == rows[0]["commit"]]
    return max(first, key=lambda row: row["peak_mib"], default=None)


def _stock_title(row: dict) -> str:
    sampled = "a sampled " if is_lower_bound(row) else ""
    kept = row["parts"] and row["parts"][2]
    share = kept and kept / row["peak_mib"]
    more = f", {kept:,.0f} of it free memory that the pool keeps" if share and share > KEPT else ""
    return (
        f"{row['model']} takes {sampled}{row['peak_mib']:,.0f} MiB on "
        f"{int(row['prompt_tokens']):,} tokens as mlx-lm runs it{more}"
    )


def _stock_sentences(row: dict) -> list[str]:
    low, high = row["peak_min_mib"], row["peak_max_mib"]
    spread = (
        "" if low == high else f" ({low:,.0f} to {high:,.0f} in {int(row['rounds'])} processes)"
    )
    where = f"{row['commit']}, {row['model']}, {int(row['prompt_tokens']):,} tokens"
    first = f"As mlx-lm runs it, {where}: a peak of {row['peak_mib']:,.0f} MiB{spread}"
    if row["parts"]:
        weights, live, kept, rest = row["parts"]
        first += (
            f". Of it {weights:,.0f} MiB are weights, at most {live:,.0f} other live arrays, at "
            f"least {kept:,.0f} free memory that the pool keeps, and {rest:,.0f} the rest of the "
            "process"
        )
    more = ["The peak was sampled: it is a lower bound."] if is_lower_bound(row) else []
    return [f"{first}.", *more]


def spell_prices(effects: list[Effect]) -> str:
    """What happened to the speeds of a comparison, over all its pairs of cells, in one sentence."""
    speeds = [effect for effect in effects if effect.quantity != PEAK]
    if not speeds:
        return "Its speed was not measured."
    told = [spell_effect(effect) for effect in speeds if effect.verdict in ESTABLISHED]
    open_ones = [effect for effect in speeds if effect.verdict not in ESTABLISHED]
    text = f"Over all pairs of cells {' and '.join(told)}. " if told else ""
    if not open_ones:
        return text.strip()
    names = " and ".join(SPEEDS[effect.quantity][0] for effect in open_ones)
    few = all(effect.verdict == Verdict.NOT_TESTABLE for effect in open_ones)
    why = "there are too few cells and processes" if few else "cells and processes differ too much"
    return f"{text}What it does to the speed of {names} is not established: {why}."


def spell_effect(effect: Effect) -> str:
    """E.g. `decode is slower (0.754, 95 % 0.721 to 0.789, 31 of 32 pairs)`."""
    interval = f"{effect.ratio:.3g}, 95 % {effect.low:.3g} to {effect.high:.3g}"
    is_what = f"the {effect.verdict}" if effect.verdict == Verdict.SAME else effect.verdict
    name = "the peak" if effect.quantity == PEAK else SPEEDS[effect.quantity][0]
    return f"{name} is {is_what} ({interval}, {effect.same_way} of {effect.pairs} pairs)"


def _cell(row: dict) -> str:
    return f"The cell {', '.join(row[axis] for axis in AXES)}"


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
            Markdown(f"{'≥ ' * is_lower_bound(row)}{number(row['peak_mib'])}"),
            *map(number, row["parts"]),
        ]
        for row in rows
    ]
    names = ", ".join(spell_name(axis, rows[0][axis]) for axis in shared)
    header = [f"MiB ({names})" if names else "MiB", "peak", *PARTS]
    return markdown.table([markdown.escape(header[0]), *header[1:]], body, " " + "r" * 5)


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
