"""Fit the replay's constants to measured peaks, and say how well each structure does."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import product

from kvpeak.base.numbers import MIB
from kvpeak.inputs.shapes import Shapes
from kvpeak.replay.prediction import run_peaks
from kvpeak.replay.qwen2 import Qwen2
from kvpeak.replay.script import Script
from kvpeak.replay.trace import host_mask_bytes
from kvpeak.replay.weights import weights_bytes
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


class Qwen2ValueKept(Qwen2):
    """As qwen2.rs has it: the bias-added v lives to the end of the attention."""

    keeps_v = True


class Qwen2StoredKept(Qwen2):
    """k and v live to the end of the attention although a prealloc cache took them in."""

    keeps_stored = True


@dataclass(frozen=True)
class Structure:
    """What the published text leaves open, as one choice of each."""

    family: type[Qwen2]
    host_mask: bool  # whether the mask's copy in ordinary memory is in the footprint at the peak
    capacity_factor: int

    def known_mib(self, shapes: Shapes, cell: Measured, wait: str = "none") -> float:
        """The predicted peak of a cell without the process constant."""
        work = workload(cell.prompt_tokens, cell.kv_cache, wait=wait)
        if cell.kv_cache == "prealloc":
            tokens = cell.prompt_tokens + work.generate
            work = replace(work, capacity=self.capacity_factor * tokens)
        pool = max(run_peaks(shapes, work, cell.slack, self.family))
        host = host_mask_bytes(shapes, work) if self.host_mask else 0
        return (pool + host + weights_bytes(shapes)) / MIB


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
    families, masks, rooms = (Qwen2, Qwen2GateKept), (True, False), ((1,), FACTORS)
    for family, host_mask, factors in product(families, masks, rooms):
        structures = [Structure(family, host_mask, factor) for factor in factors]
        structure, constant, error = fit(shapes, structures, cells)
        known = structure.known_mib(shapes, traced, wait="op")
        rows.append(
            {
                "mlp_buffers": 3 if family is Qwen2 else 4,
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


# Everything that was chosen: what, the options with the one that is used first, and where it is
# from.
CHOICES = (
    (
        "v, once the prefill has copied it",
        {"dropped": USED, "kept to the end of the attention": replace(USED, family=Qwen2ValueKept)},
        "the allocation log, against qwen2.rs, which keeps it",
    ),
    (
        "k and v, once a prealloc cache took them in",
        {
            "dropped": USED,
            "kept to the end of the attention": replace(USED, family=Qwen2StoredKept),
        },
        "free: nothing published decides it",
    ),
    (
        "a prealloc cache's room, times the prompt and the generated tokens",
        {str(factor): replace(USED, capacity_factor=factor) for factor in (2, 1, 4)},
        "fitted to the 18 peaks",
    ),
    (
        "the mask's copy on the host",
        {"counts at the peak": USED, "does not": replace(USED, host_mask=False)},
        "assumed: qwen2.rs builds it, but its pages may be gone at the peak",
    ),
    (
        "the MLP's gate",
        {"dropped before up is made": USED, "kept": replace(USED, family=Qwen2GateKept)},
        "qwen2.rs",
    ),
)


def choices_table(
    shapes: Shapes, cells: list[Measured], equal_layers: Callable[[type[Qwen2]], int]
) -> list[dict]:
    """Each choice and its options, everything else as it is used and the process constant fitted
    anew.

    `equal_layers` counts the layers of the allocation log that a family reproduces.
    """
    rows = []
    for choice, options, source in CHOICES:
        for option, structure in options.items():
            _, constant, error = fit(shapes, [structure], cells)
            rows.append(
                {
                    "choice": choice,
                    "option": option,
                    "used": "yes" if structure == USED else "no",
                    "source": source,
                    "log_equal": equal_layers(structure.family),
                    "process_mib": constant,
                    "worst_error_pct": 100 * error,
                }
            )
    return rows
