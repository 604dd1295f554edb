"""The longest prompt whose predicted peak fits into a memory."""

from dataclasses import dataclass

from kvpeak.inputs.shapes import Shapes
from kvpeak.replay.prediction import predict
from kvpeak.replay.workload import workload

# By how much the replay misses a length that took no part in its fit, at most
# (results/replay/left_out.csv). Each end is widened by it.
ERROR = 0.046
STEP = 512  # tokens between the lengths that are tried first; peaks rise and fall between classes


@dataclass(frozen=True)
class Longest:
    """Prompts in tokens, 0 if none fits; `low` and `high` allow for the replay's error.

    Every shorter prompt fits as well, as far as multiples of STEP tell.
    """

    tokens: int
    low: int
    high: int
    peak_mib: float  # of `tokens`; 0 without one
    all_positions: bool


def longest(
    shapes: Shapes, kv_cache: str, slack: int | None, memory_mib: float, **options
) -> Longest:
    """The longest prompt, with `generate` tokens after it, that fits; `options` are Workload's."""
    generate = options.get("generate", 128)
    most = shapes.positions - generate

    def peak(tokens: int) -> float:
        return predict(shapes, workload(tokens, kv_cache, **options), slack)["peak_mib"]

    tokens, low, high = (
        _last(peak, memory_mib * scale, most) for scale in (1, 1 / (1 + ERROR), 1 + ERROR)
    )
    return Longest(tokens, low, high, peak(tokens) if tokens else 0.0, tokens == most)


def _last(peak, memory_mib: float, most: int) -> int:
    """The last length before the first that does not fit."""
    below = 0
    for tokens in [*range(STEP, most, STEP), most]:
        if peak(tokens) > memory_mib:
            return _between(peak, memory_mib, below, tokens)
        below = tokens
    return most


def _between(peak, memory_mib: float, fits: int, too_long: int) -> int:
    while too_long - fits > 1:
        middle = (fits + too_long) // 2
        if peak(middle) <= memory_mib:
            fits = middle
        else:
            too_long = middle
    return fits
