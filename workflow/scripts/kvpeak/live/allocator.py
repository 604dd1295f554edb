"""MLX's buffer pool: its limit, and how many bytes are live and how many are kept for reuse."""

import re

import mlx.core as mx

from kvpeak.base.errors import Unsupported
from kvpeak.base.numbers import GIB, KIB, MIB

NO_LIMIT = 2**62  # bytes; more than any machine has
_UNITS = {"": 1, "KiB": KIB, "MiB": MIB, "GiB": GIB}


def cap_bytes(cap: str) -> int | None:
    """The bytes of free buffers that a cap allows; None for `default`, the engine's own limit.

    A cap is `default`, `none`, or a size such as 64MiB or 0. Raises Unsupported for another.
    """
    if cap == "default":
        return None
    if cap == "none":
        return NO_LIMIT
    size = re.fullmatch(r"(\d{1,9})(|KiB|MiB|GiB)", cap)
    if not size or (size[2] == "" and size[1] != "0"):
        raise Unsupported(
            f"cap {cap}: MLX limits its pool in bytes; "
            "expected default, none, 0 or a size such as 64MiB"
        )
    return int(size[1]) * _UNITS[size[2]]


def limit_pool(limit: int | None) -> int | None:
    """Limit the pool to so many bytes of free buffers, or leave it as MLX set it (None).

    Returns the limit as the allocator then gives it back; None if it keeps no pool and ignores
    the limit, as on the CPU before MLX 0.32.
    """
    own = mx.set_cache_limit(NO_LIMIT)  # each call returns the limit that it replaces
    if mx.set_cache_limit(own if limit is None else limit) != NO_LIMIT:
        return None
    return mx.set_cache_limit(own if limit is None else limit)


class Engine:
    """MLX's own counters."""

    def reset_peaks(self) -> None:
        mx.reset_peak_memory()

    def active(self) -> int:
        """Bytes in buffers that arrays hold."""
        return mx.get_active_memory()

    def reserved(self) -> int:
        """Those, and the bytes kept for reuse."""
        return mx.get_active_memory() + mx.get_cache_memory()

    def active_peak(self) -> int:
        return mx.get_peak_memory()


class Replaced:
    """The counters of a pool that is in MLX's place (pool.Pool)."""

    def __init__(self, pool):
        self._pool = pool

    def reset_peaks(self) -> None:
        self._pool.reset_peaks()

    def active(self) -> int:
        return self._pool.counters().active

    def reserved(self) -> int:
        """The most since the last reset, which the pool counts at every request."""
        return self._pool.counters().reserved_peak

    def active_peak(self) -> int:
        return self._pool.counters().active_peak


counting: Engine | Replaced = Engine()


def count_by(pool) -> None:
    """From now on the figures are those of a pool that replaces MLX's own."""
    global counting
    counting = Replaced(pool)


class Peaks:
    """The most live bytes, and the most live and kept bytes together, since this was made."""

    def __init__(self):
        counting.reset_peaks()
        self._pool = 0

    def sample(self) -> None:
        """Look at the pool now. It grows until its limit: a look after each step is enough."""
        self._pool = max(self._pool, counting.reserved())

    def mib(self) -> dict[str, float]:
        """`peak_active_mib`, which the allocator counts, and `peak_pool_mib`.

        The latter is sampled, but where a pool of ours counts it.
        """
        self.sample()
        active = counting.active_peak()
        return {"peak_active_mib": active / MIB, "peak_pool_mib": max(active, self._pool) / MIB}
