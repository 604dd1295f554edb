"""Several buffer pools in one matrix: what each takes and costs, measured beside predicted."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import geometric_mean

from kvpeak.base import layout
from kvpeak.base.axes import AXES
from kvpeak.base.errors import UserError
from kvpeak.base.numbers import MIB, percent
from kvpeak.base.untrusted import read_object
from kvpeak.pools import trace
from kvpeak.pools.replay import Outcome, Setting, replay
from kvpeak.report import markdown
from kvpeak.report.markdown import Markdown, code, number
from kvpeak.report.style import COLOURS, MARKERS, Canvas, Figure, styled, svg

SLUG = "buffer-pools"
OWN = "MLX's own"
_PLACE = ("commit", "model", "prompt", "kv_cache")  # what a cell asks for; the rest is the pool's


@dataclass(frozen=True)
class Measured:
    """One cell with a pool; MiB and tok/s, None where not known. `setting` is '' for MLX's own."""

    place: tuple[str, ...]
    name: str
    setting: str
    cap: str
    peak_mib: float | None
    active_mib: float | None
    prefill: float | None
    decode: float | None
    predicted: Outcome | None = None


@dataclass(frozen=True)
class Pool:
    """One pool over all places where it and MLX's own were measured: ratios to MLX's own."""

    name: str
    places: int
    peak: float
    prefill: float | None
    decode: float | None
    made: int | None  # real allocations in all predicted places
    worst: float | None  # the largest |predicted / measured − 1|


def pools_of(summary: list[dict], variants: dict[str, dict], cells: Path) -> list[Measured]:
    """The cells of a matrix with more than one pool, else none.

    Reads which setting a cell had from its record, and predicts from a recording of the same place.
    """
    rows = [row for row in summary if row["outcome"] == "ok" and row["variant"] in variants]
    kinds = {variants[row["variant"]].get("pool") for row in rows}
    if len(kinds) < 2:
        return []
    recordings = _recordings(rows, variants, cells)
    found = []
    for row in rows:
        options, place = variants[row["variant"]], tuple(row[axis] for axis in _PLACE)
        setting = _record(row, cells).get("engine", {}).get("pool", {}).get("setting", "")
        setting = setting if options.get("pool") else ""
        recorded = recordings.get(place)
        found.append(
            Measured(
                place,
                setting or f"{OWN}, cap {row['cap']}",
                setting,
                row["cap"],
                row["peak_pool_mib"],
                row["peak_active_mib"],
                row["prefill_tok_s"],
                row["decode_tok_s"],
                _predicted(recorded, setting) if recorded and setting else None,
            )
        )
    return found


def _recordings(rows, variants, cells: Path) -> dict[tuple, trace.Trace]:
    """place → what MLX asked for there, of the cells with `record: true`."""
    found = {}
    for row in rows:
        if not variants[row["variant"]].get("record"):
            continue
        log = _record(row, cells).get("log") or ""
        file = layout.LOGS / Path(log).relative_to(layout.LOGS) if _inside(log) else None
        try:
            if file:
                recorded = trace.read(file / f"trace{trace.SUFFIX}")
                found.setdefault(tuple(row[axis] for axis in _PLACE), recorded)
        except (OSError, UserError):
            continue  # a finding of other places' recordings is better than none
    return found


def _inside(log: str) -> bool:
    path = Path(log)
    return path.is_relative_to(layout.LOGS) and ".." not in path.parts


def _record(row: dict, cells: Path) -> dict:
    folder = cells.joinpath(*(row[axis] for axis in AXES), "r1")
    try:
        return read_object(folder / layout.RECORD_FILE)
    except (OSError, UserError):
        return {}


def _predicted(recorded: trace.Trace, setting: str) -> Outcome | None:
    try:
        return replay(recorded, Setting.parse(setting))
    except UserError:
        return None  # a setting of another version's policies


def pooled(found: list[Measured]) -> list[Pool]:
    """Each pool against MLX's own, the lowest peak first.

    MLX's own under its own limit, where that was measured. All pools are compared at the same
    places, those where each of them was measured, if there is one.
    """
    own = _baselines(found)
    at = {}
    for each in found:
        if each.peak_mib and each.place in own and each is not own[each.place]:
            at.setdefault(each.name, {})[each.place] = each
    common = set.intersection(*map(set, at.values())) if at else set()
    pools = []
    for name, measured in at.items():
        pairs = [(measured[place], own[place]) for place in sorted(common or measured)]
        predicted = [each for each, _ in pairs if each.predicted]
        off = [each.predicted.reserved_peak / MIB / each.peak_mib - 1 for each in predicted]
        pools.append(
            Pool(
                name,
                len(pairs),
                geometric_mean(each.peak_mib / base.peak_mib for each, base in pairs),
                _ratio((each.prefill, base.prefill) for each, base in pairs),
                _ratio((each.decode, base.decode) for each, base in pairs),
                sum(each.predicted.made for each in predicted) if predicted else None,
                max(map(abs, off)) if off else None,
            )
        )
    return sorted(pools, key=lambda pool: pool.peak)


