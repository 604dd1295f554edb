"""On Linux: choose the BLAS that serves MLX's matrix products on the CPU.

MLX's CPU wheel brings the reference BLAS, which is tens of times slower in float32. The dynamic
linker gives a symbol to the first library that offered it to the whole process. So a BLAS that is
loaded before `mlx.core` takes the place of the one in the wheel.

SciPy, which the pipeline has anyway, brings an OpenBLAS whose names have a prefix
(`scipy_cblas_sgemm`). A small library forwards MLX's names to them. It is compiled once, by the
compiler that MLX needs for its own kernels, and kept in this user's cache. It holds no path of
SciPy, so that it serves every version of it.

KVPEAK_BLAS chooses another one: openblas, mkl or blis of this system, a file, or reference.
It has run on x86-64 only; nothing in it depends on the processor.
"""

import contextlib
import ctypes
import functools
import hashlib
import importlib.util
import os
import shlex
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from kvpeak.base.errors import UserError
from kvpeak.base.text import OF_PROGRAMS
from kvpeak.system.host import has_nvidia_gpu, installed_version

REFERENCE = "reference BLAS of the MLX wheel"
CHOICE = "KVPEAK_BLAS"
SYSTEM = {
    "openblas": ("libopenblasp.so.0", "libopenblas.so.0", "libopenblas.so"),
    "mkl": ("libmkl_rt.so.3", "libmkl_rt.so.2", "libmkl_rt.so.1", "libmkl_rt.so"),
    "blis": ("libblis-mt.so", "libblis.so.4", "libblis.so.3", "libblis.so"),
}
CHOICES = ("scipy", *SYSTEM, "reference")
COMPILERS = ("cc", "gcc", "g++", "clang", "c++")
COMPILE_LIMIT_S = 60.0

# What MLX takes of a BLAS (`nm -D libmlx.so`); its LAPACK functions serve no step of inference.
SOURCE = """
#define FORWARD(name, number, scalar)                                                            \\
    void scipy_cblas_##name(int, int, int, int, int, int, scalar, const number *, int,           \\
                            const number *, int, scalar, number *, int);                         \\
    void cblas_##name(int order, int transpose_a, int transpose_b, int m, int n, int k,          \\
                      scalar alpha, const number *a, int lda, const number *b, int ldb,          \\
                      scalar beta, number *c, int ldc) {                                         \\
        scipy_cblas_##name(order, transpose_a, transpose_b, m, n, k, alpha, a, lda, b, ldb,      \\
                           beta, c, ldc);                                                        \\
    }
FORWARD(sgemm, float, float)
FORWARD(dgemm, double, double)
FORWARD(cgemm, void, const void *)
"""


_SERVES: dict[str, ctypes.CDLL] = {}  # the `library`, once one is loaded


class NotHere(Exception):
    """Why a BLAS cannot serve, in a few words."""


@functools.cache
def load_blas() -> str | None:
    """Load a BLAS for the whole process; return what it says of itself, with its threads.

    To be called before MLX is imported; a second call changes nothing. Without a choice in
    KVPEAK_BLAS: SciPy's OpenBLAS, else that of the system, else REFERENCE with a line on standard
    error. One that the process has already (LD_PRELOAD) stays.

    Returns `Accelerate` on macOS, where MLX needs no help, and None where MLX computes on an NVIDIA
    GPU. Raises UserError if the chosen one is not there.
    """
    if sys.platform == "darwin":
        return "Accelerate"
    if has_nvidia_gpu() and installed_version("mlx-cuda-12", "mlx-cuda-13"):
        return None
    if preloaded := _serving():
        return _described(ctypes.CDLL(preloaded))
    if choice := os.environ.get(CHOICE):
        return _chosen(choice)
    reasons = []
    for load in (_scipy, lambda: _system("openblas")):
        try:
            return load()
        except NotHere as reason:
            reasons.append(str(reason))
    print(
        f"kvpeak: {REFERENCE} serves, tens of times slower: {'; '.join(reasons)}", file=sys.stderr
    )
    return REFERENCE


def sgemv() -> Callable | None:
    """cblas_sgemv of the BLAS that serves; None where it is the reference or cannot be found."""
    if (library := _SERVES.get("library")) is None:
        return None
    for name in ("scipy_cblas_sgemv", "cblas_sgemv"):
        if hasattr(library, name):
            function = getattr(library, name)
            function.restype = None
            return function
    return None


def _chosen(choice: str) -> str:
    """The BLAS that the user chose. Raises UserError."""
    expected = f"expected {', '.join(CHOICES)}, or the path of a library"
    try:
        if choice == "reference":
            return REFERENCE
        if choice == "scipy":
            return _scipy()
        if choice in SYSTEM:
            return _system(choice)
        if "/" in choice:
            return _load([choice])
    except NotHere as reason:
        raise UserError(f"{CHOICE}={choice}: {reason}; {expected}") from None
    raise UserError(f"{CHOICE}={choice}: unknown; {expected}")


def _system(family: str) -> str:
    """Load one of the system's libraries. Raises NotHere."""
    return _load(SYSTEM[family])


def _load(names: tuple[str, ...] | list[str]) -> str:
    """Load the first of the libraries that is there and is a BLAS. Raises NotHere."""
    reasons = []
    for name in names:
        try:
            library = ctypes.CDLL(name, ctypes.RTLD_GLOBAL)
        except OSError as error:
            reasons.append(str(error))
            continue
        if not hasattr(library, "cblas_sgemm"):
            raise NotHere(f"{name} has no cblas_sgemm")
        return _described(library)
    raise NotHere(reasons[0] if len(names) == 1 else f"this system has no {names[-1]}")


