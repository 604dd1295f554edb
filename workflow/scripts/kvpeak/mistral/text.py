"""Token ids to text and back: mistral.rs takes text, and kvpeak's prompts are ids."""

from collections.abc import Callable

from kvpeak.base.errors import UserError


def prompt_text(
    ids: list[int], added: int, decode: Callable[[list[int]], str], encode: Callable[[str], list]
) -> str:
    """The text that is `ids` for the engine's tokenizer, which puts `added` tokens before it.

    The last ids are left out for those. Raises UserError if the text is another number of tokens.
    """
    kept = ids[: len(ids) - added]
    text = decode(kept)
    found = len(encode(text))
    if not kept or found != len(kept):
        raise UserError(
            f"the prompt's {len(kept)} tokens are {found} for mistral.rs, whose tokenizer cuts the "
            "text "
            "otherwise; expected a model whose tokenizer.json is the one of its weights"
        )
    return text


def answer_ids(text: str, tokens: int, encode: Callable[[str], list[int]]) -> list[int] | None:
    """The ids of an answer's text, None if they are not as many as the engine says it gave."""
    ids = encode(text)
    return ids if len(ids) == tokens else None
