"""Cut a corpus to an exact number of a model's tokens and write them as JSON."""

import contextlib
import resource
from collections.abc import Iterator
from pathlib import Path

from kvpeak.base.numbers import GIB
from kvpeak.inputs.prompts import keep_prompt, prompt_record


def arguments(parser) -> None:
    parser.add_argument("--corpus", type=Path, required=True, help="text file, UTF-8")
    parser.add_argument("--model-folder", type=Path, required=True, help="models/NAME")
    parser.add_argument("--tokens", type=int, required=True, help="how many, exactly")
    parser.add_argument(
        "--longest",
        type=int,
        help="positions that the longest sequence takes with what is generated, at most the "
        "model's; default: --tokens",
    )
    parser.add_argument("--out", type=Path, required=True, help="JSON file to write")


MOST_MEMORY = 2 * GIB  # a tokenizer.json may ask for any amount


def run(given) -> None:
    with limited():
        record = prompt_record(given.corpus, given.model_folder, given.tokens, given.longest)
        keep_prompt(given.out, record)


@contextlib.contextmanager
def limited() -> Iterator[None]:
    """Let this process allocate at most MOST_MEMORY while the block runs; macOS has no such
    limit.
    """
    before = resource.getrlimit(resource.RLIMIT_DATA)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_DATA, (MOST_MEMORY, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)
