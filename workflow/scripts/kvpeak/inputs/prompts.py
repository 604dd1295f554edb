"""Prompts cut from a corpus to an exact number of a model's tokens."""

import filecmp
from pathlib import Path

from kvpeak.base import layout
from kvpeak.base.errors import Unavailable, UserError
from kvpeak.base.files import sha256_of, write_json
from kvpeak.base.made import write_copy
from kvpeak.base.model_config import sizes
from kvpeak.base.untrusted import read_bytes, read_object, read_text
from kvpeak.inputs.model_folder import TOKENIZER, read_config, verify_model

BYTES = 256  # ids of a model without a tokenizer, if its config does not say how many it has


def corpus_tokens(corpus: Path, tokenizer: Path | None, vocabulary: int) -> list[int]:
    """All token ids of a corpus, without those that a tokenizer would add at its ends.

    Without a tokenizer the ids are the bytes modulo the vocabulary's size. Raises UserError for a
    tokenizer that cannot be used.
    """
    if tokenizer is None:
        return [byte % vocabulary for byte in read_bytes(corpus)]
    from tokenizers import Tokenizer  # here: a model of bytes needs none

    text, said = read_text(corpus), read_text(tokenizer)
    try:
        loaded = Tokenizer.from_str(said)
        loaded.no_padding()  # nor may the file ask for more tokens than the text has, or fewer
        loaded.no_truncation()
        return loaded.encode(text, add_special_tokens=False).ids
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # the library raises nothing narrower; a panic is no Exception
        raise UserError(f"{tokenizer}: {error}; make the model again") from None


def cut(
    corpus: Path, tokenizer: Path | None, config: dict, tokens: int, longest: int | None = None
) -> list[int]:
    """The first `tokens` token ids of the corpus for a model with this config.json.

    longest: positions that the longest sequence made of them takes; None: all of them are one.
    Raises Unavailable when the model's positions, or the corpus's tokens, are fewer, and UserError
    when an id is beyond the model's vocabulary.
    """
    said, taken = sizes(config), tokens if longest is None else longest
    if said.positions is not None and taken > said.positions:
        raise Unavailable(
            f"{taken} positions asked for, but the model has {said.positions}; shorten the prompt, "
            "or generate fewer tokens"
        )
    ids = corpus_tokens(corpus, tokenizer, said.vocab or BYTES)
    if tokens > len(ids):
        raise Unavailable(
            f"{corpus}: {tokens} tokens asked for, but it has {len(ids)} of this model's; "
            "shorten the prompt or give a longer corpus"
        )
    check_ids(ids[:tokens], said.vocab, tokenizer or corpus)
    return ids[:tokens]


def check_ids(ids: list[int], vocabulary: int | None, where: Path | str) -> None:
    """Raise UserError if an id is not one of the model's; None: how many it has is not known.

    MLX does not check: it would read beyond the embedding.
    """
    beyond = [number for number in ids if number < 0 or (vocabulary and number >= vocabulary)]
    if beyond:
        raise UserError(
            f"{where}: token id {beyond[0]}: the model's vocabulary has {vocabulary} ids, from 0; "
            "use the tokenizer that belongs to the model"
        )


def prompt_record(corpus: Path, folder: Path, tokens: int, longest: int | None = None) -> dict:
    """The prompt's JSON for the model in `folder`: its token ids, and what they were cut from.

    Raises UserError, and Unavailable where the corpus or the model has not so many; as `cut`.
    """
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
        "tokens": cut(corpus, tokenizer, read_config(folder), tokens, longest),
    }


def keep_prompt(file: Path, record: dict) -> None:
    """Write a prompt that was cut here, and its copy if it is the project's. Raises OSError."""
    write_json(file, record)
    if file.is_relative_to(layout.PROMPTS):
        write_json(layout.local_prompt(file), record)


def restore_prompt(file: Path) -> None:
    """Put back the prompt that was cut here, with its time, if another one lies there.

    The other would have every cell of the prompt measured again. Raises UserError.
    """
    own = layout.local_prompt(file)
    try:
        if filecmp.cmp(file, own, shallow=False):
            return
        said = read_object(own)
    except (OSError, UserError):
        return
    write_copy(file, said, own)


def check_prompt(
    file: Path, corpus: Path, folder: Path, tokens: int, longest: int | None = None
) -> None:
    """Raise UserError if a prompt's file, which may be somebody else's, does not hold the ids that
    prompt_record cuts. One that does has a copy from then on.
    """
    expected, said = prompt_record(corpus, folder, tokens, longest)["tokens"], read_object(file)
    if said.get("tokens") != expected:
        raise UserError(
            f"{file}: its token ids are not the first {tokens} of {corpus} for {folder}; delete "
            "it, and snakemake makes it again"
        )
    if not (own := layout.local_prompt(file)).exists():
        write_copy(own, said, file)
