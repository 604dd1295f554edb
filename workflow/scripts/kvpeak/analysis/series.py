"""The measured cells as series of lengths, with what their records say of model and machine."""

from pathlib import Path

from kvpeak.analysis.fits import Point, Prefill, Series
from kvpeak.analysis.results import Results
from kvpeak.analysis.workloads import is_plain
from kvpeak.base.axes import AXES
from kvpeak.base.errors import UserError
from kvpeak.base.layout import RECORD_FILE
from kvpeak.base.model_config import sizes
from kvpeak.base.numbers import MIB
from kvpeak.base.untrusted import read_object

OTHER_AXES = tuple(axis for axis in AXES if axis != "prompt")


def read_series(results: Results, folder: Path) -> list[Series]:
    """Every combination of the axes but the prompt, from the cells of one text that ended well.

    `folder` is the one with cells/. A record that cannot be read costs its cell, not the others.
    """
    grouped: dict[tuple, list[tuple[Point, dict]]] = {}
    for row in filter(is_plain, results.summary.values()):
        record = _record(folder, row)
        if row["outcome"] == "ok" and row["peak_mib"] is not None and record is not None:
            names = tuple(row[axis] for axis in OTHER_AXES)
            grouped.setdefault(names, []).append((_point(row), record | {"row": row}))
    return [_series(names, found) for names, found in grouped.items()]


def _point(row: dict) -> Point:
    lowest = row["peak_min_mib"] if row["peak_min_mib"] is not None else row["peak_mib"]
    return Point(
        tokens=int(row["prompt_tokens"]),
        peak=float(row["peak_mib"]),
        peak_low=float(lowest),
        pool=row["peak_pool_mib"],
        active=row["peak_active_mib"],
        loaded=row["loaded_mib"] or 0.0,
    )


def _series(names: tuple[str, ...], found: list[tuple[Point, dict]]) -> Series:
    found = sorted(found, key=lambda each: each[0].tokens)
    one_each = {point.tokens: point for point, _ in found}  # two prompts may have one length
    record = found[-1][1]
    request = record["request"]
    return Series(
        names=dict(zip(OTHER_AXES, names, strict=True)),
        points=tuple(one_each.values()),
        prefill=_prefill(request, record["row"]),
        generated=int(request["protocol"]["generate"]),
        positions=_positions(request["model"]),
        machine_mib=_machine_mib(record),
        replayed=str(record["engine"].get("method", "live")).startswith("replayed"),
    )


def _prefill(request: dict, row: dict) -> Prefill:
    chunk = request.get("options", {}).get("prefill_chunk", "whole")
    cached = row["kv_bytes_per_token"]
    return Prefill(
        chunk if isinstance(chunk, int) else None,
        None if cached is None else cached / MIB,
    )


def _record(folder: Path, row: dict) -> dict | None:
    """The record of the cell's first process, None if it is not there or damaged."""
    path = folder / "cells" / "/".join(row[axis] for axis in AXES) / "r1" / RECORD_FILE
    try:
        record = read_object(path)
    except (OSError, UserError):
        return None
    parts = ("request", "engine", "machine")
    return record if all(isinstance(record.get(part), dict) for part in parts) else None


def _positions(model: dict) -> int | None:
    """The positions of a model, from its folder or from the shapes that it was made of."""
    files = [Path(model["folder"]) / "config.json"]
    files += [Path(model["config"])] if model.get("config") else []
    for file in files:
        try:
            config = read_object(file)
        except (OSError, UserError):
            continue
        if (found := sizes(config).positions) is not None:
            return found
    return None


def _machine_mib(record: dict) -> float | None:
    """The memory that the peak is of: the GPU's under CUDA, else the machine's."""
    machine = record["machine"].get("before") or {}
    accelerator = (record["engine"].get("device") or {}).get("accelerator")
    holder = (machine.get("gpu") or {}) if accelerator == "cuda" else machine
    return holder.get("memory_mib")
