"""The tables of the finding: from the result tables to Markdown. A long table is folded; the CSV files have all of it."""

from collections import Counter
from dataclasses import replace

from kvpeak.analysis.claims import FAILS, HOLDS, NOT_MEASURED, NOT_TESTABLE, pool_growth_mib
from kvpeak.analysis.comparisons import SPEED_NAMES, Comparison, Pair, lead
from kvpeak.analysis.results import SPEEDS, Results
from kvpeak.base.axes import AXES
from kvpeak.base.kv_caches import regrows
from kvpeak.base.numbers import MIB, percent
from kvpeak.report import markdown
from kvpeak.report.markdown import Markdown, code, number

SHOWN = 40  # rows of a table; the rest is left to the CSV file
SHOWN_OF_CLAIM = 12  # figures of one claim
MEMORY_COLUMNS = {
    "peak_footprint_mib": "Footprint",
    "peak_device_mib": "Device",
    "peak_pool_mib": "Pool",
    "peak_active_mib": "Active",
    "peak_rss_mib": "RSS",
    "loaded_mib": "Loaded",
}
SIDES = {  # columns of the summary that should be equal on both sides of a pair → what it means if they are not
    "machine": "come from different machines",
    "harness": "come from different versions of the harness",
    "blas": "computed with a different BLAS, or with a different number of its threads",
    "prompt_tokens": "have prompts of different lengths",
    "generated_tokens": "generated different numbers of tokens",
}
SIGNS = {FAILS: "✗ **fails**", NOT_TESTABLE: "? not testable", HOLDS: "✓ holds"}


def comparison_section(comparison: Comparison) -> dict:
    """One comparison as the template shows it: heading, table, what was found, and what of it is doubtful."""
    both = [pair for pair in comparison.pairs if pair.before and pair.after]
    largest = sorted(both, key=lambda pair: -abs(pair.peak_change_mib or 0))[:SHOWN]
    chosen = {id(pair) for pair in largest}
    shown = [pair for pair in both if id(pair) in chosen]
    axes = [
        axis
        for axis in AXES
        if axis != comparison.axis and len({pair.names[axis] for pair in both}) > 1
    ]
    replayed = any(not pair.live for pair in both)
    header = [axis.replace("_", " ") for axis in axes] + ["method"] * replayed
    header += ["peak before", "after", "after / before", "pool before", "after"]
    speeds = [column for column in SPEEDS if any(column in pair.speeds for pair in shown)]
    header += [f"{name}, {unit}" for name, unit in map(SPEED_NAMES.get, speeds)]
    body = [_comparison_row(pair, axes, replayed, speeds) for pair in shown]
    right = " " * (len(axes) + replayed) + "r" * (5 + len(speeds))
    return {
        "axis": comparison.axis,
        "before": comparison.before,
        "after": comparison.after,
        "slug": comparison.slug,
        "found": lead(comparison).sentence,
        "replayed": replayed,
        "table": markdown.table(header, body, right) if body else "",
        "left_out": len(both) - len(shown),
        "one_sided": len(comparison.pairs) - len(both),
        "flagged": any(pair.flags for pair in shown),
        "unflagged": without_flagged(replace(comparison, pairs=both)),
        "mixed": mixed(both, comparison.axis),
    }


def without_flagged(comparison: Comparison) -> str:
    """What the unflagged pairs alone come to; '' where no pair is flagged."""
    kept = [pair for pair in comparison.pairs if not pair.flags]
    if len(kept) == len(comparison.pairs):
        return ""
    if not any(pair.complete for pair in kept):
        return "Every pair that was measured to the end has a flag: without flagged rows nothing is left."
    rest = replace(comparison, pairs=kept)
    flagged = len(comparison.pairs) - len(kept)
    rows = "flagged row" if flagged == 1 else f"{flagged} flagged rows"
    return f"Without the {rows}: {lead(rest).sentence}"


def mixed(pairs: list[Pair], axis: str) -> list[str]:
    """What else than the compared axis differs between the two sides of pairs, in words; only what both sides say."""
    found = []
    for column, what in SIDES.items():
        if column == f"{axis}_tokens":
            continue
        values = [(pair.before[column], pair.after[column]) for pair in pairs]
        count = sum(None not in sides and sides[0] != sides[1] for sides in values)
        if count:
            found.append(f"The two sides of {count} of {len(pairs)} pairs {what}.")
    return found


