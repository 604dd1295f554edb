"""MLX's buffer pools as policies of the replay's Pool, and a trace that fills them."""

from collections import OrderedDict, deque
from collections.abc import Iterator

from kvpeak.inputs.shapes import Shapes
from kvpeak.replay.pools import PRIVATE, Pool
from kvpeak.replay.script import LAYER_TENSORS, Block, Script
from kvpeak.replay.workload import Workload


class MLXPool(Pool):
    """MLX 0.32: sizes rounded up to pages, a narrow reuse window, and a limit on what is kept.

    A free buffer serves a request of n bytes only if its size is in [n, min(2n, n + 2 pages)), so a
    cache that grows never gets back what it freed (BufferCache in
    mlx/backend/common/buffer_cache.h). `limit` is `mx.set_cache_limit` in bytes, None for no limit.
    A buffer is kept while less than the limit is free; after each request the least recently freed
    go until the limit holds (MetalAllocator in mlx/backend/metal/allocator.cpp). A wait changes
    nothing.
    """

    def __init__(self, limit: int | None = None, page: int = 16384, memory=None):
        super().__init__(memory)
        self.limit = limit
        self.page = page
        self._order: OrderedDict[int, tuple[int, int]] = OrderedDict()  # oldest first
        self._tickets: dict[tuple[int, int], deque[int]] = {}  # (heap, size) → its keys in _order
        self._next_ticket = 0

    def new_size(self, nbytes: int) -> int:
        return nbytes if nbytes <= self.page else -(-nbytes // self.page) * self.page

    def largest(self, nbytes: int) -> int:
        return min(2 * nbytes, nbytes + 2 * self.page) - 1

    def keeps(self, size: int) -> bool:
        return self.limit is None or self.free < self.limit

    def take(self, nbytes: int, heap: int = PRIVATE) -> int:
        size = super().take(self.new_size(nbytes), heap)
        while self.limit is not None and self.free > self.limit:
            oldest_heap, oldest = next(iter(self._order.values()))
            self._remove(oldest_heap, oldest)
            self._drop(oldest_heap, oldest)
        return size

    def _add(self, heap: int, size: int) -> None:
        super()._add(heap, size)
        self._order[self._next_ticket] = (heap, size)
        self._tickets.setdefault((heap, size), deque()).append(self._next_ticket)
        self._next_ticket += 1

    def _remove(self, heap: int, size: int) -> None:
        super()._remove(heap, size)
        tickets = self._tickets[heap, size]
        del self._order[tickets.popleft()]
        if not tickets:
            del self._tickets[heap, size]


class MLXCpuPool(MLXPool):
    """MLX 0.32 without a GPU: the same window, but sizes as asked for, and pages of 4 KiB.

    A freed buffer that would take the free ones over the limit is not kept (CommonAllocator in
    mlx/backend/no_gpu/allocator.cpp).
    """

    def __init__(self, limit: int | None = None, memory=None):
        super().__init__(limit, page=4096, memory=memory)

    def new_size(self, nbytes: int) -> int:
        return nbytes

    def keeps(self, size: int) -> bool:
        return self.limit is None or self.free + size <= self.limit


def mlx_decode_trace(shapes: Shapes, work: Workload) -> Iterator[Block]:
    """The caches of MLX's decode phase: each step makes a longer copy of each, then drops the old.

    mx.concatenate writes a new array of the whole length (mlx_lm's own caches avoid that).
    """
    first, grow, drop = Script(), Script(), Script()
    for tensor in LAYER_TENSORS:
        first.alloc(tensor, "cache")
        grow.alloc("joined", "cache")
        grow.free(tensor)
        grow.rename("joined", tensor)
        drop.free(tensor)
    row = shapes.kv_heads * shapes.head_dim * shapes.itemsize
    layers = range(shapes.layers)
    for _ in range(work.runs):
        yield Block("prefill", layers, first, {"cache": work.prompt_tokens * row})
        for total in range(work.prompt_tokens + 1, work.prompt_tokens + work.generate):
            yield Block("decode", layers, grow, {"cache": total * row})
        yield Block("reset", layers, drop, {})