def _scipy() -> str:
    """Load SciPy's OpenBLAS and the library that forwards to it. Raises NotHere."""
    library = _scipy_library()
    try:
        openblas = ctypes.CDLL(str(library), ctypes.RTLD_GLOBAL)
    except OSError as error:
        raise NotHere(str(error)) from None
    if not hasattr(openblas, "scipy_cblas_sgemm"):
        raise NotHere(f"{library.name} has no scipy_cblas_sgemm")
    _load_forwarding(_cache())
    return _described(openblas, f" of SciPy {installed_version('scipy')}")


def _scipy_library() -> Path:
    """The OpenBLAS in the wheel of SciPy, which is not imported. Raises NotHere."""
    found = importlib.util.find_spec("scipy")
    if found is None or not found.submodule_search_locations:
        raise NotHere("this environment has no SciPy")
    folder = Path(found.submodule_search_locations[0]).with_name("scipy.libs")
    libraries = sorted(folder.glob("libscipy_openblas-*.so"))
    if not libraries:
        raise NotHere(f"{folder} has no libscipy_openblas")
    return libraries[0]


def _load_forwarding(folder: Path | None) -> None:
    """Load the forwarding library of the cache; compile it where it is not there, or is damaged.

    Without a cache it is compiled for this process alone. Raises NotHere.
    """
    with contextlib.ExitStack() as stack:
        if folder is None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kvpeak-")))
        name = hashlib.sha256(f"{SOURCE}{os.uname().machine}".encode()).hexdigest()[:16]
        library = folder / f"blas-{name}.so"
        try:
            ctypes.CDLL(str(library), ctypes.RTLD_GLOBAL)
        except OSError:
            _compile(library)
            try:
                ctypes.CDLL(str(library), ctypes.RTLD_GLOBAL)
            except OSError as error:
                raise NotHere(str(error)) from None


def _compile(library: Path) -> None:
    """Compile SOURCE beside `library` and rename it. Raises NotHere."""
    compiler = _compiler()
    with tempfile.TemporaryDirectory(dir=library.parent) as scratch:
        made = Path(scratch, library.name)
        command = [*compiler, "-x", "c", "-O2", "-shared", "-fPIC", "-o", str(made), "-"]
        try:
            done = subprocess.run(
                command,
                input=SOURCE,
                capture_output=True,
                **OF_PROGRAMS,
                timeout=COMPILE_LIMIT_S,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise NotHere(str(error)) from None
        if done.returncode:
            said = done.stderr.strip().splitlines() or [f"ended with {done.returncode}"]
            raise NotHere(f"{compiler[0]}: {said[0]}")
        made.replace(library)


def _compiler() -> list[str]:
    """The C compiler's command: $CC, or the first of COMPILERS. Raises NotHere."""
    if given := shlex.split(os.environ.get("CC", "")):
        return given
    found = next((name for name in COMPILERS if shutil.which(name)), None)
    if found is None:
        raise NotHere("SciPy's OpenBLAS needs a C compiler (Debian: g++)")
    return [found]


def _cache() -> Path | None:
    """This user's own folder for what is compiled; None where there is none that only they can
    write to.
    """
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    folder = Path(base).expanduser() / "kvpeak"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        about = folder.stat()
    except (OSError, RuntimeError):
        return None
    private = about.st_uid == os.getuid() and not about.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return folder if private and os.access(folder, os.W_OK) else None


class _Address(ctypes.Structure):
    """Dl_info of dladdr(3)."""

    _fields_ = (
        ("file", ctypes.c_char_p),
        ("base", ctypes.c_void_p),
        ("symbol", ctypes.c_char_p),
        ("address", ctypes.c_void_p),
    )


def _serving() -> str | None:
    """The file of the library that offers cblas_sgemm to the whole process now."""
    process = ctypes.CDLL(None)
    if not hasattr(process, "cblas_sgemm"):
        return None
    about = _Address()
    process.dladdr(ctypes.cast(process.cblas_sgemm, ctypes.c_void_p), ctypes.byref(about))
    return about.file.decode()


def _described(library: ctypes.CDLL, origin: str = "") -> str:
    """What the BLAS that serves says of itself: name, version, `origin`, and how many threads it
    takes.
    """
    _SERVES["library"] = library
    for prefix in ("scipy_", ""):
        if hasattr(library, f"{prefix}openblas_get_config"):
            config = getattr(library, f"{prefix}openblas_get_config")
            config.restype = ctypes.c_char_p
            said = " ".join(config().decode().split())
            threads = getattr(library, f"{prefix}openblas_get_num_threads")()
            return f"{said}{origin}, {threads} threads"
    if hasattr(library, "mkl_get_version_string"):
        text = ctypes.create_string_buffer(200)
        library.mkl_get_version_string(text, len(text))
        said = " ".join(text.value.decode().split())
        return f"{said}, {library.mkl_get_max_threads()} threads"
    if hasattr(library, "bli_info_get_version_str"):
        library.bli_info_get_version_str.restype = ctypes.c_char_p
        version = library.bli_info_get_version_str().decode()
        return f"BLIS {version}, {max(1, library.bli_thread_get_num_threads())} threads"
    return f"BLAS in {Path(library._name).name}"
