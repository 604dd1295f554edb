"""The claims, judged from the result tables; claims.py says which cells each is about."""

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatchcase

from kvpeak.analysis import growth, statistics, workloads
from kvpeak.analysis.claims import Claim, Group, listed, replaced
from kvpeak.analysis.results import CellName, Results, repeats, spell_generated, spell_outputs
from kvpeak.analysis.verdicts import OF_CLAIMS, Verdict
from kvpeak.base.columns import SPEEDS
from kvpeak.base.fields import join_texts, split_texts
from kvpeak.base.numbers import percent, signed

MOST_ALLOWANCE = 0.25  # of the smallest figure: with a larger one a spread can hardly fail
MOST_SPREAD = 5  # cells whose figures a spread shows; of more it shows the ends
MOST_NAMES = 20  # in a field: of groups that share a row, or of what is not in the matrix


@dataclass(frozen=True)
class Check:
    """A row of checks.csv."""

    claim: str
    cells: str
    verdict: Verdict
    detail: str
    source: str
    kind: str
    groups: int = 1  # how many combinations of the open axes the row stands for
    held: int = 0  # how many measured cells it was held against


def evaluate(claim: Claim, results: Results) -> list[Check]:
    """Judge every group of the claim: a verdict each, with `fold` one for all; of those not
    measured one a reason.
    """
    label, placed = _labels(claim), _place_speeds(claim, results)
    judged = [
        (label(group), *_judge(claim, group, results, placed), 1, group.held(claim, results))
        for group in claim.groups
    ]
    measured = [row for row in judged if row[1] != Verdict.NOT_MEASURED]
    if claim["fold"] and len(measured) > 1:
        measured = [_folded(measured)]
    unmeasured: dict[str, list[str]] = {}
    for name, verdict, why, *_ in judged:
        if verdict == Verdict.NOT_MEASURED:
            unmeasured.setdefault(why, []).append(name)
    rows = measured + [
        (join_texts(_first(names)), Verdict.NOT_MEASURED, why, len(names), 0)
        for why, names in unmeasured.items()
    ]
    if claim.absent or not rows:
        names = ", ".join(_first([f"{axis} {name}" for axis, name in claim.absent]))
        rows.append(
            ("", Verdict.NOT_MEASURED, f"not in this matrix: {names or 'none of its cells'}", 0, 0)
        )
    return [Check(claim.text, *row[:3], claim.source, claim.kind, *row[3:]) for row in rows]


def _labels(claim: Claim) -> Callable[[Group], str]:
    """What spells a group: its model and prompt where they are open, and what else tells it from
    the others.
    """
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


def _first(names: list[str], most: int = MOST_NAMES) -> list[str]:
    """The names, or the first of them and how many more there are."""
    more = [f"and {len(names) - most} more"] if len(names) > most else []
    return [*names[:most], *more]


def _folded(judged: list[tuple[str, str, str, int, int]]) -> tuple[str, Verdict, str, int, int]:
    """One row for all: the first of OF_CLAIMS that one has, the counts, and the first group that
    has it.
    """
    counts = Counter(row[1] for row in judged)
    verdict = next(name for name in OF_CLAIMS if counts[name])
    label, _, detail, *_ = next(row for row in judged if row[1] == verdict)
    summary = ", ".join(f"{counts[name]} {name}" for name in OF_CLAIMS if counts[name])
    text = f"of {len(judged)}: {summary}; first: {label}: {detail}"
    return "", verdict, text, len(judged), sum(row[-1] for row in judged)


def _by_reason(named_reasons) -> str:
    """Spell (name, reason) pairs, each reason once: `needs a GPU (a; b)`."""
    names = {}
    for name, reason in named_reasons:
        names.setdefault(reason, []).append(name)
    return "; ".join(
        f"{reason} ({'; '.join(filter(None, found))})" for reason, found in names.items()
    )


def _judge(claim: Claim, group: Group, results: Results, placed: dict) -> tuple[Verdict, str]:
    missing = {cell: results.missing(cell, claim.column) for cell in group.cells}
    cells = [cell for cell in group.cells if not missing[cell]]
    if foreign := _foreign(claim, cells, results):
        return Verdict.NOT_MEASURED, foreign
    if len(cells) < AT_LEAST.get(claim.kind, len(group.cells)):
        return Verdict.NOT_MEASURED, _reasons(group, missing)
    verdict, detail = JUDGES[claim.kind](claim, group, cells, results, placed)
    if claim.kind != "same-tokens" and (unstable := _unstable(group, cells, results)):
        detail = f"{detail}; {unstable}"
    without = f"; not counted: {_reasons(group, missing)}" if len(cells) < len(group.cells) else ""
    return verdict, detail + without


