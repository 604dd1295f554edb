"""The claims of config/expected.yaml: read, matched to planned cells, and judged from the result tables.

A claim applies once for each combination of the axes that its selectors leave open: a *group* of cells. Verdicts are
`holds`, `fails`, `not testable` (too few processes or lengths to tell) and `not measured here`. A name that is not in the
matrix is no error, because matrices are edited: what it selects is not measured here, and check.py says so.
"""

import itertools
import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path

from kvpeak.analysis import statistics
from kvpeak.analysis.results import SPEEDS, CellName, Results, read_table, rows
from kvpeak.base.axes import AXES
from kvpeak.base.numbers import MIB, percent, signed
from kvpeak.experiment.config_file import ConfigError, did_you_mean, load_yaml, shown, validate

HOLDS, FAILS = "holds", "fails"
NOT_TESTABLE, NOT_MEASURED = "not testable", "not measured here"
VERDICTS = (
    FAILS,
    NOT_TESTABLE,
    HOLDS,
    NOT_MEASURED,
)  # the first that a group has decides a folded claim


@dataclass(frozen=True)
class Group:
    """Cells that one verdict is about, in the roles that the claim's kind gives them."""

    cells: tuple[CellName, ...]
    open_axes: dict[str, str]  # its names on the axes that the selectors leave open
    expected: float | None = None  # for a value


@dataclass(frozen=True)
class Claim:
    """One entry of expected.yaml with the groups of planned cells that it is about."""

    text: str
    kind: str
    source: str
    entry: dict
    groups: list[Group] = field(default_factory=list)
    absent: dict[tuple[str, str], str] = field(default_factory=dict)
    """(axis, name) that it selects and the matrix does not have → where it says so, e.g. claims[0].of.cap"""

    def __getitem__(self, key: str):
        return self.entry.get(key)


@dataclass(frozen=True)
class Verdict:
    """A row of checks.csv."""

    claim: str
    cells: str
    verdict: str
    detail: str
    source: str
    kind: str
    groups: int = 1  # how many combinations of the open axes the row stands for


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
    """A line for each name that claims select and the matrix does not have, with the nearest one that it has."""
    found: dict[tuple[str, str], list[str]] = {}
    for claim in claims:
        for named, where in claim.absent.items():
            found.setdefault(named, []).append(where)
    return [
        f"{file}: {wheres[0]}: {shown(name)} is not in this matrix{did_you_mean(name, planned[axis])}: "
        f"not measured here ({len(wheres)} {'claims' if len(wheres) > 1 else 'claim'})"
        for (axis, name), wheres in found.items()
    ]


def evaluate(claim: Claim, results: Results) -> list[Verdict]:
    """Judge every group of the claim: a verdict each, with `fold` one for all; of those not measured one a reason."""
    label, placed = _labels(claim), _place_speeds(claim, results)
    judged = [(label(group), *_judge(claim, group, results, placed)) for group in claim.groups]
    measured = [(*row, 1) for row in judged if row[1] != NOT_MEASURED]
    if claim["fold"] and len(measured) > 1:
        measured = [_folded(measured)]
    unmeasured: dict[str, list[str]] = {}
    for name, verdict, why in judged:
        if verdict == NOT_MEASURED:
            unmeasured.setdefault(why, []).append(name)
    rows = measured + [
        (_few(names), NOT_MEASURED, why, len(names)) for why, names in unmeasured.items()
    ]
    if claim.absent or not rows:
        names = ", ".join(f"{axis} {name}" for axis, name in claim.absent)
        rows.append(("", NOT_MEASURED, f"not in this matrix: {names or 'none of its cells'}", 0))
    return [
        Verdict(claim.text, cells, verdict, detail, claim.source, claim.kind, count)
        for cells, verdict, detail, count in rows
    ]


def _labels(claim: Claim) -> Callable[[Group], str]:
    """What spells a group: its model and prompt where they are open, and what else tells it from the others."""
    seen: dict[str, set[str]] = {}
    for group in claim.groups:
        for axis, name in group.open_axes.items():
            seen.setdefault(axis, set()).add(name)
    telling = {
        axis for axis, names in seen.items() if axis in ("model", "prompt") or len(names) > 1
    }
    return lambda group: ", ".join(
        name for axis, name in group.open_axes.items() if axis in telling
    )


def _few(names: list[str], most: int = 20) -> str:
    """The names, or the first of them and how many more there are."""
    shown_names = "; ".join(filter(None, names[:most]))
    return f"{shown_names}; and {len(names) - most} more" if len(names) > most else shown_names


