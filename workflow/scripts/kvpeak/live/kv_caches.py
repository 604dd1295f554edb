"""The KV caches of a cell: ours, which decide the memory that is measured, and mlx-lm's own.

All are used through mlx-lm's interface. Keys and values come and go as [batch, KV heads, tokens,
head size]. A cell's cache takes the place of a model's plain KV caches; the rest of what the model
keeps (windows, convolutions, recurrent states) stays its own.
"""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import mlx.core as mx

from kvpeak.base.errors import Unsupported
from kvpeak.base.kv_caches import kv_caches_of
from kvpeak.live.loading import mlx_lm_module

_mlx_lm = mlx_lm_module("cache")

# What RotatingKVCache keeps of the beginning, and QuantizedKVCache's group, where mlx-lm makes
# them.
ROTATING_KEEP = 4
QUANTIZED_GROUP = 64
UPDATE = "update_and_fetch"


class CatCache(_mlx_lm.KVCache):
    """Concatenates: every step allocates keys and values one token longer and frees the old
    ones.
    """

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        if self.keys is not None:
            keys = mx.concatenate([self.keys[..., : self.offset, :], keys], axis=2)
            values = mx.concatenate([self.values[..., : self.offset, :], values], axis=2)
        self.keys, self.values = keys, values
        self.offset = keys.shape[2]
        return keys, values


class CatContiguousCache(CatCache):
    """Concatenates copies in row-major order.

    In MLX it differs from CatCache at prefill only, where it copies the values, which models pass
    as a transposed view: mx.concatenate's result is contiguous.
    """

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

    `name` is `mlx-lm` (whatever the model makes itself), `cat`, `cat-contiguous`, `prealloc` (of
    `length` tokens), `rotating-N` (the first ROTATING_KEEP and the last tokens, N in all), or
    `quantized-4` or `-8` (bits). Each but the first takes the place of the model's plain KV caches.
    Raises Unsupported for another name, and for a model that has no plain one.
    """
    make = _maker(name, length)
    own = _mlx_lm.make_prompt_cache(model)
    if make is None:
        return own
    kinds = {type(cache).__name__ for _, cache in leaves(own)}
    if _mlx_lm.KVCache.__name__ not in kinds:
        raise Unsupported(
            f"kv_cache {name}: takes the place of a model's plain KV caches, and this one has "
            f"none: {layers_text(own)}"
        )
    return [_replaced(cache, make) for cache in own]


def leaves(caches: list) -> Iterator[tuple[str, object]]:
    """The caches inside, each with its layer: "3", or "3.1" for the second of several in layer 3.

    A layer's number is its place among those that keep something, from 0.
    """
    for number, cache in enumerate(caches):
        if isinstance(cache, _mlx_lm.CacheList):
            for inner, each in leaves(list(cache.caches)):
                yield f"{number}.{inner}", each
        elif cache is not None:
            yield str(number), cache


def layers_text(caches: list) -> str:
    """Which layers keep what: `layers 0-2, 4: CatCache; layer 3: ArraysCache`."""
    kinds: dict[str, list[str]] = {}
    for layer, cache in leaves(caches):
        kinds.setdefault(type(cache).__name__, []).append(layer)
    return "; ".join(
        f"layer{'s' * (len(layers) > 1)} {_ranges(layers)}: {kind}"
        for kind, layers in kinds.items()
    )


@contextmanager
def last_update(caches: list, own: list) -> Iterator[list[str]]:
    """Note which cache was given keys and values last, while the block runs, of those that are not
    what the model makes itself (`own`).

    Yields a list whose last entry names it: `layer 3 (QuantizedKVCache)`.
    """
    noted: list[str] = []
    watched = [
        named
        for named, (_, kept) in zip(leaves(caches), leaves(own), strict=True)
        if hasattr(named[1], UPDATE) and type(named[1]) is not type(kept)
    ]
    for layer, cache in watched:
        name = f"layer {layer} ({type(cache).__name__})"
        setattr(cache, UPDATE, _noting(getattr(cache, UPDATE), noted, name))
    try:
        yield noted
    finally:
        for _, cache in watched:
            delattr(cache, UPDATE)


def _noting(update: Callable, noted: list[str], name: str) -> Callable:
    def noting(*arguments, **options):
        noted.append(name)
        return update(*arguments, **options)

    return noting


def _replaced(cache, make: Callable):
    if type(cache) is _mlx_lm.KVCache:
        return make()
    if isinstance(cache, _mlx_lm.CacheList):
        return _mlx_lm.CacheList(*(_replaced(each, make) for each in cache.caches))
    return cache


def _maker(name: str, length: int) -> Callable | None:
    """What makes one cache of that name; None: the model does."""
    full_length = {
        "cat": CatCache,
        "cat-contiguous": CatContiguousCache,
        "prealloc": lambda: PreallocatedCache(length),
    }
    if name == "mlx-lm":
        return None
    if name in full_length:
        return full_length[name]
    if (rotating := re.fullmatch(r"rotating-(\d+)", name)) and int(rotating[1]) > ROTATING_KEEP:
        return lambda: _mlx_lm.RotatingKVCache(int(rotating[1]), keep=ROTATING_KEEP)
    if quantized := re.fullmatch(r"quantized-([48])", name):
        return lambda: _mlx_lm.QuantizedKVCache(QUANTIZED_GROUP, int(quantized[1]))
    known = ", ".join(kv_caches_of("mlx"))
    raise Unsupported(f"kv_cache {name}: expected {known}; N above {ROTATING_KEEP}")


def _ranges(names: list[str]) -> str:
    """`0-2, 4` for 0, 1, 2 and 4; a part of a layer stands alone."""
    shown: list[list[str]] = []
    for name in names:
        last = shown[-1][-1] if shown else ""
        if name.isdecimal() and last.isdecimal() and int(name) == int(last) + 1:
            shown[-1][1:] = [name]
        else:
            shown.append([name])
    return ", ".join("-".join(each) for each in shown)
