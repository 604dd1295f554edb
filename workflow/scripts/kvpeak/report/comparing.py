"""Two folders of results, compared: as Markdown, and as CSV in the dialect of a spreadsheet."""

from dataclasses import dataclass

from kvpeak.analysis.comparisons import Comparison, Pair
from kvpeak.analysis.lead import lead
from kvpeak.analysis.pooled import effects
from kvpeak.base.columns import COMPARISON, SPEEDS
from kvpeak.base.fields import join_texts
from kvpeak.base.tables import csv_text, six_digits
from kvpeak.report import sections
from kvpeak.report.deciders import spell_pooled
from kvpeak.report.markdown import escape


@dataclass(frozen=True)
class Dialect:
    """How a spreadsheet of some country reads a CSV file."""

    separator: str
    decimal: str
    mark: str = ""  # at the start of the file, by which the program knows UTF-8


# kvpeak reads the first alone; the others are for a spreadsheet.
DIALECTS = {
    "kvpeak": Dialect(",", "."),
    "excel": Dialect(",", ".", "\ufeff"),
    "excel-de": Dialect(";", ",", "\ufeff"),
}


def as_markdown(comparison: Comparison) -> str:
    """Title, the sentence that the data support, the table, and what else differs between the two
    folders.
    """
    found, section = lead(comparison), sections.comparison_section(comparison)
    parts = [f"# {escape(found.title)}", escape(f"{found.sentence} {found.speeds}".strip())]
    parts += ["\n".join(f"- {escape(line)}" for line in pooled_lines(comparison))]
    parts += [section["table"]] * bool(section["table"])
    if section["left_out"]:
        parts.append(
            f"The {section['left_out']:,} pairs that changed least are left out; "
            "--out FILE.csv has them all."
        )
    parts += map(escape, [*section["mixed"], *filter(None, [section["unflagged"]])])
    if section["one_sided"]:
        parts.append(f"{section['one_sided']:,} cells are in one of the folders only.")
    if other := different_tokens(comparison):
        parts.append(f"{other:,} cells generated other tokens.")
    return "\n\n".join(parts) + "\n"


def pooled_lines(comparison: Comparison) -> list[str]:
    """The effects over all cells, the cell being the block; they come before any single pair."""
    found = effects([comparison])[comparison.slug]
    return [spell_pooled(effect) for effect in found]


def different_tokens(comparison: Comparison) -> int:
    """How many cells have tokens on both sides that are not the same."""
    hashes = (
        {side["tokens_sha256"] for side in (pair.before, pair.after)}
        for pair in comparison.pairs
        if pair.before and pair.after
    )
    return sum(None not in found and len(found) > 1 for found in hashes)


def as_csv(comparison: Comparison, dialect: str = "kvpeak") -> str:
    """Every cell of either folder as a row."""
    spelling = DIALECTS[dialect]

    def figure(value: float) -> str:
        return six_digits(value).replace(".", spelling.decimal)

    rows = map(row_of, comparison.pairs)
    return spelling.mark + csv_text(COMPARISON.names, rows, figure, spelling.separator)


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
    return row | {"flags": join_texts(pair.flags)}