def _comparison_row(pair: Pair, axes: list[str], with_method: bool, speeds: list[str]) -> list:
    before, after = pair.before, pair.after
    names = [code(pair.names[axis]) for axis in axes]
    if pair.flags and names:
        names[0] = Markdown(f"{names[0]} ⚑")
    return [
        *names,
        *([" / ".join(dict.fromkeys((before["method"], after["method"])))] if with_method else []),
        peak_or_outcome(before),
        peak_or_outcome(after),
        markdown.times(pair.peak_ratio),
        number(before["peak_pool_mib"]),
        number(after["peak_pool_mib"]),
        *(_speed(pair, column) for column in speeds),
    ]


def peak_or_outcome(row: dict) -> Markdown:
    """The cell's peak in MiB, and how it ended if not well."""
    if row["outcome"] != "ok":
        at = "" if row["peak_mib"] is None else f" at {number(row['peak_mib'])}"
        return Markdown(f"{markdown.escape(row['outcome'])}{at}")
    return number(row["peak_mib"])


def _speed(pair: Pair, column: str) -> Markdown:
    """E.g. 85.9 → 88.3, with the verdict where there are enough processes for one."""
    change = pair.speeds.get(column)
    if not change:
        return Markdown("–")
    text = f"{number(change.before, 1)} → {number(change.after, 1)}"
    return Markdown(text if change.verdict == NOT_TESTABLE else f"{text}, {change.verdict}")


def memory_table(summary: list[dict]) -> Markdown:
    """The measured cells by every counter that has a value anywhere, MiB."""
    columns = {
        name: title
        for name, title in MEMORY_COLUMNS.items()
        if any(row[name] is not None for row in summary)
    }
    return cell_table(
        summary, list(columns.values()), lambda row: [number(row[name]) for name in columns]
    )


def cell_table(rows: list[dict], header: list[str], figures) -> Markdown:
    """The first cells, a row each: the names on the axes on which they differ, then `figures(row)`."""
    if not rows:
        return Markdown("")
    axes = [axis for axis in AXES if len({row[axis] for row in rows}) > 1] or ["kv_cache"]
    body = [[*(code(row[axis]) for axis in axes), *figures(row)] for row in rows[:SHOWN]]
    names = [axis.replace("_", " ") for axis in axes]
    return markdown.table([*names, *header], body, " " * len(axes) + "r" * len(header))


# Claims.


def claims_section(checks: list[dict]) -> dict:
    """Judged claims with all their figures, those that fail first; the others by the reason why they were not measured."""
    judged, unmeasured = {}, {}
    for row in checks:
        if row["verdict"] == NOT_MEASURED:
            unmeasured.setdefault(row["detail"], []).append(row)
        else:
            judged.setdefault(row["claim"], []).append(row)
    order = [FAILS, NOT_TESTABLE, HOLDS]
    claims = sorted(judged.values(), key=lambda rows: min(order.index(r["verdict"]) for r in rows))
    return {
        "counts": claim_counts(judged, checks),
        "judged": [
            _judged_claim(number, rows, order) for number, rows in enumerate(claims, start=1)
        ],
        "not_measured": [
            {
                "reason": reason,
                "claims": [{"text": row["claim"], "groups": row["groups"]} for row in rows],
            }
            for reason, rows in unmeasured.items()
        ],
    }


def claim_counts(judged: dict[str, list[dict]], checks: list[dict]) -> dict[str, int]:
    """How many claims have each verdict; a claim has the worst of its verdicts here."""
    counts = Counter(
        next(v for v in (FAILS, NOT_TESTABLE, HOLDS) if any(r["verdict"] == v for r in rows))
        for rows in judged.values()
    )
    every = {row["claim"] for row in checks}
    return {v: counts[v] for v in (FAILS, NOT_TESTABLE, HOLDS)} | {
        NOT_MEASURED: len(every) - len(judged)
    }


def _judged_claim(number: int, rows: list[dict], order: list[str]) -> dict:
    rows = sorted(rows, key=lambda row: order.index(row["verdict"]))
    return {
        "number": number,
        "text": rows[0]["claim"],
        "source": rows[0]["source"],
        "left_out": len(rows[SHOWN_OF_CLAIM:]),
        "rows": [
            row | {"sign": Markdown(SIGNS[row["verdict"]]), "cells": row["cells"] or "all"}
            for row in rows[:SHOWN_OF_CLAIM]
        ],
    }


# Why the pool grows.


