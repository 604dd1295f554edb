"""The KV caches that a cell may ask for: the only list of them. docs/architecture.md says what a
new one takes.
"""

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class KVCache:
    """One cache, or one family with a number N in its name.

    words: what it does, for a table. keeps_all: every token is kept as it is. regrows: each step
    allocates keys and values one token longer and frees the old ones.
    """

    name: str
    engines: tuple[str, ...]
    words: str
    keeps_all: bool = False
    regrows: bool = False

    @property
    def pattern(self) -> str:
        """A regular expression of the whole name."""
        return re.escape(self.name).replace(r"\-N", r"-[1-9]\d{0,8}")


KV_CACHES = (
    KVCache(
        "cat",
        ("mlx", "candle-replay"),
        "keys and values concatenated with the new token's at every step",
        keeps_all=True,
        regrows=True,
    ),
    KVCache(
        "cat-contiguous",
        ("mlx", "candle-replay"),
        "as cat, then copied to lie contiguously",
        keeps_all=True,
        regrows=True,
    ),
    KVCache(
        "prealloc",
        ("mlx", "candle-replay"),
        "the full length allocated before the prefill",
        keeps_all=True,
    ),
    KVCache(
        "mlx-lm", ("mlx",), "mlx-lm's own, which grows by 256 tokens at a time", keeps_all=True
    ),
    KVCache(
        "own",
        ("mistralrs",),
        "mistral.rs's own, which grows by 512 tokens at a time",
        keeps_all=True,
    ),
    KVCache("paged", ("mistralrs",), "mistral.rs's blocks, all reserved at the start"),
    KVCache("rotating-N", ("mlx",), "the first and the last tokens, N in all"),
    KVCache("quantized-4", ("mlx",), "mlx-lm's own, in 4 bits"),
    KVCache("quantized-8", ("mlx",), "mlx-lm's own, in 8 bits"),
)
PATTERN = "|".join(cache.pattern for cache in KV_CACHES)
SPELLED = ", ".join(cache.name for cache in KV_CACHES)


def kv_cache(name: str) -> KVCache | None:
    """The cache of that name, None if there is none."""
    return next((cache for cache in KV_CACHES if re.fullmatch(cache.pattern, name)), None)


def words_of(name: str) -> str:
    """What the cache is, in words; results of others may have one that is not known here."""
    found = kv_cache(name)
    return found.words if found else "not known to this version"


def has_kv_cache(engine: str, name: str) -> bool:
    """Whether the engine has the cache."""
    found = kv_cache(name)
    return found is not None and engine in found.engines


def kv_caches_of(engine: str) -> list[str]:
    """The names of the engine's caches, for a message."""
    return [cache.name for cache in KV_CACHES if engine in cache.engines]


def keeps_all(name: str) -> bool:
    """Whether the cache keeps every token as it is, so that its bytes follow from the shapes."""
    found = kv_cache(name)
    return found is not None and found.keeps_all


def regrows(name: str) -> bool:
    """Whether each step frees keys and values and allocates longer ones."""
    found = kv_cache(name)
    return found is not None and found.regrows
