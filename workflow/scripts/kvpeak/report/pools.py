"""Several buffer pools in one matrix: what each takes and costs, measured beside predicted."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, geometric_mean

from kvpeak.analysis.comparisons import PRACTICAL, Change
from kvpeak.analysis.pooled import fixed_interval
from kvpeak.analysis.results import Results
from kvpeak.analysis.statistics import half_width, ratio_of_means
from kvpeak.analysis.verdicts import Verdict
from kvpeak.base import layout
from kvpeak.base.axes import AXES
from kvpeak.base.errors import UserError
from kvpeak.base.files import inside
from kvpeak.base.kv_caches import regrows
from kvpeak.base.numbers import MIB
from kvpeak.base.untrusted import read_object
from kvpeak.pools import trace
from kvpeak.pools.replay import Outcome, Setting, replay

OWN = "MLX's own"
_PLACE = ("commit", "model", "prompt", "kv_cache")  # what a cell asks for; the rest is the pool's
_SPEEDS = ("prefill_tok_s", "decode_tok_s")


@dataclass(frozen=True)
class Measured:
    """One cell with a pool; MiB and tok/s, None where not known. `setting` is '' for MLX's own."""

    place: tuple[str, ...]
    name: str
    setting: str
    cap: str
    peak_mib: float | None
    active_mib: float | None
    speeds: dict[str, Sequence[float]]  # by column, one mean for each process
    predicted: Outcome | None = None
    flagged: bool = False  # its cell carries a flag


@dataclass(frozen=True)
class Times:
    """How many times MLX's own speed, over some places; the 95 % interval over processes."""

    value: float
    low: float | None  # None where the processes are too few
    high: float | None


@dataclass(frozen=True)
class Pool:
    """One pool at several places against MLX's own there."""

    name: str
    places: int
    ratios: tuple[float, ...]  # of the peaks, at each place
    prefill: Times | None
    decode: Times | None
    made: int | None  # real allocations in all places, predicted
    own_made: int | None  # those of MLX's own pool
    worst: float | None  # the largest |predicted / measured − 1|

    @property
    def peak(self) -> float:
        """The geometric mean of the ratios."""
        return geometric_mean(self.ratios)

    @property
    def helps(self) -> int:
        """At how many places it takes less by more than PRACTICAL."""
        return sum(ratio < 1 - PRACTICAL for ratio in self.ratios)


def pools_of(results: Results, variants: dict[str, dict], cells: Path) -> list[Measured]:
    """The cells of a matrix with more than one pool, else none.

    Reads which setting a cell had from its record, and predicts from a recording of the same place.
    """
    rows = [
        row
        for row in results.summary.values()
        if row["outcome"] == "ok" and row["variant"] in variants
    ]
    if len({variants[row["variant"]].get("pool") for row in rows}) < 2:
        return []
    recordings = _recordings(rows, variants, cells)
    found = []
    for row in rows:
        place = tuple(row[axis] for axis in _PLACE)
        given = _record(row, cells).get("engine", {}).get("pool", {}).get("setting", "")
        setting = given if variants[row["variant"]].get("pool") else ""
        recorded = recordings.get(place)
        recording = bool(variants[row["variant"]].get("record"))
        names = tuple(row[axis] for axis in AXES)
        found.append(
            Measured(
                place,
                setting or f"{OWN}, cap {row['cap']}" + ", recorded" * recording,
                setting,
                row["cap"],
                row["peak_pool_mib"],
                row["peak_active_mib"],
                {column: results.speeds(names, column) for column in _SPEEDS},
                _predicted(recorded, setting or _own_rule(recorded, row["cap"]))
                if recorded
                else None,
                bool(row["flags"]),
            )
        )
    return found


def _own_rule(recorded: trace.Trace, cap: str) -> str:
    """MLX's own rule as a policy: that of the recording's back end, under the cell's cap."""
    return recorded.setting + ("" if cap == "default" else f",cap:{cap}")


