"""On Linux: let a system OpenBLAS serve MLX's matrix products on the CPU.

MLX's CPU wheel brings the reference BLAS, which is tens of times slower in float32. The dynamic linker
gives a symbol to the first library that offered it to the whole process, so an OpenBLAS that is loaded
before `mlx.core` takes the place of the one in the wheel.
"""

import ctypes
import sys

REFERENCE = "reference BLAS of the MLX wheel"


def load_openblas() -> str:
    """Load OpenBLAS for the whole process and return what it says of itself and how many threads it takes.

    To be called before MLX is imported.

    Returns REFERENCE where the system has none, and `Accelerate` on macOS, where MLX needs no help.
    """
    if sys.platform == "darwin":
        return "Accelerate"
    for name in ("libopenblas.so.0", "libopenblas.so", "libblas.so.3"):
        try:
            library = ctypes.CDLL(name, ctypes.RTLD_GLOBAL)
            config = library.openblas_get_config
        except (OSError, AttributeError):  # not there, or there and another BLAS
            continue
        config.restype = ctypes.c_char_p
        return f"{config().decode()}, {library.openblas_get_num_threads()} threads"
    return REFERENCE
