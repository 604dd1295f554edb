"""What a model's caches hold: bytes for each token, bytes of windows, bytes of fixed states.

Read from the shapes and types of the arrays that the caches keep, whatever the model's config calls
them; nothing is computed for it.
"""

from dataclasses import asdict, dataclass

import mlx.core as mx
from mlx.utils import tree_flatten

from kvpeak.live.kv_caches import layers_text, leaves


@dataclass(frozen=True)
class KVState:
    """Bytes in all layers together.

    kv_bytes_per_token: one more token in the caches that keep every token. kv_window_bytes: the
    most that caches with a window come to hold. kv_state_bytes: states whose size no token changes.
    kv_layers: which layers keep what, in words.
    """

    kv_bytes_per_token: int
    kv_window_bytes: int
    kv_state_bytes: int
    kv_layers: str

    def as_dict(self) -> dict:
        return asdict(self)


def measure(caches: list) -> KVState:
    """What the caches hold; a pass over at least one token must have gone through them."""
    token = window = state = 0
    for _, cache in leaves(caches):
        if getattr(cache, "keys", None) is None:
            state += nbytes(cache)
        elif size := getattr(cache, "max_size", None) or getattr(cache, "chunk_size", None):
            window += size * bytes_per_token(cache)
        else:
            token += bytes_per_token(cache)
    return KVState(token, window, state, layers_text(caches))


def bytes_per_token(cache) -> int:
    """Bytes of one token's keys and values, each [batch, heads, tokens, …] or a tuple of such."""
    arrays = arrays_of((cache.keys, cache.values))
    return sum(array.nbytes // array.shape[2] for array in arrays)


def nbytes(cache) -> int:
    """Bytes of all arrays of a cache's state."""
    return sum(array.nbytes for array in arrays_of(cache.state))


def arrays_of(tree) -> list[mx.array]:
    return [leaf for _, leaf in tree_flatten(tree) if isinstance(leaf, mx.array)]
