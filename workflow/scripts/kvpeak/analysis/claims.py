"""The claims of config/expected.yaml: read, checked, and matched to planned cells. judging.py
judges them.

A claim applies once for each combination of the axes that its selectors leave open: a *group* of
cells. A name that is not in the matrix is no error, because matrices are edited: what it selects is
not measured here, and `kvpeak check` says so.
"""

import itertools
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path

from kvpeak.analysis.results import CellName, Results, read_table, rows
from kvpeak.base.axes import AXES
from kvpeak.base.errors import UserError
from kvpeak.experiment.config_file import ConfigError, did_you_mean, load_yaml, shown, validate


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

    Raises ConfigError (one line) for what the schema refuses. A selector may match no planned cell.
    """
    data = load_yaml(file)
    validate(data, "expected.schema.json", file)
    planned = planned_names(plan)
    claims = [
        _claim(file, f"claims[{number}]", entry, plan, planned)
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
    that it has.
    """
    found: dict[tuple[str, str], list[str]] = {}
    for claim in claims:
        for named, where in claim.absent.items():
            found.setdefault(named, []).append(where)
    return [
        f"{file}: {wheres[0]}: {shown(name)} is not in this matrix"
        f"{did_you_mean(name, planned[axis])}: not measured here "
        f"({len(wheres)} {'claims' if len(wheres) > 1 else 'claim'})"
        for (axis, name), wheres in found.items()
    ]


# Groups: the planned cells that a claim compares. `to` replaces names of the cells that `of`
# selects.


def _singles(entry: dict, plan) -> list[tuple[CellName, ...]]:
    return [(cell,) for cell in plan if _selected(entry["of"], cell)]


def _pairs(entry: dict, plan) -> list[tuple[CellName, ...]]:
    pairs = ((cell, replaced(cell, entry["to"])) for (cell,) in _singles(entry, plan))
    return [pair for pair in pairs if pair[1] in plan and pair[1] != pair[0]]


def _sets(entry: dict, plan) -> list[tuple[CellName, ...]]:
    across = listed(entry["across"])
    sets = _grouped((cell for (cell,) in _singles(entry, plan)), across)
    return [cells for cells in sets if len(cells) > 1]


def _series(entry: dict, plan) -> list[tuple[CellName, ...]]:
    if "to" not in entry:
        return _grouped((cell for (cell,) in _singles(entry, plan)), ["prompt"])
    pairs = _pairs(entry, plan)
    partner = dict(pairs)
    return [
        tuple(itertools.chain.from_iterable((cell, partner[cell]) for cell in cells))
        for cells in _grouped(partner, ["prompt"])
    ]


def _grouped(cells, across: list[str]) -> list[tuple[CellName, ...]]:
    """The cells that differ on nothing but the axes in `across`, together."""
    groups = {}
    for cell in cells:
        key = tuple(name for axis, name in zip(AXES, cell, strict=True) if axis not in across)
        groups.setdefault(key, []).append(cell)
    return [tuple(group) for group in groups.values()]


def _selected(selector: dict, cell: CellName) -> bool:
    return all(cell[AXES.index(axis)] in listed(names) for axis, names in selector.items())


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


# Reading expected.yaml.


def _claim(file, key: str, entry: dict, plan, planned: dict[str, list[str]]) -> Claim:
    _check_bounds(file, key, entry)
    absent = _absent(key, entry, planned)
    if "table" in entry:
        groups, rows_absent = _table_groups(file, key, entry, plan, planned)
        absent |= rows_absent
    else:
        groups = _groups(entry, plan)
    return Claim(entry["claim"], entry["kind"], entry["source"], entry, groups, absent)


def _absent(key: str, entry: dict, planned: dict[str, list[str]]) -> dict[tuple[str, str], str]:
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


def _groups(entry: dict, plan, expected: float | None = None) -> list[Group]:
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
        for cells in GROUPINGS[entry["kind"]](entry, plan)
    ]


def _table_groups(
    file, key: str, entry: dict, plan, planned
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
        absent |= _absent(f"{key}.table", {"of": names}, planned)
        found = _groups(entry | {"of": entry["of"] | names}, plan, row[column])
        groups += [replace(group, open_axes=names | group.open_axes) for group in found]
    return groups, absent
