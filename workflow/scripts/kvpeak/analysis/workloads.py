"""Turns, requests and sequences: what a cell's prompt is, the rows of its parts, and whether memory
grows with them.
"""

from dataclasses import dataclass

import numpy as np

from kvpeak.analysis.statistics import t_quantile
from kvpeak.base.columns import TURNS
from kvpeak.base.numbers import KIB
from kvpeak.experiment.workloads import spell

FEWEST = 32  # requests: with fewer the later half has no eight blocks
BLOCKS = 8
# A request. The engine keeps about one itself, the record of what it measured.
MARGIN_KIB = 4.0


@dataclass(frozen=True)
class Trend:
    """How much is held more with each request, KiB, with its 95 % interval; over `requests`."""

    slope_kib: float
    low_kib: float
    high_kib: float
    requests: int


def is_plain(row: dict) -> bool:
    """Whether a row of the summary is of one text, so that its tokens are its length."""
    return not row.get("workload")


def is_session(row: dict) -> bool:
    """Whether a row of the summary is of turns, which may keep their cache."""
    return (row.get("workload") or "").startswith("turns ")


def repeats_requests(row: dict) -> bool:
    """Whether a row of the summary is of the same request again and again, each with a fresh
    cache.
    """
    return (row.get("workload") or "").startswith("repeat ")


def asks_again(row: dict) -> bool:
    """Whether a row of the summary is of prompts one after the other."""
    return not is_plain(row) and not row["workload"].startswith("batch ")


def longest_prompt(row: dict, turns: list[dict]) -> int | None:
    """Tokens of the longest text that is computed at once; `turns` are the cell's rows of
    turns.csv.
    """
    return max((int(turn["prompt_tokens"]) for turn in turns), default=row["prompt_tokens"])


def spell_workload(row: dict) -> str:
    """What a row's prompt is, e.g. `a batch of 8 sequences`; '' for one text."""
    tokens = row["prompt_tokens"]
    return spell(row.get("workload") or "", None if tokens is None else int(tokens))


def spell_prompt(row: dict) -> str:
    """E.g. `a prompt of 1,025 tokens`, or what spell_workload says."""
    return spell_workload(row) or f"a prompt of {int(row['prompt_tokens']):,} tokens"


def spell_length(row: dict) -> str:
    """E.g. `1,025 tokens`, or what spell_workload says."""
    return spell_prompt(row).removeprefix("a prompt of ")


def rows_of(events: list[dict]) -> list[dict]:
    """The rows of TURNS in a process's events: one for each turn, request or sequence of a run.

    A batch is compared when it has ended: `done` says what came of its last run.
    """
    runs = [event for event in events if event.get("event") == "run"]
    last = next((event for event in events if event.get("event") == "done"), {})
    rows = []
    for event in runs:
        if not isinstance(event.get("parts"), list):
            continue
        compared = event.get("first_differences")
        if event is runs[-1]:
            compared = compared or last.get("first_differences")
        differences = compared or [None] * len(event["parts"])
        for part, difference in zip(event["parts"], differences, strict=False):
            rows.append(
                {name: part.get(name) for name in TURNS.names}
                | {"run": event["run"], "warmup": str(event["warmup"]).lower()}
                | {"first_difference": difference}
                | _speeds(part)
            )
    return rows


def reuses(rows: list[dict]) -> bool:
    """Whether the rows of a cell are those of two prompts that begin alike."""
    return any(row.get("reused_tokens") for row in rows)


def _speeds(part: dict) -> dict:
    prefill, first, decode = (part.get(name) for name in ("prefill_s", "ttft_s", "decode_s"))
    load = part.get("cache_load_s")
    steps = part["generated_tokens"] - 1
    return {
        "prefill_tok_s": part["prompt_tokens"] / prefill if prefill else None,
        "ttft_ms": None if first is None else 1000 * first,
        "decode_tok_s": steps / decode if decode and steps > 0 else None,
        "cache_load_ms": None if load is None else 1000 * load,
    }


def trend(held_mib) -> Trend | None:
    """The growth of a series of MiB, one value a request; None with fewer than FEWEST.

    A pool fills up at first, and that is no leak: only the later half counts. It is cut into blocks
    of neighbours, because what one request leaves lasts for a few more; a line is fitted to the
    blocks' means by least squares, and its interval is Student's t with BLOCKS − 2 degrees of
    freedom.
    """
    values = np.asarray(held_mib, float)
    if values.size < FEWEST:
        return None
    size = (values.size // 2) // BLOCKS
    later = values[values.size - size * BLOCKS :].reshape(BLOCKS, size).mean(axis=1)
    at = size * np.arange(BLOCKS)
    from scipy import stats  # takes a second

    fit = stats.linregress(at, later)
    # nan for means that do not differ at all
    half = t_quantile(BLOCKS - 2) * np.nan_to_num(fit.stderr)
    slope, half = (float(value) * KIB for value in (fit.slope, half))
    return Trend(slope, slope - half, slope + half, values.size)


def leaks(found: Trend, margin_kib: float) -> bool | None:
    """Whether the whole interval is above the margin; None where the margin lies inside it."""
    if found.low_kib > margin_kib:
        return True
    return None if found.high_kib > margin_kib else False


def spell_trend(found: Trend) -> str:
    """E.g. `slope 64.1 KiB a request (95 % 63.0 to 65.2), over the later half of 200`."""
    slope, low, high = (
        f"{round(value, 2) + 0.0:,.2f}"
        for value in (found.slope_kib, found.low_kib, found.high_kib)
    )
    return (
        f"slope {slope} KiB a request (95 % {low} to {high}), "
        f"over the later half of {found.requests}"
    )


def mean_series(rows: list[dict], column: str) -> list[float]:
    """One value a turn, in their order: the mean over the recorded runs of all processes."""
    series: dict[int, list[float]] = {}
    for row in rows:
        if row["turn"] is not None and row[column] is not None and not row["warmup"]:
            series.setdefault(int(row["turn"]), []).append(float(row[column]))
    return [float(np.mean(series[turn])) for turn in sorted(series)]
