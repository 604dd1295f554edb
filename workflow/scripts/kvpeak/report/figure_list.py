"""The list of the figures that were drawn: figures.json, beside them."""

import re
from pathlib import Path

from kvpeak.base.errors import UserError
from kvpeak.base.untrusted import read_json

INDEX = "figures.json"
FILE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*\.svg")
TEXTS = ("about", "title", "alt", "caption")


def read_figures(folder: Path) -> list[dict]:
    """The figures in `folder`: file, about, title, alt, caption, and sources below results/.

    None if there is no list. Raises UserError for one that plot.py did not write.
    """
    path = folder / INDEX
    try:
        found = read_json(path)
    except FileNotFoundError:
        return []
    if not isinstance(found, list):
        raise UserError(f"{path}: expected a list of figures")
    return [_checked(figure, f"{path}: [{number}]") for number, figure in enumerate(found)]


def _checked(figure: object, where: str) -> dict:
    if not isinstance(figure, dict):
        raise UserError(f"{where}: expected an object")
    file, sources = figure.get("file"), figure.get("sources") or []
    if not isinstance(file, str) or not FILE.fullmatch(file):
        raise UserError(f"{where}.file: {str(file)[:80]}: expected the name of an SVG file")
    if not isinstance(sources, list) or not all(isinstance(source, str) for source in sources):
        raise UserError(f"{where}.sources: expected a list of paths below results/")
    return figure | {name: str(figure.get(name) or "") for name in TEXTS} | {"sources": sources}
