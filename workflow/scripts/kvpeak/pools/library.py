"""The policies' library: built with a plain C++17 compiler, called through ctypes.

An installation brings it built (setup.py). From a checkout it is built at first use and kept under
the hash of its sources, so that an edited policy is never mistaken for the old one.
"""

import ctypes
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

from kvpeak.base.errors import UserError
from kvpeak.base.text import OF_PROGRAMS

NATIVE = Path(__file__).parent / "native"
SOURCES = ("parameters.cpp", "pickle.cpp", "replay.cpp")
FLAGS = ("-std=c++17", "-O2", "-Wall", "-Wextra", "-fPIC", "-shared")
SUFFIX = ".dylib" if sys.platform == "darwin" else ".so"


def policies() -> list[Path]:
    """The headers of the policies, one each: ours, then those of the folder KVPEAK_POLICIES.

    Raises UserError if that is no folder with a policy in it.
    """
    own = sorted((NATIVE / "policies").glob("*.h"))
    if not (given := os.environ.get("KVPEAK_POLICIES")):
        return own
    more = sorted(Path(given).resolve().glob("*.h"))
    if not more:
        raise UserError(f"KVPEAK_POLICIES: {given}: expected one folder, with a policy (.h) in it")
    return own + more


def source_hash() -> str:
    """Of everything that the library is made of."""
    digest = hashlib.sha256()
    for path in sorted({*NATIVE.glob("*.h"), *NATIVE.glob("*.cpp")}) + policies():
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


def compiler() -> str:
    """The C++ compiler: $CXX, or the first that is there. Raises UserError if none is."""
    wanted = [os.environ["CXX"]] if os.environ.get("CXX") else ["c++", "clang++", "g++"]
    for name in wanted:
        if shutil.which(name):
            return name
    raise UserError(
        f"no C++ compiler: {' or '.join(wanted)} not found; install g++ or clang, or name one in "
        "CXX"
    )


def write_index(folder: Path) -> None:
    """policies.inc: an #include for each policy, so that a new file is found without an entry."""
    lines = [f'#include "{path}"\n' for path in policies()]
    (folder / "policies.inc").write_text("".join(lines))


def compile_library(target: Path, sources=SOURCES, flags=()) -> None:
    """Build the shared library `target`; `flags` come after the sources, as libraries must.

    Raises UserError with what the compiler said.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        write_index(Path(folder))
        built = Path(folder) / target.name
        command = [compiler(), *FLAGS, f"-I{folder}", f"-I{NATIVE}"]
        command += [*(str(NATIVE / source) for source in sources), *flags, "-o", str(built)]
        done = subprocess.run(command, capture_output=True, **OF_PROGRAMS, check=False)
        if done.returncode:
            raise UserError(
                f"{target.name}: {command[0]} could not build it: {done.stderr[-4000:]}"
            )
        built.replace(target)


def cache_folder() -> Path:
    """Where what is built at first use is kept; KVPEAK_CACHE or the user's cache."""
    if os.environ.get("KVPEAK_CACHE"):
        return Path(os.environ["KVPEAK_CACHE"])
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / (
        "Library/Caches" if sys.platform == "darwin" else ".cache"
    )
    return Path(base) / "kvpeak"


def library_name() -> str:
    """The library's file, named after its sources."""
    return f"libkvpeak_pools-{source_hash()}{SUFFIX}"


def library_path() -> Path:
    """The built library; builds it if it is not there."""
    name = library_name()
    installed = NATIVE / name
    if installed.exists():
        return installed
    target = cache_folder() / name
    if not target.exists():
        compile_library(target)
    return target


class Events(ctypes.Structure):
    """kvpeak_events of replay.cpp."""

    _fields_ = (
        ("count", ctypes.c_uint64),
        ("buffers", ctypes.c_uint64),
        ("op", ctypes.c_void_p),
        ("id", ctypes.c_void_p),
        ("stream", ctypes.c_void_p),
        ("bytes", ctypes.c_void_p),
    )


_SIGNED = ("peak_at", "active_peak_at", "failed_at")


class Result(ctypes.Structure):
    """kvpeak_result of replay.cpp; bytes or counts, `*_at` events, -1 for none."""

    _fields_ = tuple(
        (name, ctypes.c_int64 if name in _SIGNED else ctypes.c_uint64)
        for name in (
            *("reserved_peak", "reserved_end", "active_peak", "allocated_peak", "requested_peak"),
            *("active_at_peak", "requested_at_peak", "requests", "hits", "made", "returned"),
            *("retries", "retry_bytes", "peak_at", "active_peak_at"),
            *("failed_at", "failed_bytes", "failed_reserved", "failed_active"),
        )
    )


@cache
def load() -> ctypes.CDLL:
    """The library, ready to be called."""
    library = ctypes.CDLL(str(library_path()))
    u64, pointer = ctypes.c_uint64, ctypes.c_void_p
    library.kvpeak_replay.argtypes = (
        ctypes.c_char_p,
        ctypes.c_char_p,
        u64,
        ctypes.POINTER(Events),
        u64,
        u64,
        pointer,
        pointer,
        ctypes.POINTER(Result),
        ctypes.POINTER(ctypes.c_int),
        ctypes.c_char_p,
        u64,
    )
    library.kvpeak_policies.argtypes = (ctypes.c_char_p, u64)
    library.kvpeak_check_pickle.argtypes = (ctypes.c_void_p, u64, u64, ctypes.c_char_p, u64)
    return library
