"""Fit the replay's constants to measured peaks, and say how well each structure does."""

from dataclasses import dataclass, replace
from itertools import product

from kvpeak.base.numbers import MIB
from kvpeak.inputs.shapes import Shapes, weight_tensors
from kvpeak.replay.prediction import run_peaks
from kvpeak.replay.qwen2 import Qwen2
from kvpeak.replay.script import Script
from kvpeak.replay.trace import host_mask_bytes
from kvpeak.replay.workload import CAPACITY_FACTOR, workload

FACTORS = (1, 2, 4)  # prealloc's room for tokens, in units of prompt + generated tokens


@dataclass(frozen=True)
class Measured:
    """One published peak. `slack` None is Candle as released."""

    prompt: str
    prompt_tokens: int
    kv_cache: str
    slack: int | None
    peak_mib: float


class Qwen2GateKept(Qwen2):
    """The MLP written so that the gate's projection lives until the product is made."""

    def _mlp(self, s: Script) -> list[str]:
        for tensor in ("gate", "silu", "up", "product"):
            s.alloc(tensor, "inner")
        s.free("silu", "up", "gate")
        s.alloc("down", "hidden")
        s.free("product", "norm2")
        return ["down"]


@dataclass(frozen=True)
class Structure:
    """What the published text leaves open, as one choice of each."""

    mlp: type[Qwen2]
    host_mask: bool  # whether the mask's copy in ordinary memory is in the footprint at the peak
    capacity_factor: int

    def known_mib(self, shapes: Shapes, cell: Measured, wait: str = "none") -> float:
        """The predicted peak of a cell without the process constant."""
        work = workload(cell.prompt_tokens, cell.kv_cache, wait=wait)
        if cell.kv_cache == "prealloc":
            tokens = cell.prompt_tokens + work.generate
            work = replace(work, capacity=self.capacity_factor * tokens)
        pool = max(run_peaks(shapes, work, cell.slack, self.mlp))
        host = host_mask_bytes(shapes, work) if self.host_mask else 0
        return (pool + host + sum(weight_tensors(shapes))) / MIB


def pairs(shapes: Shapes, structure: Structure, cells: list[Measured]) -> list[tuple[float, float]]:
    """(predicted without the constant, measured) of each cell, MiB."""
    return [(structure.known_mib(shapes, cell), cell.peak_mib) for cell in cells]


def worst_error(known_measured: list[tuple[float, float]], constant: float) -> float:
    """The largest relative error of known + constant."""
    return max(abs((known + constant) / measured - 1) for known, measured in known_measured)


def fit_constant(known_measured: list[tuple[float, float]]) -> float:
    """The constant ≥ 0 with the smallest worst error, to 0.1 MiB.

    An error e allows the constants that all intervals measured · (1 ± e) − known share; the
    smallest e for which there is one is found by bisection.
    """

    def allowed(error: float) -> tuple[float, float]:
        least = max(measured * (1 - error) - known for known, measured in known_measured)
        most = min(measured * (1 + error) - known for known, measured in known_measured)
        return max(0, least), most

    low, high = 0.0, 1.0
    while high - low > 1e-6:
        middle = (low + high) / 2
        least, most = allowed(middle)
        low, high = (low, middle) if least <= most else (middle, high)
    return round(sum(allowed(high)) / 2, 1)


def fit(
    shapes: Shapes, structures: list[Structure], cells: list[Measured]
) -> tuple[Structure, float, float]:
    """The structure and constant with the smallest worst error, and that error; or the first."""
    tried = []
    for structure in structures:
        known_measured = pairs(shapes, structure, cells)
        constant = fit_constant(known_measured)
        tried.append((structure, constant, worst_error(known_measured, constant)))
    return min(tried, key=lambda each: each[2])


# The structure that is used: qwen2.rs frees the gate before it makes up, and builds the mask on the
# host.
USED = Structure(Qwen2, host_mask=True, capacity_factor=CAPACITY_FACTOR)


def fits_table(shapes: Shapes, cells: list[Measured], traced: Measured) -> list[dict]:
    """Every structure, fitted with one constant and with two.

    Beside each stands its error for the traced run, which takes no part in the fit.
    """
    rows = []
    for mlp, host_mask, factors in product((Qwen2, Qwen2GateKept), (True, False), ((1,), FACTORS)):
        structures = [Structure(mlp, host_mask, factor) for factor in factors]
        structure, constant, error = fit(shapes, structures, cells)
        known = structure.known_mib(shapes, traced, wait="op")
        rows.append(
            {
                "mlp_buffers": 3 if mlp is Qwen2 else 4,
                "host_mask": "yes" if host_mask else "no",
                "constants": 1 if factors == (1,) else 2,
                "capacity_factor": structure.capacity_factor,
                "process_mib": constant,
                "worst_error_pct": 100 * error,
                "traced_error_pct": 100 * ((known + constant) / traced.peak_mib - 1),
                "used": "yes" if structure == USED and len(factors) > 1 else "no",
            }
        )
    return rows


def left_out_table(shapes: Shapes, cells: list[Measured]) -> list[dict]:
    """The structure that is used, fitted without one length at a time and asked for it."""
    structures = [replace(USED, capacity_factor=factor) for factor in FACTORS]
    rows = []
    for tokens in sorted({cell.prompt_tokens for cell in cells}):
        seen = [cell for cell in cells if cell.prompt_tokens != tokens]
        unseen = [cell for cell in cells if cell.prompt_tokens == tokens]
        structure, constant, error = fit(shapes, structures, seen)
        missed = worst_error(pairs(shapes, structure, unseen), constant)
        rows.append(
            {
                "left_out_tokens": tokens,
                "capacity_factor": structure.capacity_factor,
                "process_mib": constant,
                "fitted_error_pct": 100 * error,
                "predicted_error_pct": 100 * missed,
            }
        )
    return rows
