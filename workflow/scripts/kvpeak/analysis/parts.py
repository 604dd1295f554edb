"""What a peak consists of: weights, other live arrays, free memory that the pool keeps, the rest.

The parts are those of one process, the one with the median peak: counters of different processes
are never subtracted from one another. Each counter is at its own peak, which need not be at the
same moment, nor in the same run: of the process's peak what is live beside the weights is at most
that much, and the rest at least; what is kept is the difference of two peaks. The
allocator's counters are of the runs, so that the parts are too: where the peak was reached outside
them, they add up to the largest sample of the runs.
"""

import itertools

from kvpeak.analysis.headline import counter_of, outside_runs

PARTS = ("weights", "live beside them", "free, kept in the pool", "rest of the process")
_COUNTERS = ("loaded_mib", "peak_active_mib", "peak_pool_mib")
# Rules that take memory from the system for the bytes that were asked for, and no more. The others
# count whole classes or segments as live, and hold pages that nobody has touched: what is live and
# kept is then no part of the process's memory.
EXACT_RULES = ("", "mlx", "none", "exact")


def parts_of(row: dict, processes: list[dict]) -> list[float] | None:
    """MiB of PARTS in a cell's peak; None where a counter is not known, nothing was computed, or
    its pool's rule is not one of EXACT_RULES.

    `row` is of summary.csv, `processes` are the cell's rows of processes.csv; without them the
    cell's own figures serve.
    """
    if row["method"] != "live" or row["outcome"] != "ok":
        return None
    if not counts_exactly(row):
        return None
    names = (*_COUNTERS, _whole(row))
    found = [[process.get(name) for name in names] for process in processes or [row]]
    whole = [sums for sums in found if None not in sums]
    if not whole:
        return None
    middle = sorted(whole, key=lambda sums: sums[-1])[(len(whole) - 1) // 2]
    return [max(0.0, more - less) for less, more in itertools.pairwise([0.0, *middle])]


def counts_exactly(row: dict) -> bool:
    """Whether the cell's pool counts the bytes that were asked for, and holds no others."""
    return (row.get("pool_rule") or "").split(",")[0] in EXACT_RULES


def _whole(row: dict) -> str:
    """The column of what the parts add up to."""
    return "sampled_run_mib" if outside_runs(row) else f"peak_{counter_of(row)}_mib"
