"""Which counter is a cell's headline, and whether it is a lower bound."""

from kvpeak.base.columns import LOWER_BOUND

DEVICE, RESERVED = "peak_device_mib", "peak_reserved_mib"
CLEARLY = 1.01  # peaks of equal cells repeat within 1 %
MISSED_MIB = 4.0  # less is what the two counters differ by: the driver tells whole MiB


def counter_of(row: dict) -> str:
    """The name of the counter that is the headline of a row of processes.csv or summary.csv.

    Under CUDA that is the device's memory, else the process's footprint. A replay with real buffers
    has them in one of the two, whichever is larger; one that only counts has the pool's bytes.
    """
    if row["method"] == "replayed: counted":
        return "pool"
    if row["method"] == "replayed: real":
        return max("footprint", "device", key=lambda name: row.get(f"peak_{name}_mib") or 0)
    return "device" if row["accelerator"] == "cuda" else "footprint"


def missed_mib(row: dict, processes: list[dict]) -> list[float]:
    """How much of a short peak the samples of each process of a CUDA cell are known to have missed,
    MiB, as far as it can be told.

    `row` is of summary.csv, `processes` are the cell's rows of processes.csv. The driver counts
    exactly what its pool reserved at most. What the device holds beside that is the same in every
    process of a cell, so that each missed as much as it differs from the one in which most of it
    was seen.
    """
    if counter_of(row) != "device":
        return []
    known = [each for each in processes if None not in (each[DEVICE], each.get(RESERVED))]
    beside = [each[DEVICE] - each[RESERVED] for each in known]
    return [max(beside) - each for each in beside]


def outside_runs(row: dict) -> str:
    """When the headline peak was reached, in words, if not in the runs: while loading, or clearly
    after the last run. '' where the samples do not say it.
    """
    load, run, end = (row.get(f"sampled_{phase}_mib") for phase in ("load", "run", "end"))
    if run is None:
        return ""
    if load is not None and load > run:
        return "while loading"
    return "after the last run" if end is not None and end > CLEARLY * run else ""


def is_lower_bound(row: dict) -> bool:
    """Whether the headline was sampled, or left out a part of what was to be measured.

    An older summary.csv has no column that says it: memory on a CUDA device is always sampled.
    """
    source = row.get("peak_source")
    return counter_of(row) == "device" if source is None else LOWER_BOUND in source
