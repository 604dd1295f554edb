"""Compare two folders of results, with the statistics of the finding.

They may be from before and after an upgrade, or from two machines:

    kvpeak compare A/results B/results --out comparison.md
"""

import argparse
import csv
import io
from pathlib import Path

from kvpeak.analysis.comparisons import Comparison, Pair, compare_results
from kvpeak.analysis.lead import lead
from kvpeak.analysis.results import read_results
from kvpeak.base.columns import COMPARISON, SPEEDS
from kvpeak.base.errors import UserError
from kvpeak.base.files import write_together
from kvpeak.report import sections
from kvpeak.report.markdown import escape

FORMATS = (".md", ".csv")


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("before", type=Path, help="a folder of results")
    parser.add_argument("after", type=Path, help="another one")
    parser.add_argument(
        "--out", type=_out, help="FILE.md or FILE.csv; default: Markdown on the terminal"
    )


def run(given: argparse.Namespace) -> None:
    before, after = given.before, given.after
    comparison = compare_results(read(before), read(after), str(before), str(after))
    csv_wanted = given.out and given.out.suffix == ".csv"
    text = as_csv(comparison) if csv_wanted else as_markdown(comparison)
    if given.out:
        write_together(given.out.parent, {given.out.name: text})
    else:
        print(text, end="")


def _out(text: str) -> Path:
    if Path(text).suffix not in FORMATS:
        raise argparse.ArgumentTypeError(f"{text}: expected a name that ends with .md or .csv")
    return Path(text)


def read(folder: Path):
    """The tables of a folder. Raises UserError where one is missing."""
    try:
        return read_results(*(folder / name for name in ("plan.csv", "summary.csv", "runs.csv")))
    except OSError as error:
        raise UserError(
            f"{error.filename}: {error.strerror}; expected a folder of results with plan.csv, summary.csv and runs.csv"
        ) from None


def as_markdown(comparison: Comparison) -> str:
    """Title, the sentence that the data support, the table, and what else differs between the two folders."""
    found, section = lead(comparison), sections.comparison_section(comparison)
    parts = [f"# {escape(found.title)}", escape(f"{found.sentence} {found.speeds}".strip())]
    parts += [section["table"]] * bool(section["table"])
    if section["left_out"]:
        parts.append(
            f"The {section['left_out']:,} pairs that changed least are left out; --out FILE.csv has them all."
        )
    parts += map(escape, [*section["mixed"], *filter(None, [section["unflagged"]])])
    if section["one_sided"]:
        parts.append(f"{section['one_sided']:,} cells are in one of the folders only.")
    if other := different_tokens(comparison):
        parts.append(f"{other:,} cells generated other tokens.")
    return "\n\n".join(parts) + "\n"


def different_tokens(comparison: Comparison) -> int:
    """How many cells have tokens on both sides that are not the same."""
    hashes = (
        {side["tokens_sha256"] for side in (pair.before, pair.after)}
        for pair in comparison.pairs
        if pair.before and pair.after
    )
    return sum(None not in found and len(found) > 1 for found in hashes)


def as_csv(comparison: Comparison) -> str:
    """Every cell of either folder as a row."""
    out = io.StringIO()
    writer = csv.DictWriter(out, COMPARISON.names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(map(row_of, comparison.pairs))
    return out.getvalue()


def row_of(pair: Pair) -> dict:
    """One cell's row, columns of COMPARISON."""
    row = dict(pair.names)
    for side, values in (("before", pair.before or {}), ("after", pair.after or {})):
        row |= {f"{name}_{side}": values.get(name) for name in ("outcome", "peak_mib")}
    row["peak_ratio"] = pair.peak_ratio
    for column in SPEEDS:
        if change := pair.speeds.get(column):
            ratio = change.ratio
            row |= {f"{column}_before": change.before, f"{column}_after": change.after}
            row |= {f"{column}_ratio": ratio.value, f"{column}_low": ratio.low}
            row |= {f"{column}_high": ratio.high, f"{column}_verdict": change.verdict}
    row["flags"] = "; ".join(pair.flags)
    return {
        name: f"{value:.6g}" if isinstance(value, float) else value for name, value in row.items()
    }
