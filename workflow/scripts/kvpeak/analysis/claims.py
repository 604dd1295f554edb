"""The claims of config/expected.yaml: read, checked, and matched to planned cells. judging.py
judges them.

A claim applies once for each combination of the axes that its selectors leave open: a *group* of
cells. A name that is not in the matrix is no error, because matrices are edited: what it selects is
not measured here, and `kvpeak check` says so.
"""

import itertools
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

from kvpeak.analysis.results import CellName, Results, read_table, rows
from kvpeak.base.axes import AXES
from kvpeak.base.columns import SPEEDS
from kvpeak.base.errors import UserError
from kvpeak.experiment.config_file import ConfigError, did_you_mean, load_yaml, shown, validate

MOST_CELLS = 1_000_000  # of all claims together; with its group each takes about 600 bytes
MOST_LOOKS = 50_000_000  # at a cell, by a claim or by a row of its table; each takes about 0.5 µs
MOST_TESTED = 50_000  # cells of which a test or a fit is made; each takes about 3 ms
MOST_ABSENT = 100  # names that are looked for among those of the matrix, to name the nearest one


@dataclass(frozen=True)
class Group:
    """Cells that one verdict is about, in the roles that the claim's kind gives them."""

    cells: tuple[CellName, ...]
    open_axes: dict[str, str]  # its names on the axes that the selectors leave open
    expected: float | None = None  # for a value

    def held(self, claim: "Claim", results: Results) -> int:
        """How many of its cells were measured as far as the claim asks."""
        return sum(not results.missing(cell, claim.column) for cell in self.cells)


@dataclass(frozen=True)
class Claim:
    """One entry of expected.yaml with the groups of planned cells that it is about."""

    text: str
    kind: str
    source: str
    entry: dict
    groups: list[Group] = field(default_factory=list)
    # (axis, name) that it selects and the matrix does not have → where, e.g. claims[0].of.cap
    absent: dict[tuple[str, str], str] = field(default_factory=dict)

    @property
    def column(self) -> str:
        """The column of the summary that it is about."""
        return self["column"] or "tokens_sha256"

    def __getitem__(self, key: str):
        return self.entry.get(key)


def load_claims(file: Path | str, plan: dict[CellName, str]) -> list[Claim]:
    """Read and check expected.yaml against the planned cells.

    Raises ConfigError (one line) for what the schema refuses, and for claims about more cells than
    memory holds. A selector may match no planned cell.
    """
    data = load_yaml(file)
    validate(data, "expected.schema.json", file)
    planned = _Planned(file, plan)
    claims = [
        _claim(file, f"claims[{number}]", entry, planned)
        for number, entry in enumerate(data["claims"])
    ]
    for text, count in Counter(claim.text for claim in claims).items():
        if count > 1:
            raise ConfigError(file, "claims", f"{shown(text)} is claimed {count} times; keep one")
    return claims


def planned_names(plan) -> dict[str, list[str]]:
    """Axis → its names in the plan, in its order."""
    columns = zip(*plan, strict=True) if plan else ((),) * len(AXES)
    return {axis: list(dict.fromkeys(names)) for axis, names in zip(AXES, columns, strict=True)}


def spell_absent(file: Path | str, claims: list[Claim], planned: dict[str, list[str]]) -> list[str]:
    """A line for each name that claims select and the matrix does not have, with the nearest one
    that it has; of more than MOST_ABSENT one line that says how many.
    """
    found: dict[tuple[str, str], list[str]] = {}
    for claim in claims:
        for named, where in claim.absent.items():
            found.setdefault(named, []).append(where)
    lines = [
        f"{file}: {wheres[0]}: {shown(name)} is not in this matrix"
        f"{did_you_mean(name, planned[axis])}: not measured here "
        f"({len(wheres)} {'claims' if len(wheres) > 1 else 'claim'})"
        for (axis, name), wheres in itertools.islice(found.items(), MOST_ABSENT)
    ]
    if more := len(found) - len(lines):
        lines.append(f"{file}: claims: and {more:,} more names that are not in this matrix")
    return lines


# Groups: the planned cells that a claim compares, out of those that `of` selects. `to` replaces
# their names.


class _Planned:
    """The planned cells; how many the claims have looked at, selected, and selected for a test."""

    def __init__(self, file: Path | str, plan: dict[CellName, str]):
        self._file, self.cells = file, plan
        self.names = {axis: set(names) for axis, names in planned_names(plan).items()}
        self._looks = self._selected = self._tested = 0

    def select(self, entry: dict) -> list[CellName]:
        """The cells that a claim's selector leaves. Raises ConfigError once they are too many."""
        self._looks += len(self.cells)
        self._check(self._looks, MOST_LOOKS, "looks at a cell")
        wanted = [(AXES.index(axis), set(listed(names))) for axis, names in entry["of"].items()]
        found = [cell for cell in self.cells if all(cell[at] in names for at, names in wanted)]
        self._selected += len(found)
        self._check(self._selected, MOST_CELLS, "cells")
        self._tested += len(found) * _is_tested(entry)
        self._check(self._tested, MOST_TESTED, "cells of which a test is made")
        return found

    def _check(self, number: int, most: int, of: str) -> None:
        if number > most:
            raise ConfigError(
                self._file,
                "claims",
                f"more than {most:,} {of}, all claims and rows of their tables together: give "
                "fewer claims, or name fewer cells in `of`",
            )


