"""Units, and numbers as text."""

import math

KIB, MIB, GIB = 2**10, 2**20, 2**30  # bytes


def signed(value: float, form: str) -> str:
    """A number with a true minus, and with no sign where it is shown as zero."""
    text = format(value, form).replace("-", "−")
    return text if text.strip("+−0.") else text.lstrip("+−")


def percent(value: float | None, digits: int = 1, sign: bool = True) -> str:
    """A share as a percentage: 0.05 → +5.0 %, without `sign` 5.0 %; '–' if there is none."""
    if value is None or math.isnan(value):
        return "–"
    return signed(100 * value, f"{'+' if sign else ''},.{digits}f") + " %"
