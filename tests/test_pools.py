"""Every pool policy against the same rules, and against itself written with one object per
buffer.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mlx_pools import MLXCpuPool, MLXPool

from kvpeak.replay.pools import (
    PRIVATE,
    SHARED,
    USIZE_MAX,
    CandlePool,
    Pool,
    size_class,
)

PAGE = 16
POLICIES = {
    "candle": lambda memory=None: CandlePool(None, memory),
    "candle-1x": lambda memory=None: CandlePool(0, memory),
    "candle-4x": lambda memory=None: CandlePool(2, memory),
    "candle-saturated": lambda memory=None: CandlePool(64, memory),
    "mlx": lambda memory=None: MLXPool(None, PAGE, memory),
    "mlx-limited": lambda memory=None: MLXPool(64, PAGE, memory),
    "mlx-limited-pages": lambda memory=None: MLXPool(2 * 4096, PAGE, memory),
    "mlx-cpu": lambda memory=None: MLXCpuPool(20_000, memory),
    "no-reuse": lambda memory=None: Pool(memory),
}
# Sizes that crowd around powers of two and pages; some in the thousands for pages of 4 KiB.
SIZES = st.one_of(
    st.integers(1, 70), st.sampled_from([127, 128, 129, 4096, 5000, 8191, 9000, 12288])
)
OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("take"), SIZES, st.sampled_from([PRIVATE, SHARED])),
        st.tuples(st.just("upload"), SIZES),
        st.tuples(st.just("give"), st.integers(0, 1000)),
        st.tuples(st.just("wait")),
    ),
    max_size=80,
)


class Buffer:
    """One buffer with an identity of its own."""

    def __init__(self, heap: int, size: int):
        self.heap, self.size, self.busy = heap, size, True


class Naive:
    """A pool as a plain list of buffers, searched from end to end, freed ones at the end."""

    def __init__(self, pool: Pool):
        self.policy = pool  # asked for its rules only
        self.buffers: list[Buffer] = []
        self.peak = 0

    def total(self, busy: bool) -> int:
        return sum(buffer.size for buffer in self.buffers if buffer.busy == busy)

    def take(self, nbytes: int, heap: int) -> Buffer:
        if isinstance(self.policy, MLXPool):
            nbytes = self.policy.new_size(nbytes)
        fitting = [
            buffer
            for buffer in self.buffers
            if not buffer.busy
            and buffer.heap == heap
            and nbytes <= buffer.size <= self.policy.largest(nbytes)
        ]
        if fitting:
            buffer = min(fitting, key=lambda each: each.size)  # of equal ones the first freed
            assert not buffer.busy
            buffer.busy = True
        else:
            buffer = Buffer(heap, self.policy.new_size(nbytes))
            self.buffers.append(buffer)
        self.note_peak()
        if isinstance(self.policy, MLXPool):
            self.keep_to(self.policy.limit)
        return buffer

    def note_peak(self) -> None:
        self.peak = max(self.peak, sum(buffer.size for buffer in self.buffers))

    def keep_to(self, limit: int | None) -> None:
        for buffer in [each for each in self.buffers if not each.busy]:
            if limit is not None and self.total(busy=False) > limit:
                self.buffers.remove(buffer)

    def upload(self, nbytes: int) -> Buffer:
        self.buffers.append(Buffer(SHARED, nbytes))
        self.note_peak()
        return self.buffers[-1]

    def give(self, buffer: Buffer) -> None:
        free = self.total(busy=False)
        self.buffers.remove(buffer)
        buffer.busy = False
        limit = getattr(self.policy, "limit", None)
        counted = buffer.size if isinstance(self.policy, MLXCpuPool) else 1
        if limit is None or free + counted <= limit:
            self.buffers.append(buffer)

    def wait(self) -> None:
        if isinstance(self.policy, CandlePool):
            self.buffers = [buffer for buffer in self.buffers if buffer.busy]


class Ledger:
    """The memory behind a pool, as a count of the buffers that exist."""

    def __init__(self):
        self.existing: dict[tuple[int, int], int] = {}

    def make(self, heap: int, size: int) -> None:
        self.existing[heap, size] = self.existing.get((heap, size), 0) + 1

    def drop(self, heap: int, size: int) -> None:
        self.existing[heap, size] -= 1
        assert self.existing[heap, size] >= 0

    def bytes(self) -> int:
        return sum(size * count for (_, size), count in self.existing.items())


def test_a_size_class_is_the_next_power_of_two():
    sizes = {0: 1, 1: 1, 2: 2, 3: 4, 4: 4, 5: 8, 1024: 1024, 1025: 2048}
    assert {nbytes: size_class(nbytes) for nbytes in sizes} == sizes


@pytest.mark.parametrize("policy", POLICIES)
def test_a_new_pool_holds_nothing_and_held_nothing(policy):
    pool = POLICIES[policy]()
    assert (pool.held, pool.free, pool.total, pool.peak, pool.peak_held) == (0,) * 5
    assert pool.free_buffers() == {}


def test_a_cap_saturates_instead_of_switching_reuse_off():
    pool = CandlePool(70)
    pool.give(pool.take(1 << 40))
    assert pool.largest(1 << 40) == USIZE_MAX == 18_446_744_073_709_551_615
    assert pool.take(1) == 1 << 40


def test_an_upload_is_new_and_exact_and_can_be_reused_in_the_shared_heap():
    pool = CandlePool()
    pool.give(pool.upload(1000), SHARED)
    assert pool.upload(1000) == 1000
    assert pool.total == 2000
    assert pool.take(900, PRIVATE) == 1024
    assert pool.take(900, SHARED) == 1000


def test_a_wait_returns_the_free_buffers_of_both_heaps():
    pool = CandlePool()
    kept = pool.take(64)
    pool.give(pool.take(100))
    pool.give(pool.take(100, SHARED), SHARED)
    pool.wait()
    assert (pool.total, pool.free_buffers()) == (kept, {})


def freed(pool: Pool, *sizes: int) -> None:
    """Take buffers of these sizes, then free them in this order."""
    for size in [pool.take(size) for size in sizes]:
        pool.give(size)


def test_of_many_sizes_none_serves_what_is_larger_than_all():
    pool = CandlePool()
    for buffer in [pool.upload(1000 + size) for size in range(400)]:
        pool.give(buffer, SHARED)
    assert pool.take(1399, SHARED) == 1399
    assert pool.take(1399, SHARED) == 2048
    assert len(pool.free_buffers()) == 399


def test_mlx_keeps_a_buffer_only_while_less_than_its_limit_is_free():
    pool = MLXPool(64, PAGE)
    freed(pool, 64, 32)
    assert pool.free_buffers() == {(PRIVATE, 64): 1}


def test_mlx_gives_back_the_least_recently_freed_first():
    pool = MLXPool(1000, PAGE)
    freed(pool, 320, 480, 640)
    assert pool.free == 1440
    pool.take(2000)
    assert pool.free_buffers() == {(PRIVATE, 640): 1}


def test_of_equal_buffers_mlx_reuses_the_first_freed_so_that_the_second_is_the_younger():
    pool = MLXPool(1000, PAGE)
    freed(pool, 480, 320, 480)
    assert pool.take(480) == 480
    freed(pool, 640)
    pool.take(2000)
    assert pool.free_buffers() == {(PRIVATE, 640): 1}


def test_a_growing_cache_never_gets_back_what_it_freed_to_mlx():
    pool = MLXCpuPool()
    size = pool.take(100_000)
    for step in range(1, 50):
        grown = pool.take(100_000 + 1000 * step)
        pool.give(size)
        size = grown
    assert pool.total == sum(100_000 + 1000 * step for step in range(50))


def test_mlx_on_a_cpu_does_not_keep_what_would_take_it_over_its_limit():
    pool = MLXCpuPool(1000)
    freed(pool, 600, 500, 400)
    assert pool.free_buffers() == {(PRIVATE, 600): 1, (PRIVATE, 400): 1}


@pytest.mark.parametrize("policy", POLICIES)
@given(operations=OPERATIONS)
def test_a_pool_does_what_one_object_per_buffer_does(policy, operations):
    """So no buffer is given out twice, held + free = total, and the peak is the running maximum."""
    ledger = Ledger()
    pool, naive = POLICIES[policy](ledger), Naive(POLICIES[policy]())
    held: list[Buffer] = []
    peak_held = 0
    for kind, *values in operations:
        if kind == "take":
            size = pool.take(*values)
            held.append(naive.take(*values))
            assert size == held[-1].size
        elif kind == "upload":
            assert pool.upload(*values) == values[0]
            held.append(naive.upload(*values))
        elif kind == "give" and held:
            buffer = held.pop(values[0] % len(held))
            pool.give(buffer.size, buffer.heap)
            naive.give(buffer)
        elif kind == "wait":
            pool.wait()
            naive.wait()
        peak_held = max(peak_held, pool.held)
        assert pool.held == naive.total(busy=True) == sum(buffer.size for buffer in held)
        assert pool.free == naive.total(busy=False)
        assert pool.total == ledger.bytes()
        assert (pool.peak, pool.peak_held) == (naive.peak, peak_held)


@given(operations=OPERATIONS, slack=st.one_of(st.none(), st.integers(0, 80)))
def test_candle_gives_a_buffer_that_fits_and_is_not_larger_than_the_cap(operations, slack):
    pool, held = CandlePool(slack), []
    for kind, *values in operations:
        if kind == "take":
            nbytes, heap = values
            size = pool.take(nbytes, heap)
            assert nbytes <= size
            assert slack is None or size <= size_class(nbytes) * 2**slack
            held.append((size, heap))
        elif kind == "give" and held:
            pool.give(*held.pop(values[0] % len(held)))


@given(operations=OPERATIONS, limit=st.one_of(st.none(), st.integers(0, 20_000)))
def test_mlx_gives_a_buffer_from_its_window_and_keeps_to_its_limit(operations, limit):
    pool, held = MLXPool(limit, PAGE), []
    for kind, *values in operations:
        if kind == "take":
            rounded = pool.new_size(values[0])
            size = pool.take(values[0])
            assert rounded <= size < max(rounded + 1, min(2 * rounded, rounded + 2 * PAGE))
            assert limit is None or pool.free <= limit
            held.append(size)
        elif kind == "give" and held:
            pool.give(held.pop(values[0] % len(held)))


@given(operations=OPERATIONS)
def test_candle_goes_on_from_a_restored_state(operations):
    """What comes next depends on the state alone."""
    first, second, held = CandlePool(2), CandlePool(2), []
    for kind, *values in operations:
        if kind == "take":
            second.restore(first.state())
            size = first.take(*values)
            assert second.take(*values) == size
            assert second.state() == first.state()
            held.append((size, values[1]))
        elif kind == "give" and held:
            first.give(*held.pop(values[0] % len(held)))
