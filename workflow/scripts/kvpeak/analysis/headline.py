"""Which counter is a cell's headline, and whether it is a lower bound."""

LOWER_BOUND = "lower bound"  # part of what a source of a peak says of itself


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


def is_lower_bound(row: dict) -> bool:
    """Whether the headline was sampled, or left out a part of what was to be measured.

    An older summary.csv has no column that says it: memory on a CUDA device is always sampled.
    """
    source = row.get("peak_source")
    return counter_of(row) == "device" if source is None else LOWER_BOUND in source
