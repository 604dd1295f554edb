"""Speeds as shares of what the machine can do at most: its arithmetic, and its memory.

One machine has one roof for all its engines: the fastest of what any of their environments reached.
Memory is no roof for a model that fits into the last-level cache.
"""

from dataclasses import dataclass
from numbers import Real

from kvpeak.base.fields import split_texts

_NO_BANDWIDTH = ("matmul_rows", "flops")  # keys of a type's calibration that are not bytes/s


@dataclass(frozen=True)
class Roof:
    """What one machine reached in its calibrations."""

    flops: dict[str, float]  # type → FLOP/s of the fastest matrix product
    bytes_s: float  # of the fastest kernel that moves or reads memory, of any type
    kernel: str  # which that is
    cache_bytes: int | None  # of the last-level cache; None where it is not known


@dataclass(frozen=True)
class Shares:
    """One cell below its machine's roof; None where a figure or a roof is not known."""

    row: dict
    flop_s: float | None
    flop_share: float | None
    byte_s: float | None
    byte_share: float | None
    in_cache: bool  # its working set fits into the last-level cache


def roofs(calibrations: dict[str, dict]) -> dict[str, Roof]:
    """Machine → its roof, from the calibrations of all commits. One that is damaged is left out."""
    found: dict[str, list[dict]] = {}
    for calibration in calibrations.values():
        if isinstance(calibration.get("dtypes"), dict) and isinstance(
            calibration.get("machine"), str
        ):
            found.setdefault(calibration["machine"], []).append(calibration)
    named = {machine: _roof(some) for machine, some in found.items()}
    return {machine: roof for machine, roof in named.items() if roof}


def _roof(calibrations: list[dict]) -> Roof | None:
    flops: dict[str, float] = {}
    kernels: dict[str, float] = {}
    for calibration in calibrations:
        for dtype, figures in calibration["dtypes"].items():
            if not isinstance(figures, dict):
                continue
            numbers = {name: value for name, value in figures.items() if isinstance(value, Real)}
            flops[dtype] = max(flops.get(dtype, 0.0), numbers.get("flops", 0.0))
            for name in numbers.keys() - set(_NO_BANDWIDTH):
                kernels[name] = max(kernels.get(name, 0.0), numbers[name])
    caches = [each.get("last_level_cache_bytes") for each in calibrations]
    caches = [size for size in caches if isinstance(size, Real) and size > 0]
    if not kernels:
        return None
    best = max(kernels, key=kernels.get)
    return Roof(flops, kernels[best], best, int(max(caches)) if caches else None)


def is_foreign(row: dict, calibration: dict) -> bool:
    """Whether a cell comes from another machine than its commit's calibration, or from another BLAS
    or number of its threads; an unknown BLAS is not another.
    """
    other_blas = row["blas"] and split_texts(row["blas"]) != [calibration.get("blas")]
    return calibration.get("machine") != row["machine"] or bool(other_blas)


def shares_of(row: dict, dtype: str, roof: Roof) -> Shares:
    """The cell's mean speeds as FLOP/s and bytes/s, and their shares of the roof."""
    in_cache = bool(
        roof.cache_bytes and row["decode_bytes"] and row["decode_bytes"] <= roof.cache_bytes
    )
    flop_s = byte_s = None
    if row["prefill_tok_s"] is not None and row["prefill_flops"] is not None:
        flop_s = row["prefill_flops"] * row["prefill_tok_s"] / row["prompt_tokens"]
    if row["decode_tok_s"] is not None and row["decode_bytes"] is not None:
        byte_s = row["decode_bytes"] * row["decode_tok_s"]
    peak = roof.flops.get(dtype)
    return Shares(
        row=row,
        flop_s=flop_s,
        flop_share=flop_s / peak if flop_s and peak else None,
        byte_s=byte_s,
        byte_share=byte_s / roof.bytes_s if byte_s and not in_cache else None,
        in_cache=in_cache,
    )
