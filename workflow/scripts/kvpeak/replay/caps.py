"""Caps on reuse by their names: how many times its request's size class a reused buffer may be."""

import re

from kvpeak.base.errors import Unsupported

COMPARED = {"none": None, "4x": 2}  # Candle as released, and pull request 3851's cap; name → slack


def slack_of(cap: str) -> int | None:
    """The cap's size classes: none → None, 1x → 0, 4x → 2. Raises Unsupported."""
    if cap == "none":
        return None
    times = re.fullmatch(r"([1-9]\d*)x", cap)
    if not times or int(times[1]).bit_count() != 1:
        raise Unsupported(f"cap {cap}: expected none, 1x, 2x, 4x or another power of two")
    return int(times[1]).bit_length() - 1


def cap_of(slack: int | None) -> str:
    """The name of the cap with this many size classes: None → none, 2 → 4x."""
    return "none" if slack is None else f"{2**slack}x"