def _foreign(claim: Claim, cells: list[CellName], results: Results) -> str:
    """Why the measured cells do not belong to the setting that the claim requires, '' if they
    do.
    """
    for column, wanted in (claim["requires"] or {}).items():
        for cell in cells:
            found = str(results.summary[cell].get(column))
            if not all(_matches(text, listed(wanted)) for text in split_texts(found)):
                return f"belongs to {column} {' or '.join(listed(wanted))}; this is {found}"
    return ""


def _unstable(group: Group, cells: list[CellName], results: Results) -> str:
    """Which of the cells gave other tokens from run to run, '' if none did."""
    rows = {cell: results.summary[cell] for cell in cells}
    return "; ".join(
        f"{_name(group, cell) or 'the cell'} does not repeat: {spell_outputs(row)}"
        for cell, row in rows.items()
        if not repeats(row)
    )


def _matches(text: str, patterns: list[str]) -> bool:
    return any(fnmatchcase(text, pattern) for pattern in patterns)


def _reasons(group: Group, missing: dict[CellName, str]) -> str:
    named = [(_name(group, cell), why) for cell, why in missing.items() if why]
    if len(named) == len(group.cells) and len({why for _, why in named}) == 1:
        return named[0][1]
    return _by_reason(named)


# Kinds: what each says of the measured cells of a group. Every judge returns (verdict, detail).
# `placed` is what _place_speeds says: a speed is judged together with those of the claim's other
# groups.


def _judge_value(claim, group, cells, results, placed):
    row = results.summary[cells[0]]
    found = row[claim["column"]]
    expected = claim["expected"] if group.expected is None else group.expected
    n = _range(row, claim["column"])
    if claim["column"] in SPEEDS:
        n = f" (n = {results.speeds(cells[0], claim['column']).size})"
    return _against(claim, found, expected, f"{_number(found)}{n}, expected {_number(expected)}")


def _range(row: dict, column: str) -> str:
    """The range of a peak over the cell's processes and their number; '' where they are equal."""
    name = column.removesuffix("_mib")
    low, high = (row.get(f"{name}_{end}_mib") for end in ("min", "max"))
    if None in (low, high) or low == high:
        return ""
    return f" ({_number(low)} to {_number(high)} in {int(row['rounds'])} processes)"


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
        apart = (
            f"{share}, {_number(excess)} MiB apart, "
            f"at most {_number(limit)} allowed ({bound} and {allowance} MiB)"
        )
    else:
        apart = f"{share} apart; at most {bound}"
    shown = sorted(found, key=found.get) if len(found) <= MOST_SPREAD else (least, most)
    ends = " to ".join(f"{_number(found[cell])} ({_name(group, cell)})" for cell in shown)
    verdict = _between(excess, 0, limit)
    if verdict == Verdict.HOLDS and allowance > MOST_ALLOWANCE * found[least]:
        part = percent(allowance / found[least], 0, sign=False)
        return Verdict.NOT_TESTABLE, (
            f"{ends}: {apart}; the allowance alone is {part} of the smallest, so that it can "
            "hardly fail"
        )
    return verdict, f"{ends}: {apart}"


def _judge_same_tokens(claim, group, cells, results, placed):
    if unstable := _unstable(group, cells, results):
        return Verdict.NOT_REPEATED, unstable
    found = {}
    for cell in cells:
        found.setdefault(results.summary[cell]["tokens_sha256"], []).append(_name(group, cell))
    if len(found) == 1:
        tokens = spell_generated(results.summary[cell] for cell in cells)
        return Verdict.HOLDS, f"{len(cells)} cells, one hash of {tokens}: {next(iter(found))[:12]}"
    return Verdict.FAILS, "; ".join(
        f"{value[:12]}: {', '.join(names)}" for value, names in found.items()
    )


def _judge_equivalence(claim, group, cells, results, placed):
    return _judge_speed(claim, placed[group.cells])


def _judge_speed(claim, placed: statistics.Placed):
    """Beyond the bounds is what it is in a comparison: by the interval over processes and the
    corrected rank test.
    """
    *_, bounds = _speed_bounds(claim)
    detail = f"ratio {placed.ratio.spelled()}; {bounds}"
    if placed.place == statistics.INSIDE:
        return Verdict.HOLDS, detail
    if placed.place == statistics.BEYOND:
        return Verdict.FAILS, f"{detail}; p = {placed.p:.3g}"
    return Verdict.NOT_TESTABLE, f"{detail}; {_needs(placed.needs)}"


