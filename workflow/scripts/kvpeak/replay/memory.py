"""Real memory behind a pool's buffers: the operating system then sees what the books say."""

import contextlib
import mmap

from kvpeak.base.numbers import MIB
from kvpeak.system import machine

# In bytes. Linux gives whole ones where it is asked to, which is several times faster to touch.
HUGE_PAGE = 2 << 20


class HostMemory:
    """A pool's `memory`: a mapping of anonymous memory, touched, for every buffer.

    Which of two equal mappings belongs to which tensor makes no difference. A buffer that the pool
    gives back goes on as a spare, because mapping and touching costs time: it serves the next
    buffer of its size, and is unmapped before the process would grow beyond the most that it ever
    used. So the process's peak is the pool's, but memory does not fall between two peaks.
    """

    def __init__(self):
        self._used: dict[int, list] = {}  # size → mappings
        self._spare: dict[int, list] = {}
        self._used_bytes = self._spare_bytes = self._most = 0

    def make(self, heap: int, size: int) -> None:
        """Raises OSError or RuntimeError when the system has no more."""
        self._used_bytes += size
        self._most = max(self._most, self._used_bytes)
        if self._spare.get(size):
            buffer = self._spare[size].pop()
            self._spare_bytes -= size
        else:
            self._unmap_spares(self._most - self._used_bytes)
            buffer = self.allocate(size)
        self._used.setdefault(size, []).append(buffer)

    def drop(self, heap: int, size: int) -> None:
        self._used_bytes -= size
        self._spare_bytes += size
        self._spare.setdefault(size, []).append(self._used[size].pop())

    def _unmap_spares(self, allowed: int) -> None:
        while self._spare_bytes > allowed:
            size = max(size for size, spares in self._spare.items() if spares)
            self._spare[size].pop()  # its memory goes with the last reference
            self._spare_bytes -= size

    def allocate(self, size: int) -> object:
        """New memory, every page of it touched."""
        buffer = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        if size >= HUGE_PAGE and hasattr(mmap, "MADV_HUGEPAGE"):
            with contextlib.suppress(OSError):  # a kernel without them
                buffer.madvise(mmap.MADV_HUGEPAGE)
        buffer[:: mmap.PAGESIZE] = b"\1" * -(-size // mmap.PAGESIZE)
        return buffer

    def available_mib(self) -> float:
        """What can be allocated."""
        return machine.available_mib()


class DeviceMemory(HostMemory):
    """The same with MLX arrays: Metal or CUDA memory where MLX has a GPU. MLX's own pool is off."""

    def __init__(self):
        import mlx.core as mx

        super().__init__()
        self._mx = mx
        mx.set_cache_limit(0)

    def allocate(self, size: int) -> object:
        pages = -(-size // mmap.PAGESIZE)  # two dimensions, because one holds less than 2 GiB
        array = self._mx.zeros((pages, mmap.PAGESIZE), self._mx.uint8)
        self._mx.eval(array)
        return array

    def available_mib(self) -> float:
        """What CUDA says is free; on Metal, which shares its memory, what the system says."""
        free = self._mx.device_info().get("free_memory")
        return super().available_mib() if free is None else free / MIB
