"""From a number of the finding to the row of the table that it was read from.

A number is linked where the text around it names the cell, and the cell's row holds that number in
the digits that are shown. A cell's own row goes before those of its processes, of predictions and
of claims. What was computed from several rows (a ratio, an interval) is in no row, and has no link,
unless a claim is about it.
"""

import bisect
import contextlib
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from kvpeak.base.axes import AXES
from kvpeak.base.numbers import LARGEST

NUMBER = re.compile(
    r"(?<![\w.,−-])\d{1,3}(?:,\d{3})+(?:\.\d+)?(?![\w,])|(?<![\w.,−-])\d+(?:\.\d+)?(?![\w,])"
)
ASKED_FOR = (  # not measured: not linked
    *("prompt_tokens", "generated_tokens", "rounds", "runs"),
    *("lengths", "longest_measured", "memory_mib"),
)
COMMON = frozenset(("none", "default"))  # names that a sentence need not say
LONGEST = 40  # characters of a number that is linked
LEAST_DIGITS = 2  # of a number that is linked; one digit is too often something else
NAMED_DIGITS = (
    3  # of one that is linked by names, where its row does not hold all numbers beside it
)


@dataclass(frozen=True)
class Row:
    """A row of a table: its anchor in the page, its names, and its figures as numbers."""

    anchor: str
    names: frozenset[str]
    figures: tuple[float, ...]


class Holders:
    """Which rows hold a number as it is shown. A document of others may have many numbers, and a
    table many figures: each number is looked for once, among the figures that are near it.
    """

    def __init__(self, rows: Iterable[Row]):
        self.rows = list(rows)
        pairs = ((figure, place) for place, row in enumerate(self.rows) for figure in row.figures)
        self._figures = sorted(set(pairs))
        self._found: dict[str, dict[int, Row]] = {}

    def of(self, shown: str) -> dict[int, Row]:
        """The rows of which a figure is shown like this, by their places."""
        if len(shown) > LONGEST:
            return {}
        if shown not in self._found:
            self._found[shown] = self._look(shown)
        return self._found[shown]

    def _look(self, shown: str) -> dict[int, Row]:
        value, decimals = float(shown.replace(",", "")), len(shown.partition(".")[2])
        near = (
            10.0**-decimals + 1e-12 * value
        )  # half of the last decimal, and what floats leave out
        first = bisect.bisect_left(self._figures, (value - near,))
        last = bisect.bisect_right(self._figures, (value + near, len(self.rows)))
        places = {
            place
            for figure, place in self._figures[first:last]
            if f"{figure:,.{decimals}f}" == shown
        }
        return {place: self.rows[place] for place in sorted(places)}


def rows_of(table: str, records: Iterable[dict], names: tuple[str, ...] = AXES) -> list[Row]:
    """The rows of one table; `names` are the columns that identify a row."""
    return [
        Row(
            anchor=anchor_of(table, number),
            names=frozenset(str(record[name]) for name in names if record.get(name)),
            figures=tuple(
                _figures(value for key, value in record.items() if key not in (*names, *ASKED_FOR))
            ),
        )
        for number, record in enumerate(records)
    ]


def rows_of_texts(table: str, records: Iterable[dict], columns: tuple[str, ...]) -> list[Row]:
    """The rows of a table of sentences: their names are the words in `columns`, their figures the
    numbers.
    """
    found = []
    for number, record in enumerate(records):
        text = " ".join(record.get(column) or "" for column in columns)
        figures = tuple(_figures(shown.replace(",", "") for shown in NUMBER.findall(text)))
        found.append(Row(anchor_of(table, number), words_of(text), figures))
    return found


def words_of(text: str) -> frozenset[str]:
    """The words of a text, in which a name is one word."""
    return frozenset(word.rstrip(".") for word in re.findall(r"[\w.+-]+", text))


def anchor_of(table: str, number: int) -> str:
    """The anchor of the table's row of that number, counted from 0; rows are lines of the file."""
    return f"{table}-{number + 2}"


def _figures(values: Iterable) -> Iterable[float]:
    for value in values:
        with contextlib.suppress(TypeError, ValueError):
            if abs(figure := float(value)) <= LARGEST:
                yield figure


class Links:
    """All rows that a number may come from."""

    def __init__(
        self, rows: list[Row], phrases: dict[str, str] | None = None, more: Iterable[Row] = ()
    ):
        """`more` are asked where none of `rows` holds a number."""
        self.rows, self._holders = rows, (Holders(rows), Holders(more))
        self.phrases = phrases or {}  # words that mean a name: `513 tokens` → the prompt's name
        self.known = frozenset(name for row in rows for name in row.names)

    def names_in(self, texts: Iterable[str]) -> frozenset[str]:
        """The names of rows that occur in the texts as whole words, or by a phrase."""
        whole = " ".join(texts)
        meant = {name for phrase, name in self.phrases.items() if phrase in whole}
        return self.known & (words_of(whole) | meant)

    def target(self, shown: str, near: frozenset[str], far: frozenset[str]) -> str | None:
        """The anchor of the one row that holds the number and fits the names.

        `near` are the names beside the number, all of which the row must have; of several such rows
        the one is taken that has the most of the names around (`far`), if it is one.
        """
        if not near:
            return None
        found = self._holding(shown, lambda row: near <= row.names)
        if len(found) > 1:
            most = max(len(row.names & far) for row in found)
            found = [row for row in found if len(row.names & far) == most]
        return found[0].anchor if len(found) == 1 else None

    def said(self, shown: str, names: frozenset[str]) -> str | None:
        """The anchor of the one row whose names a sentence says, all but COMMON ones."""
        found = self._holding(
            shown, lambda row: row.names <= names | COMMON and bool(row.names & names)
        )
        return found[0].anchor if len(found) == 1 else None

    def _holding(self, shown: str, fits: Callable[[Row], bool]) -> list[Row]:
        """The rows that hold the number and fit; of `more` only where none of `rows` does."""
        if sum(map(str.isdigit, shown)) < NAMED_DIGITS:
            return []
        for holders in self._holders:
            if found := [row for row in holders.of(shown).values() if fits(row)]:
                return found
        return []

    def whole_row(self, shown: list[str]) -> str | None:
        """The anchor of the one row that holds every one of these numbers, of two at least."""
        if len(shown) < 2:
            return None
        first, *others = map(self._holders[0].of, shown)
        found = [place for place in first if all(place in holding for holding in others)]
        return first[found[0]].anchor if len(found) == 1 else None
