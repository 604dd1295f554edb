"""What CUDA's asynchronous allocator keeps for this process: MLX allocates from the device's
default memory pool.

The driver reserves more than it hands out and counts both exactly (CUDA Driver API,
cuMemPoolGetAttribute).
"""

import ctypes

from kvpeak.base.numbers import MIB

# CUmemPool_attribute of cuda.h; each is a cuuint64_t.
RESERVED_MEM_HIGH, USED_MEM_HIGH = 6, 8


def pool_peaks(device: int = 0, driver: ctypes.CDLL | None = None) -> dict[str, float]:
    """`peak_reserved_mib` and `peak_used_mib`: the most that the pool of a device reserved and
    handed out so far.

    device: among those that the process sees. {} where there is no driver, or it does not say.
    """
    try:
        driver = driver or ctypes.CDLL("libcuda.so.1")
    except OSError:
        return {}
    handle, pool = ctypes.c_int(), ctypes.c_void_p()
    steps = (
        lambda: driver.cuInit(0),
        lambda: driver.cuDeviceGet(ctypes.byref(handle), device),
        lambda: driver.cuDeviceGetDefaultMemPool(ctypes.byref(pool), handle),
    )
    if any(step() for step in steps):
        return {}
    asked = {"peak_reserved_mib": RESERVED_MEM_HIGH, "peak_used_mib": USED_MEM_HIGH}
    found = {name: _attribute(driver, pool, number) for name, number in asked.items()}
    return {name: value / MIB for name, value in found.items() if value is not None}


def _attribute(driver: ctypes.CDLL, pool: ctypes.c_void_p, number: int) -> int | None:
    value = ctypes.c_uint64()
    failed = driver.cuMemPoolGetAttribute(pool, number, ctypes.byref(value))
    return None if failed else value.value
