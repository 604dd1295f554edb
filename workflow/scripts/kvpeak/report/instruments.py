"""The instruments' check in the finding: a table for each environment, and a mark on what is in
doubt.
"""

from kvpeak.analysis.headline import counter_of
from kvpeak.analysis.instruments import DOUBTED, worst_reading, wrong_counters
from kvpeak.base.numbers import signed
from kvpeak.report import markdown
from kvpeak.report.markdown import Markdown, code, escape, number

MARK = " †"
HEADER = ["process", "counter", "known, MiB", "read", "off by", ""]


def marked(row: dict, column: str) -> Markdown:
    """A figure of the summary, with a mark where its counter is off."""
    return Markdown(f"{number(row[column])}{mark_of(row, column)}")


def mark_of(row: dict, column: str) -> str:
    return MARK if row[column] is not None and column in row.get(DOUBTED, ()) else ""


def headline_mark(row: dict) -> str:
    """The mark of a cell's headline peak."""
    return MARK if f"peak_{counter_of(row)}_mib" in row.get(DOUBTED, ()) else ""


def instruments_section(instruments: dict[str, dict], problems: list[str]) -> dict | None:
    """None where nothing was checked. `doubts`: a line for each counter that is off."""
    if not instruments and not problems:
        return None
    return {
        "environments": [
            {
                "name": name,
                "table": markdown.table(HEADER, list(map(_row, record["readings"])), "  rrr "),
                "falls": [Markdown(escape(words)) for words in record["falls"]],
                "problems": [Markdown(escape(words)) for words in record["problems"]],
                "wrong": len(wrong_counters(record)),
            }
            for name, record in instruments.items()
        ],
        "problems": [Markdown(escape(problem)) for problem in problems],
        "doubts": [
            _doubt(name, worst_reading(record, counter))
            for name, record in instruments.items()
            for counter in sorted(wrong_counters(record))
        ],
    }


def _row(reading: dict) -> list:
    off = reading["off_mib"]
    return [
        escape(reading["process"]),
        Markdown(f"{escape(reading['what'])} ({code(reading['counter'])})"),
        number(reading["known_mib"], 1),
        number(reading["read_mib"], 1),
        Markdown("–" if off is None else signed(off, "+,.1f")),
        "" if reading["right"] else Markdown("not read" if off is None else "**off**"),
    ]


def _doubt(environment: str, reading: dict) -> Markdown:
    way = "too much" if reading["off_mib"] > 0 else "too little"
    return Markdown(
        f"With {code(environment)} the {escape(reading['what'])} ({code(reading['counter'])}) "
        "reads "
        f"{abs(reading['off_mib']):,.1f} MiB {way} of a process that takes "
        f"{reading['known_mib']:,.1f} MiB. Its numbers are marked{MARK}."
    )
