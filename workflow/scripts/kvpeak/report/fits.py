"""The longest prompts that fit, as the finding tells them."""

from kvpeak.analysis.longest import sentence
from kvpeak.analysis.series import OTHER_AXES
from kvpeak.base.numbers import GIB, MIB
from kvpeak.report import markdown
from kvpeak.report.markdown import Markdown, code, number
from kvpeak.report.tables import SHOWN


def fits_section(rows: list[dict], sampled: bool = False) -> dict | None:
    """Rows of FITS: one sentence, a row for each series with a column for each memory, and why
    others have none. None where nothing was measured. `sampled`: the peaks are lower bounds.
    """
    if not rows:
        return None
    predicted: dict[tuple, list[dict]] = {}
    reasons: dict[str, int] = {}
    for row in rows:
        if row["reason"]:
            reasons[row["reason"]] = reasons.get(row["reason"], 0) + 1
        else:
            names = tuple(row[axis] for axis in OTHER_AXES)
            predicted.setdefault(names, []).append(row)
    return {
        "sentence": sentence(rows, sampled),
        "sampled": sampled,
        "table": _table(list(predicted.values())[:SHOWN]),
        "left_out": len(predicted) - len(list(predicted)[:SHOWN]),
        "reasons": [{"reason": reason, "cells": count} for reason, count in reasons.items()],
    }


def _table(series: list[list[dict]]) -> Markdown | None:
    if not series:
        return None
    firsts = [rows[0] for rows in series]
    axes = [axis for axis in OTHER_AXES if len({row[axis] for row in firsts}) > 1]
    memories = list(
        dict.fromkeys((row["memory_mib"], row["machine"]) for rows in series for row in rows)
    )
    header = [*(axis.replace("_", " ") for axis in axes or ["model"]), "measured to", "missed by"]
    header += [_memory(memory, machine) for memory, machine in memories]
    body = []
    for rows in series:
        found = {(row["memory_mib"], row["machine"]): row for row in rows}
        names = [code(rows[0][axis]) for axis in axes or ["model"]]
        missed = Markdown(f"{number(rows[0]['left_out_error_pct'], 1)} %")
        body.append(
            [*names, number(rows[0]["longest_measured"]), missed]
            + [_longest(found[memory]) if memory in found else None for memory in memories]
        )
    return markdown.table(header, body, " " * len(axes or ["model"]) + "r" * (2 + len(memories)))


def _memory(memory_mib: float, machine: str) -> str:
    size = f"{memory_mib * MIB / GIB:,.0f} GiB"
    return f"{size}, measuring machine" if machine == "yes" else size


def _longest(row: dict) -> Markdown:
    if row["longest_tokens"] == 0:
        return Markdown("none")
    tokens = number(row["longest_tokens"])
    if row["all_positions"] == "yes" and row["longest_low"] == row["longest_tokens"]:
        return Markdown(f"{tokens} (all positions)")
    return Markdown(f"{tokens} ({number(row['longest_low'])} to {number(row['longest_high'])})")
