"""The driver's asynchronous pool, asked as the CUDA driver documents it. A device's test holds it
against NVML.
"""

import ctypes

import pytest

from kvpeak.base.numbers import MIB
from kvpeak.live import device
from kvpeak.live.cuda_pool import pool_peaks


class Driver:
    """libcuda as far as the pool needs it; `fails` names a call that does not succeed."""

    def __init__(self, fails: str | None = None):
        self._fails = fails
        self.attributes = {6: 600 * MIB, 8: 500 * MIB}  # RESERVED_MEM_HIGH, USED_MEM_HIGH of cuda.h

    def _done(self, name: str) -> int:
        return 201 if name == self._fails else 0

    def cuInit(self, flags):
        return self._done("cuInit") if flags == 0 else 1

    def cuDeviceGet(self, handle, ordinal):
        handle._obj.value = 40 + ordinal
        return self._done("cuDeviceGet")

    def cuDeviceGetDefaultMemPool(self, pool, handle):
        pool._obj.value = 1000 + handle.value
        return self._done("cuDeviceGetDefaultMemPool")

    def cuMemPoolGetAttribute(self, pool, attribute, value):
        assert pool.value == 1040
        assert isinstance(value._obj, ctypes.c_uint64)
        value._obj.value = self.attributes[attribute]
        return self._done("cuMemPoolGetAttribute")


def test_the_pool_says_what_it_reserved_and_handed_out_at_most():
    assert pool_peaks(driver=Driver()) == {"peak_reserved_mib": 600, "peak_used_mib": 500}


@pytest.mark.parametrize(
    "call", ["cuInit", "cuDeviceGet", "cuDeviceGetDefaultMemPool", "cuMemPoolGetAttribute"]
)
def test_a_driver_that_refuses_says_nothing(call):
    assert pool_peaks(driver=Driver(call)) == {}


def test_there_is_no_reserve_without_cuda():
    if device.accelerator() != "cuda":
        assert device.reserve() == {}