def growth_rows(results: Results) -> list[dict]:
    """Live cells without a cap whose cache grows, beside prealloc: what their pool and process hold more than that one's.

    A build without a pool, whose pool counter equals its live bytes, is left out. The largest first.
    """
    cap, kv_cache = AXES.index("cap"), AXES.index("kv_cache")
    found = []
    for cell, row in results.summary.items():
        if not regrows(cell[kv_cache]) or cell[cap] != "none" or row["method"] != "live":
            continue
        other = results.summary.get((*cell[:kv_cache], "prealloc", *cell[kv_cache + 1 :]))
        sides = [side for side in (row, other) if side and side["outcome"] == "ok"]
        needed = ("peak_pool_mib", "peak_active_mib", "kv_bytes_per_token", "peak_mib")
        if len(sides) < 2 or any(side[name] is None for side in sides for name in needed):
            continue
        if row["peak_pool_mib"] <= row["peak_active_mib"]:
            continue
        predicted = pool_growth_mib(
            int(row["kv_bytes_per_token"]), int(row["prompt_tokens"]), int(row["generated_tokens"])
        )
        pool = row["peak_pool_mib"] - other["peak_pool_mib"]
        found.append(
            {
                **{axis: row[axis] for axis in AXES},
                "accelerator": row["accelerator"],
                "predicted": predicted,
                "pool": pool,
                "process": row["peak_mib"] - other["peak_mib"],
            }
        )
    return sorted(found, key=lambda row: -row["predicted"])


def growth_section(results: Results) -> dict | None:
    """The prediction held against the cells; None where no cell has a pool that grows."""
    rows = growth_rows(results)
    if not rows:
        return None
    table = cell_table(
        rows,
        ["predicted, MiB", "pool, measured", "pool off by", "process, measured", "process off by"],
        lambda row: [
            number(row["predicted"], 1),
            number(row["pool"], 1),
            percent(row["pool"] / row["predicted"] - 1),
            number(row["process"], 1),
            percent(row["process"] / row["predicted"] - 1),
        ],
    )
    return {
        "table": table,
        "left_out": len(rows[SHOWN:]),
        "rounded": any(row["accelerator"] != "cpu" for row in rows),
    }


# How close to the limit.


def limits_section(summary: list[dict], calibrations: dict[str, dict], dtypes: dict) -> dict | None:
    """Prefill as a share of the calibrated FLOP/s, decode of the bandwidth; None where nothing was calibrated here.

    `dtypes`: (commit, model) → the type that the cell computed in. A cell of another machine, or computed by another BLAS
    or number of threads, is `foreign` to the calibration.
    """
    rows, foreign = [], 0
    for row in summary:
        calibration = calibrations.get(row["commit"])
        dtype = dtypes.get((row["commit"], row["model"]))
        if not calibration or row["prefill_flops"] is None or row["prefill_tok_s"] is None:
            continue
        other_blas = row["blas"] and row["blas"] != calibration.get("blas")  # unknown is not other
        if calibration["machine"] != row["machine"] or other_blas:
            foreign += 1
            continue
        peak = calibration["dtypes"].get(dtype)
        if peak:
            rows.append(row | _limits(row, peak))
    if not rows and not foreign:
        return None
    table = cell_table(
        rows,
        [
            *("prefill, GFLOP", "GFLOP/s", "of peak"),
            *("decode, MiB a token", "GB/s", "of peak"),
        ],
        lambda row: [
            number(row["prefill_flops"] / 1e9, 1),
            number(row["flop_s"] / 1e9, 1),
            percent(row["flop_share"], 0, sign=False),
            number(row["decode_bytes"] / MIB, 1),
            number(row["byte_s"] / 1e9, 2),
            percent(row["byte_share"], 0, sign=False),
        ],
    )
    return {
        "table": table,
        "left_out": len(rows[SHOWN:]),
        "foreign": foreign,
        "peaks": [
            {"commit": commit, "dtype": dtype, **_peak(calibrations[commit]["dtypes"][dtype])}
            for commit, dtype in dict.fromkeys(
                (row["commit"], dtypes[row["commit"], row["model"]]) for row in rows
            )
        ],
    }


def _peak(peak: dict) -> dict:
    return {"gflop_s": peak["flops"] / 1e9, "gb_s": max(peak["copy"], peak["matvec"]) / 1e9}


def _limits(row: dict, peak: dict) -> dict:
    """FLOP/s and bytes/s of the mean speeds, and their shares of the peaks."""
    flop_s = row["prefill_flops"] * row["prefill_tok_s"] / row["prompt_tokens"]
    byte_s = None if row["decode_tok_s"] is None else row["decode_bytes"] * row["decode_tok_s"]
    best = _peak(peak)
    return {
        "flop_s": flop_s,
        "flop_share": flop_s / 1e9 / best["gflop_s"],
        "byte_s": byte_s or 0,
        "byte_share": None if byte_s is None else byte_s / 1e9 / best["gb_s"],
    }
