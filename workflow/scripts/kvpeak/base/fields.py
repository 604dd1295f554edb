"""Several texts in one field of a CSV file: `a; b`. A semicolon or a backslash inside a text is
escaped.
"""

import re
from collections.abc import Iterable


def join_texts(texts: Iterable[str]) -> str:
    """The texts as one field, in order; empty ones are left out."""
    return "; ".join(re.sub(r"([\\;])", r"\\\1", text) for text in texts if text)


def split_texts(field: str | None) -> list[str]:
    """The texts of a field that `join_texts` wrote; an empty field holds none."""
    found = re.findall(r"((?:\\.|[^\\;])+)(?:; ?|$)", field or "", flags=re.DOTALL)
    return [re.sub(r"\\(.)", r"\1", text, flags=re.DOTALL) for text in found]
