"""Gather the cells: results/runs.csv (every run) and results/summary.csv (one row per cell)."""

import argparse
import csv
import json
import os
import sys
from pathlib import Path

import pandas as pd

from kvpeak.matrix import AXES
from kvpeak.shapes import ITEMSIZE, kv_bytes_per_token

PEAKS = (
    "peak_footprint_mib",
    "peak_pool_mib",
    "peak_active_mib",
    "peak_rss_mib",
    "peak_device_mib",
    "loaded_mib",
)
SPEEDS = ("prefill_tok_s", "ttft_ms", "decode_tok_s")
RUN_COLUMNS = (
    *AXES, "round", "run", "warmup", "prompt_tokens", "generated_tokens", "prefill_s", "prefill_tok_s",
    "ttft_ms", "decode_s", "decode_tok_s", "tokens_sha256", "peak_active_mib", "peak_pool_mib",
    "order", "started_at",
)  # fmt: skip
SUMMARY_COLUMNS = (
    *AXES, "rounds", "runs", "outcome", "prompt_tokens", "generated_tokens", *PEAKS[:1], "peak_footprint_min_mib", *PEAKS[1:],
    *SPEEDS, "tokens_sha256", "method", "weights", "machine", "accelerator", "kv_bytes_per_token", "harness", "flags",
    "detail",
)  # fmt: skip


def read_plan(plan: Path) -> list[dict]:
    """The plan's rows that run here."""
    with plan.open(newline="", encoding="utf-8") as file:
        return [row for row in csv.DictReader(file) if row["runs_here"] == "yes"]


def read_runs(rows: list[dict]) -> pd.DataFrame:
    """Every run of every planned cell that has been measured, columns RUN_COLUMNS first."""
    runs = []
    for row in rows:
        path = Path(row["path"], "runs.csv")
        if path.exists():
            with path.open(newline="", encoding="utf-8") as file:
                runs += csv.DictReader(file)
    frame = pd.DataFrame(runs).reindex(columns=list(RUN_COLUMNS))
    for column in frame.columns.difference([*AXES, "warmup", "tokens_sha256", "started_at"]):
        frame[column] = pd.to_numeric(frame[column])
    frame["warmup"] = frame["warmup"].isin(["true", "True", "1"])
    return frame


def read_records(rows: list[dict]) -> pd.DataFrame:
    """One row per measured process: what its cell.json says."""
    records = []
    for row in rows:
        path = Path(row["path"], "cell.json")
        if path.exists() and Path(row["path"], "runs.csv").exists():
            records.append(process_row(json.loads(path.read_text(encoding="utf-8"))))
    columns = [
        *AXES,
        "round",
        "outcome",
        "detail",
        *PEAKS,
        "method",
        "weights",
        "machine",
        "accelerator",
        "kv_bytes_per_token",
        "harness",
        "flags",
    ]
    return pd.DataFrame(records, columns=columns)


def process_row(record: dict) -> dict:
    """Flatten one cell.json."""
    machine, harness = record["machine"]["before"], record["harness"]
    return {
        **{axis: record["cell"][axis] for axis in (*AXES, "round")},
        "outcome": record["outcome"],
        "detail": record["detail"],
        **{name: record["memory"].get(name) for name in PEAKS},
        "method": record["engine"].get("method", "live"),
        "weights": record["request"]["model"]["weights"],
        "machine": machine.get("name") or "unknown",
        "accelerator": record["engine"].get("device", {}).get("accelerator"),
        "kv_bytes_per_token": kv_bytes(record),
        "harness": harness.get("revision") or harness.get("version"),
        "flags": "; ".join(record["flags"]),
    }


def kv_bytes(record: dict) -> int | None:
    """Bytes of keys and values a token, by the model's config and the dtype that it was loaded in."""
    config = Path(record["request"]["model"]["folder"], "config.json")
    dtype = record["engine"].get("dtype")
    if dtype not in ITEMSIZE or not config.exists():
        return None
    return kv_bytes_per_token(json.loads(config.read_text(encoding="utf-8")), dtype)


def summarise(runs: pd.DataFrame, records: pd.DataFrame) -> pd.DataFrame:
    """One row per cell: the largest peaks of its processes, the mean speeds of its recorded runs.

    Speeds are averaged inside a process first and then over the processes, because the process is the replicate.
    """
    axes = list(AXES)
    recorded = runs[~runs["warmup"]]
    by_process = recorded.groupby([*axes, "round"], sort=False)
    speeds = by_process[list(SPEEDS)].mean().groupby(axes, sort=False).mean()
    by_cell = recorded.groupby(axes, sort=False)
    speeds["runs"] = by_cell.size()
    for column in ("prompt_tokens", "generated_tokens"):
        speeds[column] = by_cell[column].first()
    speeds["tokens_sha256"] = by_cell["tokens_sha256"].agg(same_or_differs)

    cells = records.groupby(axes, sort=False)
    summary = cells[list(PEAKS)].max()
    summary["peak_footprint_min_mib"] = cells["peak_footprint_mib"].min()
    summary["rounds"] = cells.size()
    summary["outcome"] = cells["outcome"].agg(worst_outcome)
    summary["kv_bytes_per_token"] = cells["kv_bytes_per_token"].first()
    for column in ("detail", "method", "weights", "machine", "accelerator", "harness", "flags"):
        summary[column] = cells[column].agg(joined)
    summary = summary.join(speeds).reset_index()
    summary["runs"] = summary["runs"].fillna(0).astype(int)
    whole = ["prompt_tokens", "generated_tokens", "kv_bytes_per_token"]
    summary[whole] = summary[whole].astype("Int64")
    return summary.reindex(columns=list(SUMMARY_COLUMNS))


def same_or_differs(values: pd.Series) -> str | None:
    """The one value that all runs gave, or 'differs'; None if there is none (a replay has no tokens)."""
    different = values.replace("", None).dropna().unique()
    return None if len(different) == 0 else different[0] if len(different) == 1 else "differs"


def worst_outcome(values: pd.Series) -> str:
    """`ok` if every round was, else the first that was not."""
    return next((value for value in values if value != "ok"), "ok")


def joined(values: pd.Series) -> str:
    """The different texts of the rounds, in order."""
    return "; ".join(dict.fromkeys(value for value in values if isinstance(value, str) and value))


def write_csv(frame: pd.DataFrame, path: Path) -> None:
    """Write to a temporary name, then rename: a half-written table never counts."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        frame.to_csv(temporary, index=False, float_format="%.6g", lineterminator="\n")
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--plan", type=Path, default=Path("results/plan.csv"), help="default: %(default)s"
    )
    parser.add_argument(
        "--runs", type=Path, default=Path("results/runs.csv"), help="default: %(default)s"
    )
    parser.add_argument(
        "--summary", type=Path, default=Path("results/summary.csv"), help="default: %(default)s"
    )
    arguments = parser.parse_args()
    rows = read_plan(arguments.plan)
    runs, records = read_runs(rows), read_records(rows)
    write_csv(runs, arguments.runs)
    write_csv(summarise(runs, records), arguments.summary)
    missing = len(rows) - len(records)
    print(
        f"{len(records)} cells measured" + (f", {missing} missing" if missing else ""),
        file=sys.stderr,
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
