"""Values as Markdown: nothing that was measured or configured can change the document's
structure.
"""

import math
import re

from kvpeak.base.numbers import signed
from kvpeak.base.text import plain


class Markdown(str):
    """Text that already is Markdown and is not escaped again."""

    __slots__ = ()


def escape(value) -> Markdown:
    """Spell any value as one line of plain text that Markdown shows as it is; None and NaN are
    '–'.
    """
    if isinstance(value, Markdown):
        return value
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return Markdown("–")
    text = plain(str(value))
    text = re.sub(r"([\\`*_\[\]<>|~$#!&@])", r"\\\1", text)
    # viewers make a link of a bare address
    text = re.sub(r"\b(https?|ftp):(?=//)", r"\1\\:", text, flags=re.IGNORECASE)
    return Markdown(re.sub(r"\b(www)\.", r"\1\\.", text, flags=re.IGNORECASE))


def anchor(heading: str) -> str:
    """The anchor that GitHub gives a heading: lower case, hyphens for spaces, no punctuation."""
    kept = re.sub(r"[^\w\- ]", "", heading.lower())
    return kept.replace(" ", "-")


def link(text: str, target: str) -> Markdown:
    """A link; what follows # in `target` is the heading that it leads to."""
    file, _, heading = target.partition("#")
    return Markdown(f"[{escape(text)}]({file}#{anchor(heading)})")


def fold(summary: str, text: Markdown) -> Markdown:
    """A block that a reader opens, in the HTML that Markdown viewers know."""
    words = plain(str(summary)).replace("&", "&amp;").replace("<", "&lt;")
    return Markdown(f"<details>\n<summary>{words}</summary>\n\n{text}\n\n</details>")


def code(value) -> Markdown:
    """Spell a value as inline code; a pipe inside would end a table's column, so it is escaped."""
    text = plain(str(value))
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * (longest + 1)
    pad = " " if text.startswith("`") or text.endswith("`") else ""
    return Markdown(f"{fence}{pad}{text}{pad}{fence}".replace("|", r"\|"))


def number(value, digits: int = 0) -> Markdown:
    """A number with thousands separators, e.g. 14,872 or −0.1; '–' if there is none."""
    if value is None or value == "" or (isinstance(value, float) and math.isnan(value)):
        return Markdown("–")
    return Markdown(signed(float(value), f",.{digits}f"))


def times(value, digits: int = 2) -> Markdown:
    """A ratio, e.g. 4.26×."""
    shown = number(value, digits)
    return shown if shown == "–" else Markdown(f"{shown}×")


def table(header: list[str], rows: list[list], right: str = "") -> Markdown:
    """A Markdown table. `right` holds one character per column: r aligns it right."""
    alignment = [("--:" if mark == "r" else "---") for mark in right.ljust(len(header))]
    lines = [header, alignment, *([escape(value) for value in row] for row in rows)]
    return Markdown("\n".join(f"| {' | '.join(line)} |" for line in lines))
