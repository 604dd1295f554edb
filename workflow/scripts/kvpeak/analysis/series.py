"""The measured cells as series of lengths, with what their records say of model and machine."""

from pathlib import Path

from kvpeak.analysis.configs import configs_of
from kvpeak.analysis.fits import Point, Prefill, Series
from kvpeak.analysis.results import Results
from kvpeak.analysis.workloads import is_plain
from kvpeak.base.axes import AXES
from kvpeak.base.errors import UserError
from kvpeak.base.layout import CELLS, RECORD_FILE, shown_folder
from kvpeak.base.made import is_imported
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
        measured = row["outcome"] == "ok" and row["peak_mib"] is not None
        if measured and (found := _read(folder / CELLS.name, row)):
            grouped.setdefault(tuple(row[axis] for axis in OTHER_AXES), []).append(found)
    return [_series(names, found) for names, found in grouped.items()]


def _point(row: dict) -> Point:
    return Point(
        tokens=int(row["prompt_tokens"]),
        peak=float(row["peak_mib"]),
        pool=row["peak_pool_mib"],
        active=row["peak_active_mib"],
        loaded=row["loaded_mib"] or 0.0,
        loading=row["sampled_load_mib"] or 0.0,
    )


def _series(names: tuple[str, ...], found: list[tuple[Point, dict]]) -> Series:
    found = sorted(found, key=lambda each: each[0].tokens)
    one_each = {point.tokens: point for point, _ in found}  # two prompts may have one length
    own = [said for _, said in found if not said["imported"]] or [said for _, said in found]
    facts = found[-1][1] | {"machine_mib": own[-1]["machine_mib"]}
    del facts["imported"]
    return Series(
        names=dict(zip(OTHER_AXES, names, strict=True)),
        points=tuple(one_each.values()),
        **facts,
    )


def _read(cells: Path, row: dict) -> tuple[Point, dict] | None:
    """The cell's point, and what the record of its first process says of its series; None if one of
    them is not there or damaged.
    """
    try:
        file = shown_folder(cells, row) / RECORD_FILE
        record = read_object(file, root=cells)
        request = record["request"]
        said = {
            "prefill": _prefill(request, row),
            "generated": int(request["protocol"]["generate"]),
            "positions": _positions(record),
            "machine_mib": _machine_mib(record),
            "imported": is_imported(file),
            "replayed": str(record["engine"].get("method", "live")).startswith("replayed"),
        }
        return _point(row), said
    except (OSError, UserError, AttributeError, KeyError, TypeError, ValueError):
        return None


def _prefill(request: dict, row: dict) -> Prefill:
    chunk = request.get("options", {}).get("prefill_chunk", "whole")
    cached = row["kv_bytes_per_token"]
    return Prefill(
        chunk if isinstance(chunk, int) and chunk > 0 else None,
        None if cached is None else cached / MIB,
    )


def _positions(record: dict) -> int | None:
    """The positions of the model that was measured; None where no config says them."""
    known = (sizes(config).positions for config in configs_of(record).found)
    return next((positions for positions in known if positions is not None), None)


def _machine_mib(record: dict) -> float | None:
    """The memory that the peak is of: the GPU's under CUDA, else the machine's."""
    machine = record["machine"].get("before") or {}
    accelerator = (record["engine"].get("device") or {}).get("accelerator")
    holder = (machine.get("gpu") or {}) if accelerator == "cuda" else machine
    found = holder.get("memory_mib")
    return None if found is None else float(found)
