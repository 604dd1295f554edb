"""What the check of the instruments found: which counters read what is known, and whose numbers are
in doubt.
"""

import math
from pathlib import Path

from kvpeak.base.errors import UserError
from kvpeak.base.text import brief, plain
from kvpeak.base.untrusted import MOST_RECORD, read_object

DOUBTED = "doubted"  # of a row of the summary: the columns whose counter is off
MOST, LONGEST = 100, 300  # readings of a record, and characters of a text
FIGURES = ("known_mib", "read_mib", "off_mib")


def read_instruments(folder: Path, commits: set[str]) -> tuple[dict[str, dict], list[str]]:
    """(commit → its record, a line for each that cannot be read) of results/instruments/, of these
    commits. Others may be another machine's, and imported.

    A record has `readings` (process, counter, what, known_mib, read_mib, off_mib, right), `falls`
    and `problems`, both lists of texts.
    """
    found, problems = {}, []
    for commit in sorted(commits):
        try:
            found[commit] = _checked(folder / "instruments" / f"{commit}.json")
        except FileNotFoundError:
            continue
        except (UserError, OSError) as error:
            problems.append(plain(str(error)))
    return found, problems


def doubt(summary: list[dict], instruments: dict[str, dict]) -> None:
    """Note in each row of the summary whose counters are off in its environment."""
    for row in summary:
        row[DOUBTED] = wrong_counters(instruments.get(row["commit"]))


def wrong_counters(record: dict | None) -> frozenset[str]:
    """The counters that read something else than is known. One that read nothing is not among
    them.
    """
    readings = record["readings"] if record else []
    return frozenset(
        each["counter"] for each in readings if not each["right"] and each["read_mib"] is not None
    )


def worst_reading(record: dict, counter: str) -> dict:
    """The reading of a counter that is off by the most."""
    readings = [each for each in record["readings"] if each["counter"] == counter]
    return max(readings, key=lambda each: abs(each["off_mib"] or 0.0))


def _checked(file: Path) -> dict:
    record = brief(read_object(file, MOST_RECORD), LONGEST)
    readings = record.get("readings")
    if not isinstance(readings, list) or len(readings) > MOST:
        raise UserError(f"{file}: readings: expected a list of at most {MOST}")
    return {
        "readings": [_reading(file, each) for each in readings],
        "falls": _texts(file, [_item(each, "words") for each in _list(record, "falls")]),
        "problems": _texts(file, _list(record, "problems")),
    }


def _reading(file: Path, given: object) -> dict:
    texts = {name: _item(given, name) for name in ("process", "counter", "what")}
    figures = {name: _item(given, name) for name in FIGURES}
    _texts(file, list(texts.values()))
    for name, value in figures.items():
        number = type(value) in (int, float) and math.isfinite(value)
        if not number and (value is not None or name == "known_mib"):
            raise UserError(f"{file}: readings: {name}: {str(value)[:40]}; expected a number")
    return texts | figures | {"right": _item(given, "right") is True}


def _list(record: dict, name: str) -> list:
    value = record.get(name, [])
    return value[:MOST] if isinstance(value, list) else []


def _item(given: object, name: str) -> object:
    return given.get(name) if isinstance(given, dict) else None


def _texts(file: Path, values: list) -> list[str]:
    if not all(isinstance(value, str) for value in values):
        raise UserError(f"{file}: expected texts in readings, falls and problems")
    return [plain(value) for value in values]
