"""The data dictionary: up to date, and the programs write the columns that it describes."""

from dataclasses import fields
from pathlib import Path

from kvpeak.analysis.judging import Check
from kvpeak.base import columns as tables
from kvpeak.report.dictionary import dictionary

ROOT = Path(__file__).parents[1]


def test_the_dictionary_is_up_to_date():
    written = (ROOT / "docs/columns.md").read_text(encoding="utf-8")
    assert written == dictionary(), "run: make columns"


def test_every_program_writes_the_described_columns():
    assert tables.CHECKS.names == tuple(field.name for field in fields(Check))


def test_every_column_is_described_once():
    for table in tables.TABLES:
        assert len(set(table.names)) == len(table.names)
        assert all(column.meaning for column in table.columns)
