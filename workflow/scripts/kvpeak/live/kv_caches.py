"""The KV caches of a cell: ours, which decide the memory that is measured, and mlx-lm's own.

All are used through mlx-lm's interface. Keys and values come and go as [batch, KV heads, tokens, head size].
"""

import re
from collections.abc import Callable

import mlx.core as mx

from kvpeak.base.errors import Unsupported
from kvpeak.base.kv_caches import kv_caches_of
from kvpeak.live.loading import mlx_lm_module

_mlx_lm = mlx_lm_module("cache")

# What RotatingKVCache keeps of the beginning, and QuantizedKVCache's group, where mlx-lm makes them itself.
ROTATING_KEEP = 4
QUANTIZED_GROUP = 64


class CatCache(_mlx_lm.ConcatenateKVCache):
    """Concatenates: every step allocates keys and values one token longer and frees the old ones."""

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        if self.keys is not None:
            keys = mx.concatenate([self.keys, keys], axis=2)
            values = mx.concatenate([self.values, values], axis=2)
        self.keys, self.values = keys, values
        self.offset = keys.shape[2]
        return keys, values


class CatContiguousCache(CatCache):
    """Concatenates copies in row-major order. In MLX it differs from CatCache at prefill only, where
    it copies the values, which models pass as a transposed view: mx.concatenate's result is contiguous."""

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        return super().update_and_fetch(mx.contiguous(keys), mx.contiguous(values))


class PreallocatedCache(_mlx_lm.KVCache):
    """Allocates all of `length` tokens with the first ones and writes each step's in place."""

    def __init__(self, length: int):
        super().__init__()
        self.length = length

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        if self.keys is None:
            self.keys, self.values = (
                mx.zeros((*new.shape[:2], self.length, new.shape[3]), new.dtype)
                for new in (keys, values)
            )
        start, self.offset = self.offset, self.offset + keys.shape[2]
        self.keys[..., start : self.offset, :] = keys
        self.values[..., start : self.offset, :] = values
        return self.keys[..., : self.offset, :], self.values[..., : self.offset, :]


def make_caches(name: str, model, length: int) -> list:
    """The caches of one generation, in the order in which `model` takes them.

    `name` is `mlx-lm` (whatever the model makes itself), `cat`, `cat-contiguous`, `prealloc` (of `length`
    tokens), `rotating-N` (the first ROTATING_KEEP and the last tokens, N in all), or `quantized-4` or `-8`
    (bits). Raises Unsupported for another name, and where one of the model's own caches is no plain KV cache;
    of a model with sliding windows the three full-length caches keep everything and mask it.
    """
    make, replaces = _cache_kind(name, length)
    own = _mlx_lm.make_prompt_cache(model)
    if make is None:
        return own
    for cache in own:
        if type(cache) not in replaces:
            raise Unsupported(
                f"kv_cache {name}: cannot take the place of the model's own {type(cache).__name__}; use mlx-lm"
            )
    return [make() for _ in own]


def _cache_kind(name: str, length: int) -> tuple[Callable | None, tuple[type, ...]]:
    """What makes one cache (None: the model does), and which of mlx-lm's caches it can stand for."""
    plain, windowed = _mlx_lm.KVCache, _mlx_lm.RotatingKVCache
    full_length = {
        "cat": CatCache,
        "cat-contiguous": CatContiguousCache,
        "prealloc": lambda: PreallocatedCache(length),
    }
    if name == "mlx-lm":
        return None, ()
    if name in full_length:
        return full_length[name], (plain, windowed)
    if (rotating := re.fullmatch(r"rotating-(\d+)", name)) and int(rotating[1]) > ROTATING_KEEP:
        return lambda: _mlx_lm.RotatingKVCache(int(rotating[1]), keep=ROTATING_KEEP), (plain,)
    if quantized := re.fullmatch(r"quantized-([48])", name):
        return lambda: _mlx_lm.QuantizedKVCache(QUANTIZED_GROUP, int(quantized[1])), (plain,)
    known = ", ".join(kv_caches_of("mlx"))
    raise Unsupported(f"kv_cache {name}: expected {known} (N above {ROTATING_KEEP})")