def _folded(judged: list[tuple[str, str, str, int]]) -> tuple[str, str, str, int]:
    """One row for all: the first of VERDICTS that one has, the counts, and the first group that has it."""
    counts = Counter(row[1] for row in judged)
    verdict = next(name for name in VERDICTS if counts[name])
    label, _, detail, _ = next(row for row in judged if row[1] == verdict)
    summary = ", ".join(f"{counts[name]} {name}" for name in VERDICTS if counts[name])
    return "", verdict, f"of {len(judged)}: {summary}; first: {label}: {detail}", len(judged)


def _by_reason(named_reasons) -> str:
    """Spell (name, reason) pairs, each reason once: `needs a GPU (a; b)`."""
    names = {}
    for name, reason in named_reasons:
        names.setdefault(reason, []).append(name)
    return "; ".join(
        f"{reason} ({'; '.join(filter(None, found))})" for reason, found in names.items()
    )


def _judge(claim: Claim, group: Group, results: Results, placed: dict) -> tuple[str, str]:
    kind = KINDS[claim.kind]
    column = claim["column"] or "tokens_sha256"
    missing = {cell: results.missing(cell, column) for cell in group.cells}
    cells = [cell for cell in group.cells if not missing[cell]]
    if foreign := _foreign(claim, cells, results):
        return NOT_MEASURED, foreign
    if len(cells) < (kind.at_least or len(group.cells)):
        return NOT_MEASURED, _reasons(group, missing)
    verdict, detail = kind.judge(claim, group, cells, results, placed)
    without = f"; not counted: {_reasons(group, missing)}" if len(cells) < len(group.cells) else ""
    return verdict, detail + without


def _foreign(claim: Claim, cells: list[CellName], results: Results) -> str:
    """Why the measured cells do not belong to the setting that the claim requires, '' if they do."""
    for column, wanted in (claim["requires"] or {}).items():
        for cell in cells:
            found = results.summary[cell].get(column)
            if not any(fnmatchcase(str(found), pattern) for pattern in _listed(wanted)):
                return f"belongs to {column} {' or '.join(_listed(wanted))}; this is {found}"
    return ""


def _reasons(group: Group, missing: dict[CellName, str]) -> str:
    named = [(_name(group, cell), why) for cell, why in missing.items() if why]
    if len(named) == len(group.cells) and len({why for _, why in named}) == 1:
        return named[0][1]
    return _by_reason(named)


# Kinds: what each says of the measured cells of a group. Every judge returns (verdict, detail).
# `placed` is what _place_speeds says: a speed is judged together with those of the claim's other groups.


def _judge_value(claim, group, cells, results, placed):
    found = results.summary[cells[0]][claim["column"]]
    expected = claim["expected"] if group.expected is None else group.expected
    n = (
        f" (n = {results.speeds(cells[0], claim['column']).size})"
        if claim["column"] in SPEEDS
        else ""
    )
    return _against(claim, found, expected, f"{_number(found)}{n}, expected {_number(expected)}")


def _judge_ratio(claim, group, cells, results, placed):
    if claim["column"] in SPEEDS:
        return _judge_speed(claim, placed[group.cells])
    low, high, bounds = _bounds(claim, claim["expected"])
    of, to = (results.summary[cell][claim["column"]] for cell in cells)
    return _between(of / to, low, high), f"{_number(of)} / {_number(to)} = {of / to:.3f}; {bounds}"


def _judge_difference(claim, group, cells, results, placed):
    low, high, bounds = _bounds(claim, claim["expected"])
    of, to = (results.summary[cell][claim["column"]] for cell in cells)
    detail = f"{_number(of)} − {_number(to)} = {_number(of - to)}; {bounds}"
    return _between(of - to, low, high), detail


def _judge_spread(claim, group, cells, results, placed):
    found = {cell: results.summary[cell][claim["column"]] for cell in cells}
    least, most = min(found, key=found.get), max(found, key=found.get)
    allowance = claim["allowance_mib"] or 0
    excess = found[most] - found[least]
    limit = found[least] * claim["tolerance_pct"] / 100 + allowance
    share, bound = percent(excess / found[least], sign=False), f"{claim['tolerance_pct']} %"
    if allowance:
        apart = f"{share}, {_number(excess)} MiB apart, at most {_number(limit)} allowed ({bound} and {allowance} MiB)"
    else:
        apart = f"{share} apart; at most {bound}"
    detail = f"{_number(found[least])} ({_name(group, least)}) to {_number(found[most])} ({_name(group, most)}): {apart}"
    return _between(excess, 0, limit), detail


def _judge_same_tokens(claim, group, cells, results, placed):
    found = {}
    for cell in cells:
        found.setdefault(results.summary[cell]["tokens_sha256"], []).append(_name(group, cell))
    if len(found) == 1 and "differs" not in found:
        return HOLDS, f"{len(cells)} cells, one hash: {next(iter(found))[:12]}"
    return FAILS, "; ".join(f"{value[:12]}: {', '.join(names)}" for value, names in found.items())


