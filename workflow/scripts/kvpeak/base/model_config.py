"""What a model's config.json says, whatever it calls it: the one place that knows the synonyms.

Configs of different families, and of different years, name one size in several ways, leave out what
follows from the rest, or write null for it. A model that sees or hears keeps its language model's
sizes in a part of its own.
"""

from dataclasses import dataclass

# The names of one thing, the usual one first.
SYNONYMS = {
    "layers": ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "num_transformer_layers"),
    "hidden": ("hidden_size", "n_embd", "d_model", "model_dim", "hidden_dim", "dim"),
    "intermediate": ("intermediate_size", "n_inner", "ffn_dim", "block_ff_dim"),
    "heads": ("num_attention_heads", "n_head", "n_heads", "num_heads"),
    "kv_heads": ("num_key_value_heads", "num_kv_heads", "n_kv_heads", "multi_query_group_num"),
    "head_dim": ("head_dim",),
    "vocab": ("vocab_size", "padded_vocab_size"),
    "positions": (
        *("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "seq_length"),
        *("max_sequence_length", "model_max_length", "max_context_length"),
    ),
    "dtype": ("dtype", "torch_dtype"),
}
# The most that is believed of a size; models have far less.
MOST = dict.fromkeys(SYNONYMS, 2**31) | {"layers": 1000}
TEXT_PARTS = ("text_config", "language_config")
# Keys that name files of code; a loader that follows them runs what a stranger wrote.
CODE_KEYS = ("model_file", "auto_map", "custom_pipelines")


@dataclass(frozen=True)
class Sizes:
    """A language model's sizes; None for one that the config does not say as a positive integer, or
    that is more than MOST.
    """

    layers: int | None
    hidden: int | None
    intermediate: int | None
    heads: int | None
    kv_heads: int | None
    head_dim: int | None
    vocab: int | None
    positions: int | None


def text_part(config: dict) -> dict:
    """The config of the language model inside; the outer keys stand where it has none."""
    for key in TEXT_PARTS:
        if isinstance(part := config.get(key), dict):
            return config | {name: value for name, value in part.items() if value is not None}
    return config


def key_of(config: dict, name: str) -> str:
    """The key by which the config says what SYNONYMS calls `name`, the usual one if none does."""
    config = text_part(config)
    names = SYNONYMS[name]
    return next((key for key in names if config.get(key) is not None), names[0])


def value_of(config: dict, name: str):
    """What the config says of `name`; None if nothing, or null."""
    return text_part(config).get(key_of(config, name))


def sizes(config: dict) -> Sizes:
    """The sizes, with those that follow from others: every head has its own keys and values, and
    the heads share the hidden size, where nothing else is said.
    """
    said = {name: _size(value_of(config, name), MOST[name]) for name in Sizes.__annotations__}
    heads, hidden = said["heads"], said["hidden"]
    shared = hidden // heads if heads and hidden and hidden % heads == 0 else None
    return Sizes(
        **said | {"kv_heads": said["kv_heads"] or heads, "head_dim": said["head_dim"] or shared}
    )


def dtype_of(config: dict) -> str | None:
    """The type of the weights, such as bfloat16; None if the config does not say it."""
    found = value_of(config, "dtype")
    return found.removeprefix("torch.") if isinstance(found, str) else None


def end_ids(config: dict) -> frozenset[int]:
    """The ids that end a text: none, one or several."""
    ids = text_part(config).get("eos_token_id")
    return frozenset(ids if isinstance(ids, list) else [] if ids is None else [ids])


def quantization(config: dict) -> dict | None:
    """How the weights are quantised, as mlx-lm's own key or as another tool's; None if they are
    not.
    """
    for part in (config, text_part(config)):
        for key in ("quantization", "quantization_config"):
            if isinstance(found := part.get(key), dict) and found:
                return found
    return None


def code_key(config: dict) -> str | None:
    """The first key by which the config asks for code of its own to be run; None if it does not."""
    parts = (config, text_part(config))
    return next((key for key in CODE_KEYS for part in parts if part.get(key)), None)


def _size(value, most: int) -> int | None:
    fits = isinstance(value, int) and not isinstance(value, bool) and 0 < value <= most
    return value if fits else None
