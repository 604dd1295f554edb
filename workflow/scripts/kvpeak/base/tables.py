"""The one way in which a CSV file is written: no text in it is a formula for a spreadsheet."""

import csv
import io
import re
from collections.abc import Callable, Iterable

from kvpeak.base.text import csv_safe

_FIGURE = re.compile(r"-\d+(\.\d+)?(e[+-]?\d+)?", re.ASCII)  # as a table that was read has it


def csv_text(
    names: Iterable[str],
    rows: Iterable[dict],
    figure: Callable[[float], object] = float,
    separator: str = ",",
    header: bool = True,
) -> str:
    """The columns `names` of the rows as CSV text; `figure` spells a float, None is an empty
    field.
    """

    def field(value):
        if isinstance(value, float):
            return figure(value)
        if isinstance(value, str) and not _FIGURE.fullmatch(value):
            return csv_safe(value)
        return value

    columns, out = tuple(names), io.StringIO()
    writer = csv.writer(out, delimiter=separator, lineterminator="\n")
    if header:
        writer.writerow(map(csv_safe, columns))
    writer.writerows([field(row.get(name)) for name in columns] for row in rows)
    return out.getvalue()


def thousandths(value: float) -> float:
    return round(value, 3)


def six_digits(value: float) -> str:
    """Six digits, whole numbers in full."""
    return f"{value:.6g}"
