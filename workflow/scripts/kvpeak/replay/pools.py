"""Buffer pools: what an allocator keeps of the memory that a model frees, and hands out again.

A pool is bookkeeping over exact byte counts. Which of two free buffers of one size is taken cannot
be observed, so a buffer is its size, and a pool is how many of each size are free. Candle has two
heaps (private and shared) that do not mix; a policy with one uses only the first.

A policy answers four questions: how large is a new buffer, how large may a reused one be, is a
freed one kept, and what happens when the host waits for the device. docs/replay.md adds one.
"""

from bisect import bisect_left, insort

PRIVATE, SHARED = 0, 1  # Candle's heaps: outputs of operations; what the host reads or writes
USIZE_MAX = 2**64 - 1


def size_class(nbytes: int) -> int:
    """The smallest power of two ≥ `nbytes` (Candle: buf_size in metal_backend/device.rs)."""
    return 1 << (nbytes - 1).bit_length() if nbytes > 1 else 1


class Pool:
    """Free buffers and the totals, for every policy; all in bytes. On its own it never reuses.

    `memory`, if given, is told of every buffer made and returned (`make(heap, size)`,
    `drop(heap, size)`), so that real memory can stand behind the numbers.
    """

    def __init__(self, memory=None):
        self.memory = memory
        self.held = 0  # in buffers that a tensor holds
        self.free = 0  # in buffers kept for reuse
        self.peak = 0  # the most of held + free
        self.peak_held = 0
        self._free_count: tuple[dict[int, int], dict[int, int]] = ({}, {})
        self._free_sizes: tuple[list[int], list[int]] = ([], [])  # the keys, sorted

    # The policy ------------------------------------------------------------------------------

    def new_size(self, nbytes: int) -> int:
        """How large a new buffer for a request is made."""
        return nbytes

    def largest(self, nbytes: int) -> int:
        """The largest free buffer that may serve a request."""
        return 0

    def keeps(self, size: int) -> bool:
        """Whether a buffer of this size is kept when its tensor frees it."""
        return True

    def wait(self) -> None:
        """The host waits for the device, as it does to read a result."""

    # What tensors do -------------------------------------------------------------------------

    def take(self, nbytes: int, heap: int = PRIVATE) -> int:
        """Serve a request: the smallest free buffer that fits and may be used, or a new one."""
        sizes = self._free_sizes[heap]
        position = bisect_left(sizes, nbytes)
        if position < len(sizes) and sizes[position] <= self.largest(nbytes):
            size = sizes[position]
            self._remove(heap, size)
        else:
            size = self.new_size(nbytes)
            self._make(heap, size)
        self._hold(size)
        return size

    def upload(self, nbytes: int) -> int:
        """Host data always gets a new buffer of exactly its size, in the shared heap."""
        self._make(SHARED, nbytes)
        self._hold(nbytes)
        return nbytes

    def give(self, size: int, heap: int = PRIVATE) -> None:
        """Free a buffer that was taken or uploaded."""
        self.held -= size
        if self.keeps(size):
            self._add(heap, size)
        else:
            self._drop(heap, size)

    @property
    def total(self) -> int:
        return self.held + self.free

    def free_buffers(self) -> dict[tuple[int, int], int]:
        """How many buffers are free, by (heap, size)."""
        return {
            (heap, size): count
            for heap, counts in enumerate(self._free_count)
            for size, count in counts.items()
        }

    # Bookkeeping -----------------------------------------------------------------------------

    def _hold(self, size: int) -> None:
        self.held += size
        self.peak_held = max(self.peak_held, self.held)
        self.peak = max(self.peak, self.held + self.free)

    def _make(self, heap: int, size: int) -> None:
        if self.memory:
            self.memory.make(heap, size)

    def _drop(self, heap: int, size: int, count: int = 1) -> None:
        if self.memory:
            for _ in range(count):
                self.memory.drop(heap, size)

    def _add(self, heap: int, size: int) -> None:
        counts = self._free_count[heap]
        if size not in counts:
            counts[size] = 0
            insort(self._free_sizes[heap], size)
        counts[size] += 1
        self.free += size

    def _remove(self, heap: int, size: int) -> None:
        counts = self._free_count[heap]
        counts[size] -= 1
        self.free -= size
        if not counts[size]:
            del counts[size]
            sizes = self._free_sizes[heap]
            del sizes[bisect_left(sizes, size)]


class CandlePool(Pool):
    """Candle 0.11.0 on Metal: power-of-two classes, the smallest free buffer of at least the
    request.

    `slack` is the cap of Candle's pull request 3851: a buffer may be reused at most `slack` classes
    above the request's own (2 = four times); None is Candle as released, without a limit. The limit
    saturates: a shift that wrapped around would switch reuse off. A wait returns every free buffer.
    """

    def __init__(self, slack: int | None = None, memory=None):
        super().__init__(memory)
        self.slack = slack

    def new_size(self, nbytes: int) -> int:
        return size_class(nbytes)

    def largest(self, nbytes: int) -> int:
        if self.slack is None:
            return USIZE_MAX
        return min(size_class(nbytes) << min(self.slack, 64), USIZE_MAX)

    def wait(self) -> None:
        for heap, counts in enumerate(self._free_count):
            for size in self._free_sizes[heap]:
                self._drop(heap, size, counts[size])
            counts.clear()
            self._free_sizes[heap].clear()
        self.free = 0

    # Replaying layer by layer (replay.Replay) needs to know when two states are the same.

    def state(self) -> tuple:
        """What decides how the next requests are served: the free buffers."""
        return tuple(tuple(sorted(counts.items())) for counts in self._free_count)

    def restore(self, state: tuple) -> None:
        """Put the free buffers back to a `state()`; the totals are the caller's business."""
        for heap, items in enumerate(state):
            self._free_count[heap].clear()
            self._free_count[heap].update(items)
            self._free_sizes[heap][:] = [size for size, _ in items]
