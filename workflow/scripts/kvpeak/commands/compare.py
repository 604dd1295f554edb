"""Compare two folders of results, with the statistics of the finding.

They may be from before and after an upgrade, or from two machines:

    kvpeak compare A/results B/results --out comparison.md
"""

import argparse
from pathlib import Path

from kvpeak.analysis.comparisons import compare_results
from kvpeak.analysis.results import Results, read_results
from kvpeak.base.files import write_text
from kvpeak.report.comparing import DIALECTS, as_csv, as_markdown

FORMATS = (".md", ".csv")


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("before", type=Path, help="a folder of results")
    parser.add_argument("after", type=Path, help="another one")
    parser.add_argument(
        "--out", type=_out, help="FILE.md or FILE.csv; default: Markdown on the terminal"
    )
    parser.add_argument(
        "--csv-dialect",
        choices=DIALECTS,
        default="kvpeak",
        help="of FILE.csv: kvpeak (commas, decimal points), excel (the same, for a double click), "
        "excel-de (semicolons, decimal commas); default: %(default)s",
    )


def run(given: argparse.Namespace) -> None:
    before, after = given.before, given.after
    comparison = compare_results(read(before), read(after), str(before), str(after))
    csv_wanted = given.out and given.out.suffix == ".csv"
    text = as_csv(comparison, given.csv_dialect) if csv_wanted else as_markdown(comparison)
    if given.out:
        write_text(given.out, text)
    else:
        print(text, end="")


def _out(text: str) -> Path:
    if Path(text).suffix not in FORMATS:
        raise argparse.ArgumentTypeError(f"{text}: expected a name that ends with .md or .csv")
    return Path(text)


def read(folder: Path) -> Results:
    """The tables of a folder. Raises UserError where one is missing or is no such table."""
    return read_results(*(folder / name for name in ("plan.csv", "summary.csv", "runs.csv")))
