"""The checks of a row that a record or a table of a process gives: what it names, its numbers and
its texts.
"""

import re
from pathlib import Path

from kvpeak.base.columns import COUNTS, SIGNED, Table
from kvpeak.base.errors import UserError
from kvpeak.base.numbers import LARGEST

LONGEST = 2000  # characters of a text: all cells' are kept
_COUNT = re.compile(r"\d{1,9}", re.ASCII)
_NUMBER = re.compile(r"-?\d+(\.\d+)?(e[-+]\d+)?", re.ASCII)


def check_cell(names: dict, cell: dict[str, str], file: Path) -> None:
    """Raise UserError if a record names another cell than the one in whose folder it lies."""
    for name, expected in cell.items():
        if (found := str(names.get(name))) != expected:
            raise UserError(
                f"{file}: {name}: {found[:80]}: expected {expected}, whose folder it is"
            )


def check_numbers(table: Table, row: dict, where: str) -> None:
    """Raise UserError for the first number of a row that the table, or who reads it, cannot take; a
    negative one becomes a number, because as text it would be a formula.
    """
    for name in table.numbers:
        value = row.get(name)
        if value is None or value == "":
            continue
        text = str(value)
        if name in COUNTS and not _COUNT.fullmatch(text):
            raise UserError(f"{where}: {name}: {text[:80]}: expected a number below 10^9")
        if not _NUMBER.fullmatch(text) or abs(float(text)) > LARGEST:
            raise UserError(f"{where}: {name}: {text[:80]}: expected a number")
        if name == "prompt_tokens" and not int(text):
            raise UserError(f"{where}: {name}: 0: expected a number from 1")
        if text.startswith("-"):
            if name not in SIGNED:
                raise UserError(f"{where}: {name}: {text[:80]}: expected a number from 0")
            row[name] = float(text)


def check_texts(table: Table, row: dict, where: str) -> None:
    """Raise UserError for a text of a row that is longer than any that kvpeak writes."""
    for name in set(table.names).difference(table.numbers):
        if len(str(row.get(name, ""))) > LONGEST:
            raise UserError(f"{where}: {name}: longer than {LONGEST:,} characters")
