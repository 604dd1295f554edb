"""Units, and numbers as text."""

import math
import re

KIB, MIB, GIB = 2**10, 2**20, 2**30  # bytes
LARGEST = 10**24  # no figure of a cell is larger; what says so is damaged, or made to harm
MOST_SIZE = 2**63 - 1  # bytes: what programs and libraries take for a size
_BYTES = {"MiB": MIB, "GiB": GIB, "MB": 10**6, "GB": 10**9}


def bytes_of(text: str) -> int:
    """The bytes of a size such as 16GiB, 16 GB or 512MiB. Raises ValueError."""
    found = re.fullmatch(rf"(\d+(?:\.\d+)?) ?({'|'.join(_BYTES)})", text.strip())
    if not found or not float(found[1]):
        raise ValueError(f"{text!r:.80}: expected a size such as 16GiB or 512MiB")
    size = float(found[1]) * _BYTES[found[2]]
    if size > MOST_SIZE:
        raise ValueError(f"{text!r:.80}: expected less than 2^63 bytes")
    return round(size)


def bounded(text: object) -> float:
    """A figure of a cell. Raises ValueError for what is none: nan, infinity, or beyond LARGEST."""
    value = float(text)
    if not abs(value) <= LARGEST:
        raise ValueError(f"{text}: no figure of a cell")
    return value


def signed(value: float, form: str) -> str:
    """A number with a true minus, and with no sign where it is shown as zero."""
    text = format(value, form).replace("-", "−")
    return text if text.strip("+−0.") else text.lstrip("+−")


def percent(value: float | None, digits: int = 1, sign: bool = True) -> str:
    """A share as a percentage: 0.05 → +5.0 %, without `sign` 5.0 %; '–' if there is none."""
    if value is None or math.isnan(value):
        return "–"
    return signed(100 * value, f"{'+' if sign else ''},.{digits}f") + " %"


def rounded(value: float, half_width: float | None = None) -> str:
    """A figure with the digits that its 95 % interval, value ± half_width, supports.

    The last digit shown is at the place of the half width's first: 112.37 ± 8.1 is 112, and
    308,228.8 ± 21,000 is 310,000. There are two digits at least, and two without an interval.
    """
    if not value or not math.isfinite(value):
        return f"{value:,.0f}"
    exponent = math.floor(math.log10(abs(value))) - 1
    if half_width and math.isfinite(half_width):
        exponent = min(math.floor(math.log10(half_width)), exponent)
    shown = round(value, -exponent)
    return signed(shown, f",.{max(0, -exponent)}f")
