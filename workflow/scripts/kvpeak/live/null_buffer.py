"""Tell a failed allocation from a crash where MLX does not.

MLX's CPU allocator takes the null pointer of a failed malloc for a buffer, and the process dies
when a kernel writes to it. Only the address of that write says what happened: the null pointer plus
an offset. Linux maps nothing that low. (With Metal and CUDA a failed allocation raises
RuntimeError.)
"""

import ctypes
import os
import signal
import sys
from collections.abc import Callable

LOWEST_MAPPING = 1 << 40  # bytes; position-independent programs and their libraries lie far above
_SA_SIGINFO = 4
_SEGV_MAPERR = 1  # nothing is mapped at the address

# Where siginfo_t of 64-bit Linux has si_code and si_addr (bits/types/siginfo_t.h), in bytes.
_CODE, _ADDRESS = 8, 16

_Handler = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)


class _Sigaction(ctypes.Structure):
    """struct sigaction of glibc on 64-bit Linux."""

    _fields_ = (
        ("handler", _Handler),
        ("mask", ctypes.c_byte * 128),
        ("flags", ctypes.c_int),
        ("restorer", ctypes.c_void_p),
    )


_installed: list[_Handler] = []  # libc calls them as long as the process lives


def on_null_buffer(report: Callable[[], None]) -> None:
    """Call `report` and exit with 0 when something reaches through a null buffer. Only on Linux.

    Any other segmentation fault ends the process as ever.
    """
    if sys.platform != "linux":
        return
    libc = ctypes.CDLL(None)

    def handle(number: int, info: int, context: int) -> None:
        code = ctypes.c_int.from_address(info + _CODE).value
        address = ctypes.c_uint64.from_address(info + _ADDRESS).value
        if code == _SEGV_MAPERR and address < LOWEST_MAPPING:
            report()
            os._exit(0)
        libc.signal(number, None)  # the default action, which follows when this returns
        signal.raise_signal(number)

    _installed.append(_Handler(handle))
    action = _Sigaction(handler=_installed[-1], flags=_SA_SIGINFO)
    if libc.sigaction(signal.SIGSEGV, ctypes.byref(action), None):
        raise OSError("sigaction failed")