def _place_speeds(claim: Claim, results: Results) -> dict[tuple[CellName, ...], statistics.Placed]:
    """Cells of a group → where their ratio of speeds lies, for the measured groups of a claim about
    such a ratio.
    """
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
    if words := workloads.spell_workload(of):
        return Verdict.NOT_TESTABLE, f"the prediction is of one prompt, and this is {words}"
    if of["kv_bytes_per_token"] is None:
        return Verdict.NOT_TESTABLE, "what its cache holds is not known"
    predicted = growth.pool_growth_mib(
        int(of["kv_bytes_per_token"]), int(of["prompt_tokens"]), int(of["generated_tokens"])
    )
    detail = (
        f"{_number(of[claim['column']])} − {_number(to[claim['column']])} = {_number(found)}, "
        f"predicted {_number(predicted)}"
    )
    return _against(claim, found, predicted, detail)


def _judge_growth_law(claim, group, cells, results, placed):
    series = _by_length(claim, cells, results)
    terms = claim["terms"] or list(growth.TERMS)
    fit = growth.fit_growth(*zip(*series, strict=True), terms) if series else None
    if fit is None or fit.intervals is None:
        lengths = len({tokens for tokens, _ in series})
        return Verdict.NOT_TESTABLE, (
            f"not testable with {lengths} lengths for {len(terms)} terms; "
            f"needs at least {len(terms) + 1} lengths"
        )
    low, high = fit.intervals[fit.terms.index(claim["leading"])]
    longest = max(tokens for tokens, _ in series)
    share = fit.share(claim["leading"], longest)
    part = (
        f"{claim['leading']} makes up {percent(share, 0, sign=False)} of what grows at "
        f"{longest:,} tokens"
    )
    detail = f"{growth.spell_fit(fit)}; {part}"
    if low > 0 and share > 0.5:
        return Verdict.HOLDS, detail
    if high < 0 or share <= 0.5:
        return Verdict.FAILS, detail
    return Verdict.NOT_TESTABLE, f"{detail}; needs at least {fit.lengths + 1} lengths"


def _judge_no_growth(claim, group, cells, results, placed):
    margin = claim["margin_kib"] or workloads.MARGIN_KIB
    held = f"held_{claim['held'] or 'rss'}_mib"
    series = workloads.mean_series(results.turns.get(cells[0], []), held)
    found = workloads.trend(series)
    if found is None:
        return Verdict.NOT_TESTABLE, (
            f"{len(series)} requests in a run; needs at least {workloads.FEWEST}"
        )
    detail = f"{workloads.spell_trend(found)}; margin {margin:g} KiB"
    verdicts = {True: Verdict.FAILS, False: Verdict.HOLDS, None: Verdict.NOT_TESTABLE}
    return verdicts[workloads.leaks(found, margin)], detail


def _by_length(claim, cells, results) -> list[tuple[int, float]]:
    """(tokens, MiB) of each plain prompt; with `to` the MiB above it, where both were measured."""
    plain = {cell: row for cell in cells if workloads.is_plain(row := results.summary[cell])}
    mib = {cell: row[claim["column"]] for cell, row in plain.items()}
    tokens = {cell: int(row["prompt_tokens"]) for cell, row in plain.items()}
    if not claim["to"]:
        return [(tokens[cell], mib[cell]) for cell in plain]
    pairs = ((cell, replaced(cell, claim["to"])) for cell in plain)
    return [(tokens[of], mib[of] - mib[to]) for of, to in pairs if to in mib and to != of]


# How figures are spelled.


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


def _against(claim, found: float, expected: float, detail: str) -> tuple[Verdict, str]:
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


def _between(value: float, low: float, high: float) -> Verdict:
    return Verdict.HOLDS if low <= value <= high else Verdict.FAILS


JUDGES = {
    "value": _judge_value,
    "ratio": _judge_ratio,
    "difference": _judge_difference,
    "spread": _judge_spread,
    "same-tokens": _judge_same_tokens,
    "equivalence": _judge_equivalence,
    "pool-growth": _judge_pool_growth,
    "growth-law": _judge_growth_law,
    "no-growth": _judge_no_growth,
}
# How many cells of a group must be measured; where a kind is not named, all of them.
AT_LEAST = {"spread": 2, "same-tokens": 2, "growth-law": 2}
