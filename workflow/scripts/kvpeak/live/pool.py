"""Another buffer pool for MLX, live: a policy of kvpeak/pools between MLX and its allocator.

A library built against the headers of the MLX wheel takes the place of the functions of MLX's one
allocator object (kvpeak/pools/native/live_mlx.cpp). It works on a CPU and on Metal; it has not run
on Metal yet. Under CUDA, MLX's arrays do not come from that object.
"""

import ctypes
import hashlib
import os
import subprocess
from array import array
from functools import cache
from pathlib import Path

import mlx.core as mx

from kvpeak.base.errors import Unsupported, UserError
from kvpeak.base.text import OF_PROGRAMS
from kvpeak.live import device
from kvpeak.pools import library, trace
from kvpeak.pools.trace import Op, Trace

PHASES = ("load", "prefill", "decode", "between")
_HEADERS = Path(mx.__file__).parent / "include"
SANITIZE = os.environ.get("KVPEAK_SANITIZE", "")  # for the tests of the library itself
_ROOM = 4096  # for an error's text


class Counters(ctypes.Structure):
    """kvpeak_counters of live_mlx.cpp, in bytes or counts."""

    _fields_ = tuple(
        (name, ctypes.c_uint64)
        for name in (
            *("active", "active_peak", "reserved", "reserved_peak"),
            *("hits", "made", "returned", "events"),
        )
    )


def build() -> Path:
    """The library for the MLX that this process has; built if it is not there yet.

    Raises UserError if there is no compiler, or if it fails.
    """
    target = library.cache_folder() / f"libkvpeak_mlx-{_hash()}{library.SUFFIX}"
    if not target.exists():
        mlx_library = Path(mx.__file__).parent / "lib"
        flags = [f"-fsanitize={SANITIZE}"] if SANITIZE else []
        flags += ["-std=c++20", "-isystem", str(_HEADERS), f"-L{mlx_library}", "-lmlx"]
        library.compile_library(
            target, ("parameters.cpp", "live_mlx.cpp"), [*flags, f"-Wl,-rpath,{mlx_library}"]
        )
    return target


@cache
def made_of() -> dict[str, str]:
    """What the library is made of and with, for the record."""
    compiler = library.compiler()
    said = subprocess.run([compiler, "--version"], capture_output=True, **OF_PROGRAMS, check=False)
    return {
        "sources": library.source_hash(),
        "headers": hashlib.sha256((_HEADERS / "mlx/allocator.h").read_bytes()).hexdigest()[:16],
        "mlx": mx.__version__,
        "compiler": said.stdout.partition("\n")[0],
    }


def _hash() -> str:
    parts = [*made_of().values(), str(_HEADERS), SANITIZE]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