def _baselines(found: list[Measured]) -> dict[tuple[str, ...], Measured]:
    """place → MLX's own pool there: under its own limit, else under the first that was measured."""
    own = {}
    for each in found:
        known = each.place in own and each.cap != "default"
        if each.peak_mib and not each.setting and not known:
            own[each.place] = each
    return own


def _ratio(pairs: Iterator[tuple[float | None, float | None]]) -> float | None:
    ratios = [after / before for after, before in pairs if after and before]
    return geometric_mean(ratios) if ratios else None


def front(pools: list[Pool]) -> list[Pool]:
    """Those that no other beats in both the peak and the number of real allocations."""
    best: list[Pool] = []
    for pool in pools:
        made = math.inf if pool.made is None else pool.made
        if not best or made < (math.inf if best[-1].made is None else best[-1].made):
            best.append(pool)
    return best


def sentence(pools: list[Pool]) -> str:
    """Which pool takes least, and what it costs."""
    best = pools[0]
    change = percent(best.peak - 1, 0)
    speed = f", at {best.decode:.2f} times its decode speed" if best.decode else ""
    return (
        f"Of the buffer pools, {best.name} takes least: a peak of {change} against MLX's own over "
        f"{best.places} settings{speed}."
    )


def pools_section(found: list[Measured]) -> dict | None:
    """What the template shows; None without several pools."""
    pools = pooled(found)
    if not pools:
        return None
    worst = [pool.worst for pool in pools if pool.worst is not None]
    return {
        "slug": SLUG,
        "sentence": sentence(pools),
        "table": _table(pools),
        "cells": _cells(found),
        "front": [pool.name for pool in front(pools)],
        "worst": percent(max(worst), 1, sign=False) if worst else None,
    }


def _table(pools: list[Pool]) -> Markdown:
    header = ["pool", "peak", "prefill", "decode", "allocations", "off at most", "settings"]
    rows = [
        [
            code(pool.name),
            *(_times(value) for value in (pool.peak, pool.prefill, pool.decode)),
            number(pool.made),
            "–" if pool.worst is None else percent(pool.worst, 1, sign=False),
            number(pool.places),
        ]
        for pool in pools
    ]
    return markdown.table(header, rows, " rrrrrr")


def _cells(found: list[Measured]) -> Markdown:
    header = ["model", "prompt", "KV cache", "pool", "peak, MiB", "predicted", "active", "decode"]
    rows = [
        [
            *(code(name) for name in each.place[1:]),
            code(each.name),
            number(each.peak_mib, 1),
            number(each.predicted.reserved_peak / MIB, 1) if each.predicted else "–",
            number(each.active_mib, 1),
            number(each.decode, 1),
        ]
        for each in found
    ]
    return markdown.table(header, rows, "    rrrr")


def _times(value: float | None) -> Markdown:
    return markdown.times(value)


@styled
def pools_figure(found: list[Measured]) -> Figure | None:
    """Each pool's peak against its decode speed, both relative to MLX's own."""
    pools = [pool for pool in pooled(found) if pool.decode]
    if not pools:
        return None
    figure = Canvas(figsize=(6.4, 3.6), layout="constrained")
    ax = figure.subplots()
    for style, pool in enumerate(pools):
        look = {"color": COLOURS[style % len(COLOURS)], "marker": MARKERS[style % len(MARKERS)]}
        ax.plot([pool.peak], [pool.decode], linestyle="none", label=pool.name, **look)
    ax.axvline(1, color="0.6", linewidth=0.8)
    ax.axhline(1, color="0.6", linewidth=0.8)
    ax.set_xlabel("peak of the pool, in times of MLX's own")
    ax.set_ylabel("decode speed, likewise")
    figure.legend(*ax.get_legend_handles_labels(), loc="outside right center")
    spoken = "; ".join(
        f"{pool.name}: peak {pool.peak:.2f}, decode {pool.decode:.2f}" for pool in pools
    )
    return Figure(
        name=SLUG,
        about=SLUG,
        title="What a pool takes and costs",
        alt=f"Peak and decode speed of each buffer pool against MLX's own. {spoken}"[:900],
        caption="Each pool's geometric mean over the settings. Left is less memory, up is faster.",
        svg=svg(figure),
    )
