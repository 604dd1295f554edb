"""The pool's limit."""

import mlx.core as mx
import pytest

from kvpeak.base.errors import Unsupported
from kvpeak.live import allocator


@pytest.mark.parametrize(
    ("cap", "size"),
    [
        ("0", 0),
        ("0MiB", 0),
        ("512KiB", 2**19),
        ("64MiB", 2**26),
        ("2GiB", 2**31),
        ("none", 2**62),
    ],
)
def test_a_cap_is_so_many_bytes(cap, size):
    assert allocator.cap_bytes(cap) == size


@pytest.mark.parametrize("cap", ["4x", "64", "64MB", "1.5GiB", "-1MiB", ""])
def test_another_cap_is_unsupported(cap):
    with pytest.raises(Unsupported, match="expected default, none, 0 or a size"):
        allocator.cap_bytes(cap)


@pytest.fixture
def limit():
    """MLX's limit, put back afterwards."""
    before = mx.set_cache_limit(0)
    yield
    mx.set_cache_limit(before)


@pytest.mark.parametrize("size", [0, 5_000_000, allocator.NO_LIMIT])
def test_the_limit_is_what_the_allocator_gives_back(limit, size):
    assert allocator.limit_pool(size) == size
    assert mx.set_cache_limit(0) == size


@pytest.mark.parametrize("size", [0, 5_000_000, allocator.NO_LIMIT])
def test_a_limit_that_does_nothing_is_found_out(monkeypatch, size):
    monkeypatch.setattr(mx, "set_cache_limit", lambda _: 0)  # as MLX 0.31.2 does on the CPU
    assert allocator.limit_pool(size) is None


def test_peaks_count_what_the_pool_keeps(limit):
    allocator.limit_pool(allocator.NO_LIMIT)
    peaks = allocator.Peaks()
    for count in (1, 2):
        mx.eval(mx.zeros(count * 2**20, mx.float32) + 1)  # 4 MiB, then 8: no buffer fits both
    peaks.sample()
    mib = peaks.mib()
    assert mib["peak_pool_mib"] - mib["peak_active_mib"] >= 4
