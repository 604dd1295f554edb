"""Several texts in one field of a CSV file: `a; b`. A semicolon or a backslash inside a text is
escaped.
"""

import re
from collections.abc import Iterable

# The end of a text, what is escaped, what is not: one of them fits everywhere, so that none is
# looked for twice.
_PIECE = re.compile(r"; ?|\\(.)|[^\\;]+|\\", re.DOTALL)


def join_texts(texts: Iterable[str]) -> str:
    """The texts as one field, in order; empty ones are left out."""
    return "; ".join(re.sub(r"([\\;])", r"\\\1", text) for text in texts if text)


def split_texts(field: str | None) -> list[str]:
    """The texts of a field that `join_texts` wrote; an empty field holds none."""
    texts: list[list[str]] = [[]]
    for found in _PIECE.finditer(field or ""):
        if found[0].startswith(";"):
            texts.append([])
        else:
            texts[-1].append(found[1] or found[0])
    return ["".join(pieces) for pieces in texts if pieces]
