"""Processes whose memory is known: what they take is what the instruments have to read.

Each probe answers one request with the events of docs/protocol.md, like an engine. `loaded` has
what the process took before (`before`), `run` what it took in all (`known`), counted here and not
by what is tested:

    touch  touches host memory and keeps it until it exits
    free   touches host memory, gives it back, and exits
    hold   holds a buffer of the accelerator for 50 ms
    pool   leaves a buffer in MLX's pool beside a live one, then clears the pool and waits
    child  starts a process that touches memory
"""

import mmap
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from kvpeak.base.numbers import MIB
from kvpeak.base.text import OF_PROGRAMS
from kvpeak.protocol.emit import Emit, peak_rss_mib
from kvpeak.system.process_memory import Own, own_memory

SCRIPTS = Path(__file__).resolve().parents[2]
HELD_S = 0.05
IDLE_S = 0.1  # before and after: several samples
TREE_S = 0.3  # several looks at what a process has started
# The longest that a footprint's fall is waited for; four seconds have been seen on Metal.
FALL_S = 6.0
CUDA_FALL_S = 1.0  # there the process cannot see what the device charges it for
FELL_MIB = 4.0
NOTHING = dict.fromkeys(("prefill_s", "ttft_s", "decode_s", "tokens_sha256"))

Probe = Callable[[int, Own, Callable[[], None]], dict]


def answer(request: dict, emit: Emit) -> None:
    """Run the request's probe with its `mib`."""
    accelerated = request["probe"] in ACCELERATED
    emit("started", versions={}, cap_bytes=None, device=_accelerator() if accelerated else {})
    before = own_memory()
    emit(
        "loaded", load_s=None, loaded_mib=None, weights_mapped=None, dtype=None, before=vars(before)
    )
    time.sleep(IDLE_S)
    emit("run_started", run=0, warmup=False)
    time.sleep(HELD_S)  # the runner knows it before it samples what follows
    known = PROBES[request["probe"]](request["mib"], before, lambda: emit("prefilled", run=0))
    counted = _peaks[0].mib() if _peaks else dict.fromkeys(("peak_active_mib", "peak_pool_mib"))
    emit(
        "run",
        **{"run": 0, "warmup": False, "prompt_tokens": 1, "generated_tokens": 0},
        **NOTHING,
        **counted,
        known=known,
    )
    emit("done", **counted, peak_rss_mib=peak_rss_mib())


def touch(mib: int, before: Own, mark: Callable[[], None]) -> dict:
    kept.append(_touched(mib))
    mark()
    time.sleep(IDLE_S)
    return _host(before, mib)


def free(mib: int, before: Own, mark: Callable[[], None]) -> dict:
    _touched(mib).close()
    mark()
    return _host(before, mib)


def hold(mib: int, before: Own, mark: Callable[[], None]) -> dict:
    import mlx.core as mx

    buffer = mx.zeros((mib * MIB,), mx.uint8)
    mx.eval(buffer)
    time.sleep(HELD_S)
    del buffer
    mark()
    _peaks[0].sample()
    return _on_accelerator(before, active=mib, pool=mib)


def pool(mib: int, before: Own, mark: Callable[[], None]) -> dict:
    """MLX reuses a buffer only for a request of nearly its size; so half of one is another
    buffer.
    """
    import mlx.core as mx

    first = mx.zeros((mib * MIB,), mx.uint8)
    mx.eval(first)
    time.sleep(HELD_S)
    del first
    second = mx.zeros((mib * MIB // 2,), mx.uint8)
    mx.eval(second)
    _peaks[0].sample()
    time.sleep(IDLE_S)
    del second
    mx.clear_cache()
    mark()
    _wait_for_the_fall(before)
    kept_too = mib if _pools() else mib // 2
    return _on_accelerator(before, active=mib, pool=max(mib, kept_too + mib // 2))


def child(mib: int, before: Own, mark: Callable[[], None]) -> dict:
    code = f"from kvpeak.live.probe import be_child; be_child({mib})"
    environment = os.environ | {"PYTHONPATH": str(SCRIPTS)}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=environment,
        stdout=subprocess.PIPE,
        **OF_PROGRAMS,
        check=True,
    )
    mark()
    return _host(before, 0) | {"tree_mib": before.footprint_mib + float(done.stdout)}


def be_child(mib: int) -> None:
    """Touch memory for a while; print what this process takes with it, in MiB."""
    kept.append(_touched(mib))
    print(own_memory().footprint_mib)
    time.sleep(TREE_S)


PROBES: dict[str, Probe] = {
    "touch": touch,
    "free": free,
    "hold": hold,
    "pool": pool,
    "child": child,
}
ACCELERATED = ("hold", "pool")
kept: list[mmap.mmap] = []  # until the process exits
_peaks: list = []  # the engine's own allocator.Peaks, once MLX is there


def _touched(mib: int) -> mmap.mmap:
    """New anonymous memory, every page of it written."""
    memory = mmap.mmap(-1, mib * MIB, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory[:: mmap.PAGESIZE] = b"\1" * (mib * MIB // mmap.PAGESIZE)
    return memory


def _host(before: Own, mib: int) -> dict:
    return {"footprint_mib": before.footprint_mib + mib, "rss_mib": before.rss_mib + mib}


def _on_accelerator(before: Own, active: int, pool: int) -> dict:
    """What is known beside MLX's own counters: under CUDA the device's growth, on a CPU and with
    Metal the footprint, on a CPU the resident size too."""
    from kvpeak.live.device import accelerator

    known = {"active_mib": active, "pool_mib": pool}
    match accelerator():
        case "cuda":
            return known | {"device_growth_mib": pool}
        case "metal":
            return known | {"footprint_mib": before.footprint_mib + pool}
    return known | _host(before, pool)


def _accelerator() -> dict:
    """Start MLX and its pool; the first buffer brings what the process needs for any."""
    from kvpeak.live.blas import load_blas

    load_blas()
    import mlx.core as mx

    from kvpeak.live import allocator, device

    allocator.limit_pool(allocator.NO_LIMIT)
    mx.eval(mx.zeros((MIB,), mx.uint8))
    mx.clear_cache()
    _peaks.append(allocator.Peaks())
    return device.describe()


def _pools() -> bool:
    """Whether this MLX keeps freed buffers."""
    from kvpeak.live import allocator

    return allocator.limit_pool(allocator.NO_LIMIT) is not None


def _wait_for_the_fall(before: Own) -> None:
    from kvpeak.live.device import accelerator

    if accelerator() == "cuda":
        time.sleep(CUDA_FALL_S)
        return
    end = time.monotonic() + FALL_S
    while time.monotonic() < end and own_memory().footprint_mib > before.footprint_mib + FELL_MIB:
        time.sleep(0.005)
    time.sleep(IDLE_S)
