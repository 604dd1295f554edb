"""What a model's caches hold beside what its shapes say, and why the two differ."""

import re

from kvpeak.base.model_config import sizes, text_part
from kvpeak.inputs.shapes import ITEMSIZE

# mlx-lm's caches and ours that keep every token; the others keep a window, or a state.
EVERY_TOKEN = re.compile(r"(Quantized|Cat|CatContiguous|Preallocated|Concatenate)?(KV)?Cache")
QUANTISED = re.compile(r"quantized-(\d+)")
GROUP = 64  # values that share a scale and a bias


def layers_of(kv_layers: str) -> dict[str, int]:
    """How many layers keep each kind: `layers 0-2, 4: KVCache; layer 3: X` → KVCache 4, X 1."""
    parts = re.findall(r"layers? (\d[\d., -]*): (\w+)", kv_layers)
    return {kind: sum(map(_count, names.split(", "))) for names, kind in parts}


def difference(
    config: dict,
    dtype: str,
    kv_cache: str,
    kv_layers: str,
    measured: float | None,
    formula: float | None,
) -> str:
    """Why one token's keys and values are not the bytes that the shapes say; '' if they are,
    and where one of them is not known.

    formula: 2 · layers · KV heads · head size · bytes, of all the model's layers.
    """
    if None in (measured, formula) or measured == formula:
        return ""
    layers = sizes(config).layers
    keeping = sum(
        count for kind, count in layers_of(kv_layers).items() if EVERY_TOKEN.fullmatch(kind)
    )
    why = []
    if keeping != layers:
        why.append(
            f"{keeping} of {layers} layers keep{'s' * (keeping == 1)} every token"
            if keeping < layers
            else f"{keeping} caches in {layers} layers"
        )
    expected, itemsize = formula * keeping / layers, ITEMSIZE[dtype]
    if quantised := QUANTISED.fullmatch(kv_cache):
        bits = int(quantised[1])
        expected *= (bits + 2 * 8 * itemsize / GROUP) / (8 * itemsize)
        why.append(f"{bits} bits, a scale and a bias for each {GROUP} values")
    if measured != expected:
        why.append(_other_sizes(text_part(config), measured, keeping * itemsize))
    return "; ".join(why)


def _other_sizes(config: dict, measured: float, one: float) -> str:
    """What a layer keeps of each token; one: the bytes of one value in each of the layers."""
    keys = ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
    latent, plain, rotated, value = (config.get(key) or 0 for key in keys)
    heads = sizes(config).heads or 0
    if latent and measured == (latent + rotated) * one:
        return f"a latent of {latent} values and {rotated} of the position, not the heads"
    if latent and measured == heads * (plain + rotated + value) * one:
        return f"keys of {plain + rotated} and values of {value} for each of {heads} heads"
    return "other sizes than the config's KV heads · head size"


def _count(names: str) -> int:
    """How many layers `3`, `1.0` or `0-2` are."""
    first, _, last = names.partition("-")
    return int(last) - int(first) + 1 if last else 1