def _recordings(rows, variants, cells: Path) -> dict[tuple, trace.Trace]:
    """place → what MLX asked for there, of the cells with `record: true`."""
    found = {}
    for row in rows:
        if not variants[row["variant"]].get("record"):
            continue
        log = _record(row, cells).get("log") or ""
        try:
            folder = inside(layout.LOGS, Path(log).relative_to(layout.LOGS))
            recorded = trace.read(folder / f"trace{trace.SUFFIX}")
            found.setdefault(tuple(row[axis] for axis in _PLACE), recorded)
        except (OSError, UserError, TypeError, ValueError):
            continue  # a finding of other places' recordings is better than none
    return found


def _record(row: dict, cells: Path) -> dict:
    try:
        return read_object(layout.shown_folder(cells, row) / layout.RECORD_FILE)
    except (OSError, UserError):
        return {}


def _predicted(recorded: trace.Trace, setting: str) -> Outcome | None:
    try:
        return replay(recorded, Setting.parse(setting))
    except UserError:
        return None  # a setting of another version's policies


def pooled(found: list[Measured], alike: bool = True) -> list[Pool]:
    """Each pool against MLX's own, the lowest peak first.

    MLX's own under its own limit, where that was measured. `alike`: all pools are compared at the
    same places, those where each of them was measured, if there is one; else each at all of its
    own.
    """
    own = _baselines(found)
    at: dict[str, dict[tuple[str, ...], Measured]] = {}
    for each in found:
        if each.peak_mib and each.place in own and each is not own[each.place]:
            at.setdefault(each.name, {})[each.place] = each
    common = set.intersection(*map(set, at.values())) if at and alike else set()
    pools = [
        _pool(name, [(measured[place], own[place]) for place in sorted(common or measured)])
        for name, measured in at.items()
    ]
    return sorted(pools, key=lambda pool: pool.peak)


def growing(found: list[Measured]) -> list[Measured]:
    """Those of them with a cache that grows at every step."""
    return [each for each in found if regrows(each.place[_PLACE.index("kv_cache")])]


def _pool(name: str, pairs: list[tuple[Measured, Measured]]) -> Pool:
    predicted = [(each, base) for each, base in pairs if each.predicted and base.predicted]
    off = [each.predicted.reserved_peak / MIB / each.peak_mib - 1 for each, _ in predicted]
    return Pool(
        name,
        len(pairs),
        tuple(each.peak_mib / base.peak_mib for each, base in pairs),
        *(_times(pairs, column) for column in _SPEEDS),
        sum(each.predicted.made for each, _ in predicted) if predicted else None,
        sum(base.predicted.made for _, base in predicted) if predicted else None,
        max(map(abs, off)) if off else None,
    )


def _times(pairs: list[tuple[Measured, Measured]], column: str) -> Times | None:
    """Of the places that have the speed on both sides."""
    sides = [(each.speeds[column], base.speeds[column]) for each, base in pairs]
    changes = [_change(of, to) for of, to in sides if len(of) and len(to)]
    if not changes:
        return None
    low, high, _ = fixed_interval(changes)
    return Times(geometric_mean(change.ratio.value for change in changes), low, high)


def _change(of: Sequence[float], to: Sequence[float]) -> Change:
    return Change(
        before=fmean(to),
        after=fmean(of),
        half_widths=(half_width(to), half_width(of)),
        ratio=ratio_of_means(of, to),
        p=None,
        verdict=Verdict.NOT_TESTABLE,
        needs=None,
    )


def _baselines(found: list[Measured]) -> dict[tuple[str, ...], Measured]:
    """place → MLX's own pool there: under its own limit, else under the first that was measured."""
    own = {}
    for each in found:
        known = each.place in own and each.cap != "default"
        if each.peak_mib and not each.setting and not known:
            own[each.place] = each
    return own


def front(pools: list[Pool]) -> list[Pool]:
    """Those that no other beats in both the peak and the number of real allocations."""
    best: list[Pool] = []
    for pool in pools:
        made = math.inf if pool.made is None else pool.made
        if not best or made < (math.inf if best[-1].made is None else best[-1].made):
            best.append(pool)
    return best


def advised(pools: list[Pool]) -> Pool:
    """The lowest peak of those that ask the system for memory no oftener than MLX's own does.

    Where nothing is known of that, or none is so, the lowest peak of all.
    """
    seldom = [pool for pool in pools if pool.made is not None and pool.made <= pool.own_made]
    return (seldom or pools)[0]
