"""Prompts cut from a corpus to an exact number of a model's tokens."""

from pathlib import Path

from kvpeak.errors import UserError
from kvpeak.model_files import read_config


def corpus_tokens(corpus: bytes, tokenizer: Path | None, vocabulary: int) -> list[int]:
    """All token ids of the corpus, without any that a tokenizer would add at the ends.

    Without a tokenizer the ids are the bytes modulo the vocabulary's size.
    """
    if tokenizer is None:
        return [byte % vocabulary for byte in corpus]
    from tokenizers import Tokenizer  # here: a model of bytes needs none

    try:
        tokens = Tokenizer.from_file(str(tokenizer))
    except Exception as error:  # the library raises nothing narrower
        raise UserError(f"{tokenizer}: not a tokenizer ({error}); make the model again") from None
    try:
        return tokens.encode(corpus.decode(), add_special_tokens=False).ids
    except UnicodeDecodeError as error:
        raise UserError(f"the corpus is not UTF-8 text (byte {error.start})") from None


def cut(corpus: Path, folder: Path, tokens: int) -> list[int]:
    """The first `tokens` token ids of the corpus for the model in `folder`.

    Raises UserError when the corpus, or the model's positions, are fewer.
    """
    config = read_config(folder)
    text_config = config.get("text_config", config)
    positions = text_config.get("max_position_embeddings")
    if positions is not None and tokens > positions:
        raise UserError(f"{folder}: {tokens} tokens, but the model has {positions} positions")
    path = folder / "tokenizer.json"
    ids = corpus_tokens(
        corpus.read_bytes(), path if path.exists() else None, text_config["vocab_size"]
    )
    if tokens > len(ids):
        raise UserError(
            f"{corpus}: {tokens} tokens asked for, but it has only {len(ids)} of this model's; "
            "shorten the prompt or give a longer corpus"
        )
    return ids[:tokens]
