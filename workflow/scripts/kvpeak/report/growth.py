"""Why the pool grows: the prediction from what caches hold, held against the cells."""

from kvpeak.analysis.growth import pool_growth_mib
from kvpeak.analysis.results import Results
from kvpeak.analysis.workloads import is_plain
from kvpeak.base.axes import AXES
from kvpeak.base.kv_caches import regrows
from kvpeak.base.numbers import percent
from kvpeak.report.markdown import number
from kvpeak.report.tables import SHOWN, cell_table


def growth_rows(results: Results) -> list[dict]:
    """Live cells of one text without a cap whose cache grows, beside prealloc: what their pool and
    process hold more than that one's.

    A build without a pool, whose pool counter equals its live bytes, is left out. The largest
    first.
    """
    cap, kv_cache = AXES.index("cap"), AXES.index("kv_cache")
    found = []
    for cell, row in results.summary.items():
        if not regrows(cell[kv_cache]) or cell[cap] != "none" or row["method"] != "live":
            continue
        if not is_plain(row):  # the prediction is of one generation
            continue
        other = results.summary.get((*cell[:kv_cache], "prealloc", *cell[kv_cache + 1 :]))
        sides = [side for side in (row, other) if side and side["outcome"] == "ok"]
        needed = ("peak_pool_mib", "peak_active_mib", "kv_bytes_per_token", "peak_mib")
        if len(sides) < 2 or any(side[name] is None for side in sides for name in needed):
            continue
        if row["peak_pool_mib"] <= row["peak_active_mib"] or row["generated_tokens"] < 2:
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
