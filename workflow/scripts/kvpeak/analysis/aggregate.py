"""From the cells' folders to the tables: every run in runs.csv, one row per cell in summary.csv."""

import csv
import io
import json
from functools import cache
from pathlib import Path
from statistics import fmean

from kvpeak.analysis.least_work import decode_bytes, prefill_flops
from kvpeak.base.axes import AXES
from kvpeak.base.columns import RUNS, SPEEDS, SUMMARY
from kvpeak.base.errors import UserError
from kvpeak.base.fields import join_texts
from kvpeak.base.kv_caches import keeps_all
from kvpeak.inputs.shapes import ITEMSIZE, Shapes, kv_bytes_per_token, read_shapes

PEAKS = (
    "peak_footprint_mib",
    "peak_pool_mib",
    "peak_active_mib",
    "peak_rss_mib",
    "peak_device_mib",
    "loaded_mib",
)
TEXTS = (
    *("detail", "method", "weights", "machine", "accelerator", "gpu"),
    *("versions", "loop", "cap_bytes", "blas", "harness", "dirty"),
)


def read_plan(plan: Path) -> list[dict]:
    """The plan's rows that run here."""
    with plan.open(newline="", encoding="utf-8") as file:
        return [row for row in csv.DictReader(file) if row["runs_here"] == "yes"]


def gather(rows: list[dict]) -> tuple[dict[str, str], int]:
    """The two tables as CSV text, from the planned cells that have been measured, and how many
    processes those are.
    """
    runs_text, summary_text = io.StringIO(), io.StringIO()
    runs_table = csv.DictWriter(runs_text, RUNS.names, extrasaction="ignore", lineterminator="\n")
    summary = csv.DictWriter(summary_text, SUMMARY.names, lineterminator="\n")
    runs_table.writeheader()
    summary.writeheader()
    cells: dict[tuple, list[dict]] = {}
    for row in rows:
        if process := read_process(Path(row["path"])):
            runs_table.writerows(process.pop("rows"))
            cells.setdefault(tuple(row[axis] for axis in AXES), []).append(process)
    for names, processes in cells.items():
        row = dict(zip(AXES, names, strict=True)) | summarise(processes)
        summary.writerow({name: spelled(value) for name, value in row.items()})
    measured = sum(map(len, cells.values()))
    return {"runs.csv": runs_text.getvalue(), "summary.csv": summary_text.getvalue()}, measured


