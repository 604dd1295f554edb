"""What an environment can do at most on this machine: a matrix product, and kernels that move or
read memory.

The memory's kernels work on more than the last-level cache holds; `decode` is held against the
fastest of them. On a CPU they run in float32, because MLX's loops over 16 bits are bound by
arithmetic there.
"""

import ctypes
import os
import time
from collections.abc import Callable

import mlx.core as mx

from kvpeak.base.numbers import MIB
from kvpeak.live import allocator, blas, device
from kvpeak.system.caches import last_level_cache_bytes

SHORTEST_S = 0.02  # a product is long enough that starting it does not count
LARGEST = 8192  # rows of the square matrices
BEYOND_CACHE = 2  # times the last-level cache
LEAST_BYTES = {"cpu": 64 * MIB, "metal": 256 * MIB, "cuda": 512 * MIB}
MOST_OF_MEMORY = 16  # one array is at most this part of the memory
# Of one kind at once: a launch, and waiting for its end, take longer than many a small kernel.
GPU_QUEUED = 8
COLUMNS = 4096
REPEATS = 10  # of one kind at least: the best of two or three is a matter of luck beside other work
NEAR = 0.5  # of the fastest kernel's rate: a slower one is measured once
MEMORY_REPEATS = 5  # of a kernel that takes a second where the cache is large
BUDGET_S = 0.5  # for each figure, or longer where that many take longer
ROW_MAJOR, NO_TRANSPOSE = 101, 111  # of CBLAS


def measure(dtypes: list[str], served: str | None) -> dict:
    """FLOP/s and bytes/s of each type: {blas, device, dtypes: {dtype: {flops, copy, ...}}, …}.

    `served`: what blas.load_blas() returned. moved_bytes: what a memory kernel reads.
    last_level_cache_bytes: of the processor, null on a GPU and where it is not known.
    """
    on = device.describe()
    cpu = on["accelerator"] == "cpu"
    cache = last_level_cache_bytes() if cpu else None
    nbytes, queued = moved_bytes(on["accelerator"], cache), 1 if cpu else GPU_QUEUED
    # results take the same memory again, which is not zeroed each time
    allocator.limit_pool(queued * nbytes)
    found = {name: arithmetic(getattr(mx, name), queued) for name in dtypes}
    for name in ["float32"] if cpu else dtypes:
        found.setdefault(name, {}).update(memory(getattr(mx, name), nbytes, queued))
    if cpu and (gemv := blas.sgemv()) is not None:
        found["float32"]["sgemv"] = sgemv_bytes_s(gemv, nbytes)
    return {
        "mlx": mx.__version__,
        "device": on,
        "blas": served if cpu else None,
        "last_level_cache_bytes": cache,
        "moved_bytes": nbytes,
        "dtypes": found,
    }


def moved_bytes(accelerator: str, cache: int | None) -> int:
    """How large an array is to be: beyond the cache, and a small part of the memory."""
    wanted = max(LEAST_BYTES[accelerator], BEYOND_CACHE * (cache or 0))
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    most = max(64 * MIB, total // MOST_OF_MEMORY if accelerator != "cuda" else wanted)
    row = 4 * COLUMNS
    return min(wanted, most) // row * row


def arithmetic(dtype, queued: int) -> dict:
    """`flops` of an n×n product (2n³); `matmul_rows`: n."""
    n = 256
    while True:
        a = mx.random.normal((n, n)).astype(dtype)
        if n == LARGEST or best(lambda: a @ a, queued, 1, 0) >= SHORTEST_S:  # noqa: B023
            break
        n *= 2
    return {"matmul_rows": n, "flops": 2 * n**3 / best(lambda: a @ a, queued)}


def memory(dtype, nbytes: int, queued: int) -> dict:
    """Bytes per second that MLX's kernels read (`matvec`, `reduction`), or read and write
    (`copy`).
    """
    source = mx.full((nbytes // dtype.size,), 0.5, dtype)  # drawing it would take longer
    mx.eval(source)
    matrix = source.reshape(-1, COLUMNS)
    token = mx.zeros((1, COLUMNS), dtype)
    kernels = {
        "copy": (2 * nbytes, lambda: source + 1),
        "matvec": (nbytes, lambda: token @ matrix.T),
        "reduction": (nbytes, lambda: source.max()),
    }
    once = {name: moved / best(call, queued, 1, 0) for name, (moved, call) in kernels.items()}
    near = [name for name, rate in once.items() if rate > NEAR * max(once.values())]
    again = {name: best(kernels[name][1], queued, MEMORY_REPEATS) for name in near}
    return once | {
        name: max(once[name], kernels[name][0] / seconds) for name, seconds in again.items()
    }


def sgemv_bytes_s(gemv: Callable, nbytes: int) -> float:
    """Bytes per second that the BLAS's own matrix-vector product reads."""
    rows = nbytes // (4 * COLUMNS)
    matrix = (ctypes.c_float * (rows * COLUMNS))()
    ctypes.memset(matrix, 0, ctypes.sizeof(matrix))  # pages that nothing wrote would all be one
    token, result = (ctypes.c_float * COLUMNS)(), (ctypes.c_float * rows)()
    one, zero = ctypes.c_float(1), ctypes.c_float(0)

    def run() -> None:
        gemv(
            ROW_MAJOR, NO_TRANSPOSE, rows, COLUMNS, one, matrix, COLUMNS, token, 1, zero, result, 1
        )

    return nbytes / shortest(run, MEMORY_REPEATS, BUDGET_S)


def best(
    compute: Callable, queued: int, repeats: int = REPEATS, budget_s: float = BUDGET_S
) -> float:
    """The shortest time of one of `queued` calls, in seconds."""
    return shortest(lambda: mx.eval([compute() for _ in range(queued)]), repeats, budget_s) / queued


def shortest(
    run: Callable, repeats: int, budget_s: float, clock: Callable[[], float] = time.perf_counter
) -> float:
    """The shortest of `repeats` calls of `run` and of as many more as fit in `budget_s`, in
    seconds.

    One call before them does not count.
    """
    run()
    found, rounds, end = float("inf"), 0, clock() + budget_s
    while rounds < repeats or clock() < end:
        began = clock()
        run()
        found, rounds = min(found, clock() - began), rounds + 1
    return found