def _judge_equivalence(claim, group, cells, results, placed):
    return _judge_speed(claim, placed[group.cells])


def _judge_speed(claim, placed: statistics.Placed):
    """Beyond the bounds is what it is in a comparison: by the interval over processes and the corrected rank test."""
    *_, bounds = _speed_bounds(claim)
    detail = f"ratio {placed.ratio.spelled()}; {bounds}"
    if placed.place == statistics.INSIDE:
        return HOLDS, detail
    if placed.place == statistics.BEYOND:
        return FAILS, f"{detail}; p = {placed.p:.3g}"
    return NOT_TESTABLE, f"{detail}; {_needs(placed.needs)}"


def _place_speeds(claim: Claim, results: Results) -> dict[tuple[CellName, ...], statistics.Placed]:
    """Cells of a group → where their ratio of speeds lies, for the measured groups of a claim about such a ratio."""
    column = claim["column"]
    if claim.kind not in ("ratio", "equivalence") or column not in SPEEDS:
        return {}
    samples = {
        group.cells: tuple(results.speeds(cell, column) for cell in group.cells)
        for group in claim.groups
        if not any(results.missing(cell, column) for cell in group.cells)
        and not _foreign(claim, group.cells, results)
    }
    low, high, _ = _speed_bounds(claim)
    return statistics.place_ratios(samples, low, high)


def _speed_bounds(claim: Claim) -> tuple[float, float, str]:
    if claim.kind == "ratio":
        return _bounds(claim, claim["expected"])
    low, high = statistics.within(claim["margin_pct"] / 100)
    return low, high, f"margin {low:.3f} to {high:.3f}"


def _judge_pool_growth(claim, group, cells, results, placed):
    of, to = (results.summary[cell] for cell in cells)
    found = of[claim["column"]] - to[claim["column"]]
    if of["kv_bytes_per_token"] is None:
        return NOT_TESTABLE, "the model's shapes are not known"
    predicted = pool_growth_mib(
        int(of["kv_bytes_per_token"]), int(of["prompt_tokens"]), int(of["generated_tokens"])
    )
    detail = (
        f"{_number(of[claim['column']])} − {_number(to[claim['column']])} = {_number(found)}, "
        f"predicted {_number(predicted)}"
    )
    return _against(claim, found, predicted, detail)


def _judge_growth_law(claim, group, cells, results, placed):
    series = _by_length(claim, cells, results)
    terms = claim["terms"] or list(statistics.TERMS)
    fit = statistics.fit_growth(*zip(*series, strict=True), terms) if series else None
    if fit is None or fit.intervals is None:
        lengths = len({tokens for tokens, _ in series})
        return NOT_TESTABLE, (
            f"not testable with {lengths} lengths for {len(terms)} terms; needs at least {len(terms) + 1} lengths"
        )
    low, high = fit.intervals[fit.terms.index(claim["leading"])]
    longest = max(tokens for tokens, _ in series)
    share = fit.share(claim["leading"], longest)
    detail = f"{spell_fit(fit)}; {claim['leading']} makes up {percent(share, 0, sign=False)} at {longest:,} tokens"
    if low > 0 and share > 0.5:
        return HOLDS, detail
    if high < 0 or share <= 0.5:
        return FAILS, detail
    return NOT_TESTABLE, f"{detail}; needs at least {fit.lengths + 1} lengths"


def _by_length(claim, cells, results) -> list[tuple[int, float]]:
    """(prompt tokens, MiB) of each length; with `to` the MiB above it, where both were measured."""
    mib = {cell: results.summary[cell][claim["column"]] for cell in cells}
    tokens = {cell: int(results.summary[cell]["prompt_tokens"]) for cell in cells}
    if not claim["to"]:
        return [(tokens[cell], mib[cell]) for cell in cells]
    return [
        (tokens[of], mib[of] - mib[to])
        for of, to in ((cell, _replaced(cell, claim["to"])) for cell in cells)
        if to in mib and to != of
    ]


def pool_growth_mib(kv_bytes_per_token: int, prompt_tokens: int, generated_tokens: int) -> float:
    """The MiB that growing KV tensors leave in a pool which never finds a freed one large enough.

    Each of the generated − 1 decode steps i writes new tensors one token longer and frees those of T + i tokens, T
    being the prompt's: the sum over i of kv_bytes_per_token · (T + i), where kv_bytes_per_token is
    2 · layers · kv_heads · head_dim · itemsize. This holds where sizes are not rounded: MLX's CPU allocator. On Metal
    and CUDA sizes above a page are rounded up to 16 KiB, so that tensors of neighbouring lengths share a size.
    """
    steps = range(generated_tokens - 1)
    return kv_bytes_per_token * sum(prompt_tokens + i for i in steps) / MIB