class Pool:
    """A policy in MLX's place, or with `setting` '' only the recording of its requests."""

    def __init__(
        self, setting: str, cap: str = "default", record: bool = False, wait: bool = False
    ):
        """Install it for the rest of the process. Raises Unsupported, with the reason.

        `setting` is a policy and its parameters, as `torch,expandable_segments:True`; `cap` that of
        the cell. With `wait` the thread that runs the operations runs while the program asks for
        memory and no longer, so that two processes ask and free in the same order.
        """
        accelerator = device.accelerator()
        if accelerator == "cuda":
            raise Unsupported(
                "pool: under CUDA MLX's arrays come from a function that cannot be replaced "
                "(malloc_async), not from its allocator object"
            )
        if wait and accelerator != "cpu":
            raise Unsupported("wait: a CPU alone frees memory in a second thread")
        name, _, parameters = setting.partition(",")
        self.setting = ",".join(
            part for part in (name, with_cap(name, parameters, cap, accelerator)) if part
        )
        try:
            self._library = ctypes.CDLL(str(build()))
        except UserError as error:
            raise Unsupported(f"pool: unavailable: {error}") from None
        self._own_limit = mx.set_cache_limit(0) if setting else None
        message = ctypes.create_string_buffer(_ROOM)
        failed = self._library.kvpeak_mlx_install(
            name.encode(),
            self.setting.partition(",")[2].encode(),
            int(record),
            int(wait),
            int(accelerator == "metal"),
            message,
            ctypes.c_uint64(_ROOM),
        )
        if failed:
            raise Unsupported(f"pool {setting}: {message.value.decode(errors='replace')}")
        self.replaces = bool(setting)
        self._record = record
        self._phases: list[str] = []
        self._own_clear_cache, mx.clear_cache = mx.clear_cache, self.clear_cache
        self.phase("load")

    def described(self) -> dict[str, str]:
        """The policy in force, and what its library was made of."""
        return {"setting": self.setting, **made_of()}

    def counters(self) -> Counters:
        found = Counters()
        self._library.kvpeak_mlx_counters(ctypes.byref(found))
        return found

    def clear_cache(self) -> None:
        """In the place of mx.clear_cache."""
        self._library.kvpeak_mlx_trim()
        if not self.replaces:
            self._own_clear_cache()

    def reset_peaks(self) -> None:
        self._library.kvpeak_mlx_reset_peaks()

    def phase(self, name: str) -> None:
        """Mark where the program is from now on, in the recording."""
        if not self._record:
            return
        if name not in self._phases:
            self._phases.append(name)
        self._library.kvpeak_mlx_phase(ctypes.c_uint8(self._phases.index(name)))

    def save(self, folder: Path, name: str) -> None:
        """Write what was recorded into a folder, as trace.kvtrace."""
        trace.write(self.trace(name), folder / f"trace{trace.SUFFIX}")

    def trace(self, name: str) -> Trace:
        """What was recorded until now."""
        recorded = Trace(
            name=name, source="mlx", setting=self.setting or _own(device.accelerator())
        )
        recorded.phases = self._phases[:]
        self._copy(recorded)
        start = recorded.time[0] if recorded.time else 0
        recorded.time = array("q", (time - start for time in recorded.time))
        recorded.stream = array("I", bytes(4 * len(recorded)))
        recorded.stack = array("I", bytes(4 * len(recorded)))
        recorded.buffers = sum(op == Op.ALLOC for op in recorded.op)
        return recorded

    def _copy(self, recorded: Trace) -> None:
        """Fill the columns that the library has."""
        count = self.counters().events
        recorded.op = bytearray(count)
        columns = recorded.time, recorded.id, recorded.bytes, recorded.phase
        for column in columns:
            column.frombytes(bytes(column.itemsize * count))
        time, *others = (ctypes.c_void_p(column.buffer_info()[0]) for column in columns)
        copy = self._library.kvpeak_mlx_events
        copy.restype = ctypes.c_uint64
        op = (ctypes.c_uint8 * count).from_buffer(recorded.op)
        count = copy(ctypes.c_uint64(count), time, op, *others)
        del op  # which holds the column's length
        for column in (recorded.op, *columns):
            del column[count:]


def with_cap(name: str, parameters: str, cap: str, accelerator: str) -> str:
    """A policy's parameters with the cell's cap and the accelerator's constants."""
    parts = [parameters] if parameters else []
    given = {part.partition(":")[0] for part in parameters.split(",")}
    if name == "mlx" and "backend" not in given:
        parts.append(f"backend:{accelerator}")
        parts += _metal_limits(given) if accelerator == "metal" else []
    if cap not in ("default", "none") or (cap == "none" and name == "mlx"):
        parts = [part for part in parts if not part.startswith("cap:")] + [f"cap:{cap}"]
    return ",".join(parts)


def _metal_limits(given: set[str]) -> list[str]:
    """MLX's own limits on Metal (mlx/backend/metal/allocator.cpp), of this machine."""
    info = mx.device_info()
    recommended, memory = info["max_recommended_working_set_size"], info["memory_size"]
    block = min(1.5 * recommended, 0.95 * memory)
    limits = {"cap": int(block), "gc_limit": int(min(0.95 * recommended, block))}
    return [f"{key}:{value}" for key, value in limits.items() if key not in given]


def _own(accelerator: str) -> str:
    return f"mlx,backend:{accelerator}"
