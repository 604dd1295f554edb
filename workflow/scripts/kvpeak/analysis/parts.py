"""What a peak consists of: weights, other live arrays, free memory that the pool keeps, the rest.

The parts are those of one process, the one with the median peak: counters of different processes
are never subtracted from one another. Live and kept bytes need not peak at the same moment, so that
what is live beside the weights is at most that much, and what is kept at least that much.
"""

import itertools

from kvpeak.analysis.headline import counter_of

PARTS = ("weights", "live beside them", "free, kept in the pool", "rest of the process")
_COUNTERS = ("loaded_mib", "peak_active_mib", "peak_pool_mib")


def parts_of(row: dict, processes: list[dict]) -> list[float] | None:
    """MiB of PARTS in a cell's peak; None where a counter is not known or nothing was computed.

    `row` is of summary.csv, `processes` are the cell's rows of processes.csv; without them the
    cell's own figures serve.
    """
    if row["method"] != "live" or row["outcome"] != "ok":
        return None
    peak = f"peak_{counter_of(row)}_mib"
    whole = [
        [process[name] for name in (*_COUNTERS, peak)]
        for process in processes or [row]
        if all(process[name] is not None for name in (*_COUNTERS, peak))
    ]
    if not whole:
        return None
    middle = sorted(whole, key=lambda sums: sums[-1])[(len(whole) - 1) // 2]
    return [max(0.0, more - less) for less, more in itertools.pairwise([0.0, *middle])]
