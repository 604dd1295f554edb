"""How a process's memory grows while it decodes: by how much a token, and whether it stops.

A cache that grows by concatenation leaves what it freed in the pool. A pool with a limit fills up
to it and then stands; without one it grows until the generation ends.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from kvpeak.analysis.headline import counter_of
from kvpeak.analysis.workloads import is_plain
from kvpeak.base.columns import MEMORY
from kvpeak.base.errors import UserError
from kvpeak.base.numbers import MIB, bounded
from kvpeak.base.untrusted import read_csv, read_object

MIN_SAMPLES = 12
MIN_RISE_MIB = 4.0
MIN_RISE = 0.03  # of the level
GOOD_FIT = 0.9  # of the variance that the two lines explain
STOPS_BEFORE = 0.85  # of the tokens: a later stop cannot be told from the end
NEAR_LIMIT = 0.15  # of the limit
MOST_SAMPLES = 5_000  # of more each second, third … one: every one is tried against all
NO_LIMIT = 1 << 50  # bytes: a limit beyond this was lifted


@dataclass(frozen=True)
class Growth:
    """The memory of one process while its first run decodes."""

    mib_per_token: float
    stops_at: int | None  # the token from which on it stands; None: it grows to the end
    tokens: int
    limit_mib: float | None  # of the pool; None where it has none
    at_limit: bool  # whether what the pool keeps where it stands is its limit


def growth_of(folder: Path, row: dict) -> Growth | None:
    """The growth in the process whose folder this is; None where it does not grow, no file says so,
    or its prompt is a workload, which has no one rate. `row` is its cell's of summary.csv.
    """
    if not is_plain(row):
        return None
    try:
        record = read_object(folder / "cell.json")
        samples = read_csv(folder / "memory.csv", MEMORY.names, only=MEMORY.names)
        phase = next(each for each in record["phases"] if each["phase"] == "decode-0")
        column = "device_mib" if counter_of(row) == "device" else "footprint_mib"
        points = [(bounded(s["t_s"]), bounded(s[column])) for s in samples if s[column]]
        steps = int(row["generated_tokens"]) - 1
        times = (bounded(phase["start_s"]), bounded(phase["end_s"]))
    except (OSError, UserError, KeyError, TypeError, ValueError, StopIteration):
        return None
    found = fit_growth_and_stop(points, *times, steps)
    if found is None:
        return None
    rate, stop = found
    limit = _limit_mib(row)
    return Growth(rate, stop, steps + 1, limit, stop is not None and _at_limit(row, limit))


def fit_growth_and_stop(
    points: list[tuple[float, float]], start_s: float, end_s: float, steps: int
) -> tuple[float, int | None] | None:
    """(MiB a token, the token at which it stops or None) of samples (seconds, MiB) in a phase.

    The least-squares line that becomes level at one of the samples, the best of all. Samples lie
    evenly in time and tokens do not; a rise to the end is therefore that between the ends over all
    steps, by which equal memory has equal rates. None where
    there are too few samples, the rise is small, or the line explains too little.
    """
    inside = np.array([point for point in points if start_s <= point[0] <= end_s])
    inside = inside[:: -(-len(inside) // MOST_SAMPLES) or 1]
    if len(inside) < MIN_SAMPLES or end_s <= start_s or steps < 2:
        return None
    tokens, mib = (inside[:, 0] - start_s) / (end_s - start_s) * steps, inside[:, 1]
    best = None
    for stop in tokens[2:]:
        design = np.stack([np.ones_like(tokens), np.minimum(tokens, stop)], axis=1)
        solution, *_ = np.linalg.lstsq(design, mib, rcond=None)
        error = float(np.sum((mib - design @ solution) ** 2))
        if best is None or error < best[0]:
            best = error, float(stop), float(solution[1])
    error, stop, rate = best
    rise, spread = rate * stop, float(np.sum((mib - mib.mean()) ** 2))
    if stop >= STOPS_BEFORE * steps:  # the speed may change on the way, the ends stay
        rate = float(mib[-1] - mib[0]) / steps
    if rise < max(MIN_RISE_MIB, MIN_RISE * mib.max()) or error > (1 - GOOD_FIT) * spread:
        return None
    return rate, None if stop >= STOPS_BEFORE * steps else round(stop)


def _limit_mib(row: dict) -> float | None:
    try:
        limit = int(row.get("cap_bytes") or NO_LIMIT)
    except ValueError:
        return None
    return None if limit >= NO_LIMIT else limit / MIB


def _at_limit(row: dict, limit: float | None) -> bool:
    """Whether the pool's peak, less the weights and all that the caches hold, is the limit."""
    needed = (row["peak_pool_mib"], row["loaded_mib"], row["kv_bytes_per_token"])
    if limit is None or None in needed:
        return False
    pool, loaded, kv = needed
    length = int(row["prompt_tokens"]) + int(row["generated_tokens"])
    fixed = (row.get("kv_window_bytes") or 0) + (row.get("kv_state_bytes") or 0)
    held = (kv * length + fixed) / MIB
    return abs(pool - loaded - held - limit) <= NEAR_LIMIT * limit


def spell_growth(growth: Growth) -> str:
    """E.g. `grows by 1.1 MiB a token and stands from token 33 on, at its cap of 32 MiB`."""
    rate = f"grows by {growth.mib_per_token:.2g} MiB a token"
    if growth.stops_at is None:
        limit = growth.limit_mib
        end = "" if limit is None else f"; its cap of {limit:,.0f} MiB is not met"
        return f"{rate} to the end of the {growth.tokens} tokens{end}"
    where = f"{rate} and stands from token {growth.stops_at} on"
    return (
        f"{where}: the pool is at its cap of {growth.limit_mib:,.0f} MiB"
        if growth.at_limit
        else where
    )