def read_process(folder: Path) -> dict | None:
    """What one process's cell.json and runs.csv say, flattened; `rows` are its runs. None if it was
    not measured.
    """
    try:
        with (folder / "runs.csv").open(newline="", encoding="utf-8") as file:
            runs = list(csv.DictReader(file))
        record = json.loads((folder / "cell.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise UserError(f"{folder}: {error}; delete the folder to measure the cell again") from None
    recorded = [run for run in runs if run["warmup"].lower() != "true"]
    machine, harness, engine = record["machine"]["before"], record["harness"], record["engine"]
    return {
        "rows": runs,
        "runs": len(recorded),
        "outcome": record["outcome"],
        "detail": record["detail"],
        **{name: record["memory"].get(name) for name in PEAKS},
        **{name: mean_of(recorded, name) for name in SPEEDS},
        "prompt_tokens": first(run["prompt_tokens"] for run in recorded),
        "generated_tokens": first(run["generated_tokens"] for run in recorded),
        "tokens_sha256": [run["tokens_sha256"] for run in recorded if run["tokens_sha256"]],
        "method": engine.get("method", "live"),
        "weights": record["request"]["model"]["weights"],
        "machine": machine.get("name") or "unknown",
        "accelerator": engine.get("device", {}).get("accelerator"),
        "gpu": str(record["request"].get("gpu", "")),
        "versions": ", ".join(
            f"{name} {text}" for name, text in engine.get("versions", {}).items()
        ),
        "loop": engine.get("loop"),
        "cap_bytes": text_of(engine.get("cap_bytes")),
        "blas": engine.get("blas"),
        "harness": harness.get("revision") or harness.get("version"),
        "dirty": "yes" if harness.get("dirty") else "no",
        "flags": record["flags"],
        **work(record),
    }


def text_of(count: object) -> str:
    """A count in all its digits; nothing where there is none."""
    return "" if count is None else str(count)


def mean_of(runs: list[dict], column: str) -> float | None:
    """The mean of the runs that have a value in the column."""
    values = [float(run[column]) for run in runs if run[column]]
    return fmean(values) if values else None


def work(record: dict) -> dict:
    """What the shapes say of the cell: bytes of keys and values a token, and the least work of each
    phase.
    """
    request, dtype = record["request"], record["engine"].get("dtype")
    found = dict.fromkeys(("kv_bytes_per_token", "prefill_flops", "decode_bytes"))
    config = read_config(request["model"]["folder"])
    if config is None or dtype not in ITEMSIZE:
        return found
    found["kv_bytes_per_token"] = kv_bytes_per_token(config, dtype)
    shapes = shapes_of(request["model"]["folder"], dtype)
    live = record["engine"].get("method", "live") == "live"
    if shapes is None or not live or not keeps_all(request["kv_cache"]):
        return found
    tokens, generated = request["prompt"]["tokens"], request["protocol"]["generate"]
    chunk = request["options"].get("prefill_chunk", "whole")
    fused = record["engine"].get("attention", "naive") != "naive"
    chunk = 1 if fused else tokens if chunk == "whole" else int(chunk)
    return found | {
        "prefill_flops": prefill_flops(shapes, tokens, chunk),
        "decode_bytes": round(decode_bytes(shapes, tokens, generated)),
    }


@cache
def read_config(folder: str) -> dict | None:
    """A model's config.json, None if it is not there or damaged: what was measured is shown all the
    same.
    """
    try:
        return json.loads(Path(folder, "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


@cache
def shapes_of(folder: str, dtype: str) -> Shapes | None:
    """A model's shapes in the type that it was loaded in; None for families whose shapes are not
    known.
    """
    config = read_config(folder)
    try:
        return None if "quantization" in config else read_shapes(config, folder, dtype)
    except UserError:
        return None


def summarise(processes: list[dict]) -> dict:
    """One cell: the largest peaks of its processes, the mean of their mean speeds (the process is
    the replicate).
    """
    hashes = {sha for process in processes for sha in process["tokens_sha256"]}
    return {
        "rounds": len(processes),
        "runs": sum(process["runs"] for process in processes),
        "outcome": first((p["outcome"] for p in processes if p["outcome"] != "ok"), "ok"),
        **{
            name: first(values_of(processes, name))
            for name in (
                *("prompt_tokens", "generated_tokens"),
                *("kv_bytes_per_token", "prefill_flops", "decode_bytes"),
            )
        },
        **{name: max(values_of(processes, name), default=None) for name in PEAKS},
        **{
            f"peak_{counter}_min_mib": min(
                values_of(processes, f"peak_{counter}_mib"), default=None
            )
            for counter in ("footprint", "device")
        },
        **{name: mean(values_of(processes, name)) for name in SPEEDS},
        "tokens_sha256": first(hashes) if len(hashes) < 2 else "differs",
        **{name: joined(values_of(processes, name)) for name in TEXTS},
        "flags": joined(flag for process in processes for flag in process["flags"]),
    }


def values_of(processes: list[dict], name: str) -> list:
    return [process[name] for process in processes if process[name] not in (None, "")]


def joined(texts) -> str:
    """The different texts, in order."""
    return join_texts(dict.fromkeys(texts))


def mean(values: list[float]) -> float | None:
    return fmean(values) if values else None


def first(values, default=None):
    return next(iter(values), default)


def spelled(value):
    """A figure with six digits, whole ones in full; nothing where there is none."""
    return f"{value:.6g}" if isinstance(value, float) else value