# How figures are spelled.


def spell_fit(fit: statistics.Fit) -> str:
    """E.g. `T2: 0.000677 (0.000666 to 0.000688) MiB`, term by term."""
    return "; ".join(
        f"{term}: {value:.3g} ({low:.3g} to {high:.3g})"
        for term, value, (low, high) in zip(fit.terms, fit.coefficients, fit.intervals, strict=True)
    )


def _needs(processes: int | None) -> str:
    if processes is None:
        return f"more than {statistics.MAX_PROCESSES:,} processes a side would be needed"
    return f"needs at least {processes} processes a side"


def _number(value: float) -> str:
    return signed(value, ",.1f" if abs(value) >= 100 else ",.4g")


def _name(group: Group, cell: CellName) -> str:
    """The cell's names on the axes on which the group's cells differ."""
    differ = [
        axis for axis, names in enumerate(zip(*group.cells, strict=True)) if len(set(names)) > 1
    ]
    return " ".join(cell[axis] for axis in differ)


# Bounds.


def _against(claim, found: float, expected: float, detail: str) -> tuple[str, str]:
    """Whether a figure is the expected one ± tolerance_pct."""
    low, high, _ = _bounds(claim, expected)
    off = f" ({percent(found / expected - 1)})" if expected else ""
    return _between(found, low, high), f"{detail}{off}; ± {claim['tolerance_pct']} %"


def _bounds(claim, expected: float | None) -> tuple[float, float, str]:
    if expected is not None:
        margin = abs(expected) * claim["tolerance_pct"] / 100
        text = f"expected {_number(expected)} ± {claim['tolerance_pct']} %"
        return expected - margin, expected + margin, text
    limits = {"at least": claim["at_least"], "at most": claim["at_most"]}
    text = ", ".join(f"{words} {limit:g}" for words, limit in limits.items() if limit is not None)
    low, high = limits.values()
    return -math.inf if low is None else low, math.inf if high is None else high, text


def _between(value: float, low: float, high: float) -> str:
    return HOLDS if low <= value <= high else FAILS


# Groups: the planned cells that a claim compares. `to` replaces names of the cells that `of` selects.


def _singles(entry: dict, plan) -> list[tuple[CellName, ...]]:
    return [(cell,) for cell in plan if _selected(entry["of"], cell)]


def _pairs(entry: dict, plan) -> list[tuple[CellName, ...]]:
    pairs = ((cell, _replaced(cell, entry["to"])) for (cell,) in _singles(entry, plan))
    return [pair for pair in pairs if pair[1] in plan and pair[1] != pair[0]]


def _sets(entry: dict, plan) -> list[tuple[CellName, ...]]:
    across = _listed(entry["across"])
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
    return all(cell[AXES.index(axis)] in _listed(names) for axis, names in selector.items())


def _replaced(cell: CellName, to: dict) -> CellName:
    return tuple(to.get(axis, name) for axis, name in zip(AXES, cell, strict=True))


def _listed(names) -> list:
    return names if isinstance(names, list) else [names]


@dataclass(frozen=True)
class Kind:
    """How a kind of claim finds the cells of a group, and judges them."""

    groups: Callable
    judge: Callable
    at_least: int | None = None  # how many cells must be measured; None: all of the group


KINDS = {
    "value": Kind(_singles, _judge_value),
    "ratio": Kind(_pairs, _judge_ratio),
    "difference": Kind(_pairs, _judge_difference),
    "spread": Kind(_sets, _judge_spread, at_least=2),
    "same-tokens": Kind(_sets, _judge_same_tokens, at_least=2),
    "equivalence": Kind(_pairs, _judge_equivalence),
    "pool-growth": Kind(_pairs, _judge_pool_growth),
    "growth-law": Kind(_series, _judge_growth_law, at_least=2),
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
        for name in _listed(names)
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
    fixed |= set(_listed(entry.get("across", [])))
    if entry["kind"] == "growth-law":
        fixed.add("prompt")
    return [
        Group(
            cells,
            {axis: name for axis, name in zip(AXES, cells[0], strict=True) if axis not in fixed},
            expected,
        )
        for cells in KINDS[entry["kind"]].groups(entry, plan)
    ]


def _table_groups(
    file, key: str, entry: dict, plan, planned
) -> tuple[list[Group], dict[tuple[str, str], str]]:
    """One group per row of the claim's table: a CSV with names on some of the axes and a column of expected values.

    And the names in it that are not planned.
    """
    column, path = entry["column"], Path(file).parent / entry["table"]
    try:
        table = read_table(path)
    except (OSError, ValueError) as error:
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
