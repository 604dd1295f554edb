"""The result tables as plain values: what was planned, what was measured, how fast each process
was.
"""

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pandas as pd

from kvpeak.analysis.statistics import outliers, process_means
from kvpeak.base.axes import AXES
from kvpeak.base.columns import SPEEDS, SUMMARY
from kvpeak.base.errors import UserError

_TEXT = (
    *(*AXES, "reason", "outcome", "tokens_sha256", "method", "weights", "machine", "accelerator"),
    *("gpu", "versions", "blas", "harness", "dirty", "flags", "detail"),
)

CellName = tuple[str, ...]  # the names on the six axes, in the order of AXES


@dataclass(frozen=True)
class Results:
    """What is known of each cell. A cell that cannot apply (its engine has no such cap) is in none
    of the tables.
    """

    # → why the cell does not run here, '' if it does
    plan: dict[CellName, str]
    # → its row of summary.csv plus what headline() adds; None where a value is missing
    summary: dict[CellName, dict]
    # column of SPEEDS → cell → mean of each process
    processes: dict[str, dict[CellName, np.ndarray]]
    # → a line for each run that is far off
    outliers: dict[CellName, list[str]] = field(default_factory=dict)

    def missing(self, cell: CellName, column: str) -> str:
        """Why the cell has no value in this column, '' if it has one."""
        if reason := self.plan.get(cell, "not planned"):
            return reason
        row = self.summary.get(cell)
        if row is None:
            return "not run yet"
        if row["outcome"] != "ok":
            return f"ended with {row['outcome']}"
        return "" if row.get(column) is not None else f"has no {column}"

    def speeds(self, cell: CellName, column: str) -> np.ndarray:
        """The cell's process means in one column of SPEEDS; empty if it has none."""
        return self.processes[column].get(cell, np.empty(0))


def read_results(plan: Path | str, summary: Path | str, runs: Path | str) -> Results:
    """Read plan.csv, summary.csv and runs.csv. Raises UserError where one is not there."""
    planned, measured, run_table = (read_table(path) for path in (plan, summary, runs))
    return Results(
        plan={
            _cell(row): row["reason"] or ""
            for row in rows(planned)
            if not (row["reason"] or "").startswith("not applicable")
        },
        summary={_cell(row): row | headline(row) for row in map(with_every_column, rows(measured))},
        processes={column: process_means(run_table, column) for column in SPEEDS},
        outliers=far_off_runs(run_table),
    )


def far_off_runs(runs: pd.DataFrame) -> dict[CellName, list[str]]:
    """A line for each recorded run whose speed is far from the cell's other runs; the run still
    counts.
    """
    lines = {}
    recorded = runs[~runs["warmup"].astype(bool)]
    cell = recorded.groupby(list(AXES), sort=False).ngroup().to_numpy()
    for column in SPEEDS:
        far = recorded[outliers(recorded[column], cell)]
        median = recorded[column].groupby(cell).transform("median")
        for index, row in zip(far.index, far.to_dict("records"), strict=True):
            lines.setdefault(_cell(row), []).append(
                f"run {row['run']} of r{row['round']} is far off: {column} {row[column]:,.1f}, "
                f"median {median[index]:,.1f}"
            )
    return lines


def with_every_column(row: dict) -> dict:
    """A row of summary.csv; a column that an older version of kvpeak did not write is None."""
    return dict.fromkeys(SUMMARY.names) | row


def headline(row: dict) -> dict[str, float | None]:
    """The cell's headline peak, and the smallest of its processes, MiB: of the device under CUDA,
    else the footprint.

    A replay with real buffers has them in one of the two, whichever is larger; one that only counts
    has the pool's bytes. `peak_min_mib` is None under CUDA in an older summary.csv.
    """
    if row["method"] == "replayed: counted":
        return {"peak_mib": row["peak_pool_mib"], "peak_min_mib": row["peak_pool_mib"]}
    counter = "device" if row["accelerator"] == "cuda" else "footprint"
    if row["method"] == "replayed: real":
        counter = max("footprint", "device", key=lambda name: row[f"peak_{name}_mib"] or 0)
    return {
        "peak_mib": row[f"peak_{counter}_mib"],
        "peak_min_mib": row[f"peak_{counter}_min_mib"],
    }


def read_table(path: Path | str) -> pd.DataFrame:
    """Read one of the CSV tables: names stay text (a cap `none` is no missing value), only empty
    fields are missing.

    Raises UserError for a file that cannot be read.
    """
    try:
        return pd.read_csv(
            path, dtype=dict.fromkeys(_TEXT, str), keep_default_na=False, na_values=[""]
        )
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}; make it: snakemake --cores 1") from None


def rows(table: pd.DataFrame) -> list[dict]:
    """The table's rows as dicts of plain values, None where a field is empty."""
    return table.astype(object).where(table.notna(), None).to_dict("records")


def _cell(row: dict) -> CellName:
    return tuple(row[axis] for axis in AXES)
