"""Cut a corpus to an exact number of a model's tokens and write them as JSON."""

import argparse
import sys
from pathlib import Path

from kvpeak.base.errors import UserError
from kvpeak.base.files import sha256_of, write_json
from kvpeak.inputs.model_folder import TOKENIZER, read_config, verify_model
from kvpeak.inputs.prompts import cut


def prompt(corpus: Path, folder: Path, tokens: int) -> dict:
    """The prompt's JSON: its token ids, and what they were cut from."""
    if tokens < 1:
        raise UserError(f"--tokens: {tokens}: expected at least 1")
    if not corpus.is_file():
        raise UserError(f"{corpus}: not found; expected the corpus, a text file")
    record = verify_model(folder)
    tokenizer = folder / TOKENIZER if TOKENIZER in record["files"] else None
    return {
        "model": record["name"],
        "corpus": corpus.name,
        "corpus_sha256": sha256_of(corpus),
        "tokenizer_sha256": record["files"][TOKENIZER]["sha256"] if tokenizer else None,
        "tokens": cut(corpus, tokenizer, read_config(folder), tokens),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--corpus", type=Path, required=True, help="text file, UTF-8")
    parser.add_argument("--model-folder", type=Path, required=True, help="models/NAME")
    parser.add_argument("--tokens", type=int, required=True, help="how many, exactly")
    parser.add_argument("--out", type=Path, required=True, help="JSON file to write")
    arguments = parser.parse_args()
    try:
        write_json(
            arguments.out, prompt(arguments.corpus, arguments.model_folder, arguments.tokens)
        )
    except UserError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
