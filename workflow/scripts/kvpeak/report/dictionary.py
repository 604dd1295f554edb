"""The data dictionary of the result tables, docs/columns.md, from kvpeak/base/columns.py."""

from kvpeak.base.columns import TABLES, Table
from kvpeak.report import markdown
from kvpeak.report.markdown import Markdown, code

INTRODUCTION = """# The columns of the result tables

Made by `make columns` from workflow/scripts/kvpeak/base/columns.py. CSV, UTF-8, comma-separated,
one header line; an empty field is a value that is not known. MiB is 2²⁰ bytes.
"""


def dictionary(tables: tuple[Table, ...] = TABLES) -> str:
    """The whole document."""
    return "\n".join([INTRODUCTION, *map(section, tables)])


def section(table: Table) -> str:
    """One table: what a row is, and its columns."""
    body = [[code(c.name), c.unit or "–", Markdown(c.meaning)] for c in table.columns]
    shown = markdown.table(["column", "unit", "meaning"], body)
    return f"## {table.path}\n\nA row is {table.rows}.\n\n{shown}\n"
