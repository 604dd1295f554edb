"""The table of the first screen: where the bytes are at the peak."""

from kvpeak.analysis.comparisons import Comparison, has_peak
from kvpeak.analysis.headline import is_lower_bound, outside_runs
from kvpeak.analysis.lead import lead, spell_name
from kvpeak.analysis.parts import PARTS, counts_exactly
from kvpeak.analysis.results import Results
from kvpeak.analysis.setting import is_stock
from kvpeak.base.axes import AXES
from kvpeak.report import markdown
from kvpeak.report.markdown import Markdown, number
from kvpeak.report.opening import stock_row

MOST_ROWS = 6
AT_LEAST = "≥\u00a0"  # before a sampled peak, never at the end of a line


def where_table(results: Results, compared: list[Comparison]) -> Markdown:
    """Where the bytes are at the peak: stock cells, and both sides of the pairs that changed
    most.
    """
    rows = [row for row in results.summary.values() if is_stock(row) and has_peak(row)]
    subject = stock_row(results)
    rows = sorted(rows, key=lambda row: (row is not subject, -row["peak_mib"]))[: MOST_ROWS // 2]
    for comparison in compared:
        if (pair := lead(comparison).pair) and pair.live:
            rows += [pair.before, pair.after]
    rows = list({tuple(row[axis] for axis in AXES): row for row in rows}.values())[:MOST_ROWS]
    if not any(row["parts"] for row in rows):
        return Markdown("")
    shared = [axis for axis in AXES if len({row[axis] for row in rows}) == 1]
    body = [
        [
            _label(row, shared),
            Markdown(f"{AT_LEAST * is_lower_bound(row)}{number(sum(parts))}"),
            *_parts(row),
        ]
        for row in rows
        for parts in (row["parts"] or [row["peak_mib"]],)
    ]
    names = ", ".join(spell_name(axis, rows[0][axis]) for axis in shared)
    header = [f"MiB ({names})" if names else "MiB", "peak", *PARTS]
    table = markdown.table([markdown.escape(header[0]), *header[1:]], body, " " + "r" * 5)
    notes = []
    if any(row["rounds"] > 1 for row in rows):
        notes.append(
            "A row is the process with the median peak (of two the lower), each counter at its "
            "own peak."
        )
    if any(map(is_lower_bound, rows)):
        notes.append("≥: sampled, a lower bound.")
    if any(map(outside_runs, rows)):
        notes.append(
            "The parts are those of the runs, also where the peak was reached outside them."
        )
    if not all(row["parts"] or counts_exactly(row) for row in rows):
        notes.append("–: its pool counts reserved pages too.")
    elif not all(row["parts"] for row in rows):
        notes.append("–: a counter is not known.")
    return Markdown("\n\n".join([table, *([f"*{' '.join(notes)}*"] * bool(notes))]))


def _parts(row: dict) -> list:
    """What samples missed of a peak is missing in the rest, because the other parts are counted."""
    if not row["parts"]:
        return ["–"] * len(PARTS)
    *counted, rest = map(number, row["parts"])
    return [*counted, Markdown(f"{AT_LEAST * is_lower_bound(row)}{rest}")]


def _label(row: dict, shared: list[str]) -> str:
    """What tells a cell from the others of a table; a stock cell needs no names of its setting."""
    where = ("commit", "model", "prompt")
    setting = [axis for axis in AXES if axis not in where]
    told = [row[axis] for axis in where if axis not in shared]
    if is_stock(row):
        told.append("as mlx-lm runs")
    else:
        told += [spell_name(axis, row[axis]) for axis in setting if axis not in shared]
    if when := outside_runs(row):
        told.append(f"in its runs ({row['peak_mib']:,.0f} {when})")
    return ", ".join(told) or row["model"]
