"""Predict the longest prompt that fits into a memory, from peaks.

Each combination of model, KV cache, cap, variant and commit with three or more lengths
is fitted; weights and process are subtracted first. The figures are predictions.
docs/fits.md says how they are made, and when none is.
"""

import argparse
from pathlib import Path

from kvpeak.analysis.longest import MEMORIES_MIB, fits_rows, sentence
from kvpeak.analysis.results import read_results
from kvpeak.base.columns import FITS
from kvpeak.base.files import write_together
from kvpeak.base.layout import PLAN, RESULTS, RUNS, SUMMARY
from kvpeak.base.numbers import GIB, MIB, bytes_of
from kvpeak.base.tables import csv_text, thousandths

MOST_NAMES = 4  # series without a prediction, of each reason; --out lists all


def arguments(parser: argparse.ArgumentParser) -> None:
    option = parser.add_argument
    option("--results", type=Path, default=RESULTS, help="default: %(default)s")
    option(
        "--memory",
        type=_memories,
        default=MEMORIES_MIB,
        metavar="SIZES",
        help="e.g. 16GiB or 8GiB,24GiB, beside the measuring machine's own",
    )
    option("--out", type=Path, metavar="CSV", help="write the table instead of printing it")


def run(given: argparse.Namespace) -> None:
    results = read_results(*(given.results / path.name for path in (PLAN, SUMMARY, RUNS)))
    rows = fits_rows(results, given.results, given.memory)
    if given.out:
        write_together(given.out.parent, {given.out.name: as_csv(rows)})
    else:
        print(as_text(rows))


def _memories(text: str) -> tuple[float, ...]:
    try:
        return tuple(bytes_of(size) / MIB for size in text.split(","))
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def as_csv(rows: list[dict]) -> str:
    """The table FITS; figures to three decimals."""
    return csv_text(FITS.names, rows, thousandths)


def as_text(rows: list[dict]) -> str:
    """The rows for a terminal: a line for each series with one for each memory below it, and a line
    for each reason why others have none.
    """
    lines, reasons, last = [], {}, None
    for row in rows:
        name = " ".join(row[axis] for axis in ("commit", "model", "kv_cache", "cap", "variant"))
        if row["reason"]:
            reasons.setdefault(row["reason"], []).append(name)
            continue
        if name != last:
            lines.append(
                f"{name}: {row['lengths']} lengths up to {row['longest_measured']:,} tokens; "
                f"a length that is left out is missed by {row['left_out_error_pct']:.1f} % at most"
            )
        last = name
        lines.append(f"  {_memory(row):<24}{_longest(row)}")
    lines += [f"no prediction, {reason}: {_some(names)}" for reason, names in reasons.items()]
    said = sentence(rows)
    return "\n".join([*lines, *([said] if said else [])]) or "no cell was measured"


def _some(names: list[str]) -> str:
    """The first names, and how many more there are."""
    more = len(names) - MOST_NAMES
    return "; ".join(names[:MOST_NAMES]) + (f"; and {more:,} more" if more > 0 else "")


def _memory(row: dict) -> str:
    own = " (measuring machine)" if row["machine"] == "yes" else ""
    return f"{row['memory_mib'] * MIB / GIB:,.0f} GiB{own}"


def _longest(row: dict) -> str:
    if row["longest_tokens"] == 0:
        return "does not fit"
    text = f"{row['longest_tokens']:,} tokens"
    if row["all_positions"] == "yes":
        return f"{text}: all that the model has positions for"
    text += f" ({row['longest_low']:,} to {row['longest_high']:,})"
    return f"{text}, {row['times_measured']:.1f} × the longest measured"
