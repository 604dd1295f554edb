"""Build the library that puts another buffer pool into MLX (docs/pools.md).

It is built against the headers of the MLX that this Python has, and kept under the hash of its
sources, those headers and the compiler.
"""

import argparse
from pathlib import Path

from kvpeak.base.errors import Unavailable, UserError
from kvpeak.base.files import write_json


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", type=Path, required=True, help="what it was made of, as JSON")


def run(given: argparse.Namespace) -> None:
    from kvpeak.live import pool

    try:
        built = pool.build()
    except UserError as error:
        raise Unavailable(str(error)) from None
    write_json(given.out, {"library": built.name, **pool.made_of()})
    print(built.name)