def _is_tested(entry: dict) -> bool:
    return entry["kind"] in TESTED or (entry["kind"] == "ratio" and entry["column"] in SPEEDS)


def _singles(entry: dict, cells: list[CellName], plan) -> list[tuple[CellName, ...]]:
    return [(cell,) for cell in cells]


def _pairs(entry: dict, cells: list[CellName], plan) -> list[tuple[CellName, ...]]:
    pairs = ((cell, replaced(cell, entry["to"])) for cell in cells)
    return [pair for pair in pairs if pair[1] in plan and pair[1] != pair[0]]


def _sets(entry: dict, cells: list[CellName], plan) -> list[tuple[CellName, ...]]:
    return [found for found in _grouped(cells, listed(entry["across"])) if len(found) > 1]


def _series(entry: dict, cells: list[CellName], plan) -> list[tuple[CellName, ...]]:
    if "to" not in entry:
        return _grouped(cells, ["prompt"])
    partner = dict(_pairs(entry, cells, plan))
    return [
        tuple(itertools.chain.from_iterable((cell, partner[cell]) for cell in found))
        for found in _grouped(partner, ["prompt"])
    ]


def _grouped(cells: Iterable[CellName], across: list[str]) -> list[tuple[CellName, ...]]:
    """The cells that differ on nothing but the axes in `across`, together."""
    groups = {}
    for cell in cells:
        key = tuple(name for axis, name in zip(AXES, cell, strict=True) if axis not in across)
        groups.setdefault(key, []).append(cell)
    return [tuple(group) for group in groups.values()]


def replaced(cell: CellName, to: dict) -> CellName:
    return tuple(to.get(axis, name) for axis, name in zip(AXES, cell, strict=True))


def listed(names) -> list:
    return names if isinstance(names, list) else [names]


# How each kind of claim finds the cells of its groups.
GROUPINGS = {
    "value": _singles,
    "ratio": _pairs,
    "difference": _pairs,
    "spread": _sets,
    "same-tokens": _sets,
    "equivalence": _pairs,
    "pool-growth": _pairs,
    "growth-law": _series,
    "no-growth": _singles,
}
TESTED = ("equivalence", "growth-law", "no-growth")


# Reading expected.yaml.


def _claim(file, key: str, entry: dict, planned: _Planned) -> Claim:
    _check_bounds(file, key, entry)
    absent = _absent(key, entry, planned.names)
    if "table" in entry:
        groups, rows_absent = _table_groups(file, key, entry, planned)
        absent |= rows_absent
    else:
        groups = _groups(entry, planned)
    return Claim(entry["claim"], entry["kind"], entry["source"], entry, groups, absent)


def _absent(key: str, entry: dict, planned: dict[str, set[str]]) -> dict[tuple[str, str], str]:
    return {
        (axis, name): f"{key}.{role}.{axis}"
        for role in ("of", "to")
        for axis, names in entry.get(role, {}).items()
        for name in listed(names)
        if name not in planned[axis]
    }


def _check_bounds(file, key: str, entry: dict) -> None:
    given = entry.keys()
    if entry["kind"] == "value" and len(given & {"expected", "table"}) != 1:
        raise ConfigError(file, key, "give either expected or table")
    if entry["kind"] not in ("ratio", "difference"):
        return
    if len(given & {"expected", "tolerance_pct"}) == 1:
        raise ConfigError(file, key, "give expected and tolerance_pct together")
    if ("expected" in given) == bool(given & {"at_least", "at_most"}):
        raise ConfigError(
            file, key, "give either expected with tolerance_pct, or at_least, at_most or both"
        )


def _groups(entry: dict, planned: _Planned, expected: float | None = None) -> list[Group]:
    fixed = {axis for axis, names in entry["of"].items() if isinstance(names, str)}
    fixed |= set(listed(entry.get("across", [])))
    if entry["kind"] == "growth-law":
        fixed.add("prompt")
    return [
        Group(
            cells,
            {axis: name for axis, name in zip(AXES, cells[0], strict=True) if axis not in fixed},
            expected,
        )
        for cells in GROUPINGS[entry["kind"]](entry, planned.select(entry), planned.cells)
    ]


def _table_groups(
    file, key: str, entry: dict, planned: _Planned
) -> tuple[list[Group], dict[tuple[str, str], str]]:
    """One group per row of the claim's table: a CSV with names on some of the axes and a column of
    expected values.

    And the names in it that are not planned.
    """
    column, path = entry["column"], Path(file).parent / entry["table"]
    try:
        table = read_table(path)
    except (UserError, ValueError) as error:
        raise ConfigError(
            file, f"{key}.table", f"{shown(entry['table'])} cannot be read: {error}"
        ) from None
    if column not in table:
        raise ConfigError(
            file,
            f"{key}.column",
            f"{shown(column)} is no column of {path}; expected one of {', '.join(table)}",
        )
    groups, absent = [], {}
    for row in rows(table):
        names = {axis: row[axis] for axis in AXES if axis in table}
        absent |= _absent(f"{key}.table", {"of": names}, planned.names)
        found = _groups(entry | {"of": entry["of"] | names}, planned, row[column])
        groups += [replace(group, open_axes=names | group.open_axes) for group in found]
    return groups, absent
