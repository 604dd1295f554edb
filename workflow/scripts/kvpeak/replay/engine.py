"""The engine candle-replay: one request of the protocol, answered from a model's shapes alone."""

import sys
from collections.abc import Iterator
from pathlib import Path

from kvpeak.base.errors import Unsupported
from kvpeak.base.numbers import MIB
from kvpeak.inputs.model_folder import CONFIG, read_config
from kvpeak.inputs.shapes import Shapes, read_shapes
from kvpeak.protocol.emit import Emit, peak_rss_mib
from kvpeak.protocol.request import limits_of
from kvpeak.replay.caps import slack_of
from kvpeak.replay.memory import DeviceMemory, HostMemory
from kvpeak.replay.pools import CandlePool
from kvpeak.replay.prediction import predict, prefill_details
from kvpeak.replay.replay import FastReplay, Replay
from kvpeak.replay.script import Block
from kvpeak.replay.trace import candle_trace
from kvpeak.replay.weights import load_weights
from kvpeak.replay.workload import ATTENTIONS, KV_CACHES, Workload, workload
from kvpeak.system import host
from kvpeak.system.process_memory import own_memory

BUFFERS = ("real", "counted")  # whether real memory stands behind the pool's buffers
NO_SPEED = dict.fromkeys(("prefill_s", "ttft_s", "decode_s", "tokens_sha256"))  # a replay has none


def answer(request: dict, emit: Emit) -> None:
    """Replay the request; the last event is `done` or `outcome`. Raises UserError."""
    folder = Path(request["model"]["folder"])
    dtype = request["model"].get("dtype")
    shapes = read_shapes(read_config(folder), str(folder / CONFIG), dtype)
    emit(
        "started",
        versions={"candle": "0.11.0, replayed"},
        device={"accelerator": None},
        cap_bytes=None,
    )
    try:
        work, slack = workload_of(request), slack_of(request["cap"])
        replay_cell(request, shapes, work, slack, emit)
    except Unsupported as error:
        emit("outcome", outcome="unsupported", detail=str(error))
    except (OSError, RuntimeError) as error:  # what mmap and MLX raise when there is no more
        emit("outcome", outcome="oom", detail=" ".join(str(error).split()))


def workload_of(request: dict) -> Workload:
    """What the request's process does. Raises Unsupported for what Candle has no trace for."""
    options, protocol = request["options"], request["protocol"]
    attention = options.get("attention", "naive")
    for what, value, known in (
        ("kv_cache", request["kv_cache"], KV_CACHES),
        ("attention", attention, ATTENTIONS),
        ("buffers", options.get("buffers", "real"), BUFFERS),
    ):
        if value not in known:
            raise Unsupported(f"{what} {value}: expected one of {', '.join(known)}")
    chunk = options.get("prefill_chunk", "whole")
    return workload(
        request["prompt"]["tokens"],
        request["kv_cache"],
        generate=protocol["generate"],
        runs=protocol["warmup"] + protocol["recorded"],
        prefill_chunk=None if chunk == "whole" else chunk,
        attention=attention,
    )


def backing(request: dict, needed_mib: float) -> HostMemory | None:
    """The memory behind the buffers, or None to count only: as asked for, or where it does not fit.

    What fits is the guard's share of the memory that is available.
    """
    if request["options"].get("buffers", "real") == "counted":
        return None
    memory = HostMemory() if host.accelerator() == "cpu" else DeviceMemory()
    allowed = limits_of(request).guard_fraction * memory.available_mib()
    if needed_mib > allowed:
        print(
            f"candle_replay: only counting: {needed_mib:,.0f} MiB of buffers are more than the "
            f"guard's {allowed:,.0f} MiB",
            file=sys.stderr,
        )
        return None
    return memory


def replay_cell(
    request: dict, shapes: Shapes, work: Workload, slack: int | None, emit: Emit
) -> None:
    """Emit the events from `loaded` to `done`."""
    predicted = predict(shapes, work, slack)
    memory = backing(request, predicted["pool_peak_mib"] + predicted["weights_mib"])
    before = own_memory()
    pool = CandlePool(slack, memory)
    load_weights(pool, shapes)
    replay = FastReplay(pool)
    trace = candle_trace(shapes, work)
    replay.step(next(trace))
    emit(
        "loaded",
        load_s=None,
        loaded_mib=pool.held / MIB,
        weights_mapped=False,
        dtype=shapes.dtype,
        method="replayed: real" if memory else "replayed: counted",
    )
    peaks = replay_runs(replay, trace, request["protocol"]["warmup"], work, emit)
    emit(
        "done",
        **{key: max(run[key] for run in peaks) for key in peaks[0]},
        peak_rss_mib=peak_rss_mib(),
        base_rss_mib=before.rss_mib,
        base_footprint_mib=before.footprint_mib,
        predicted_footprint_mib=predicted["peak_mib"],
        **compact(prefill_details(shapes, work, slack)),
    )


def replay_runs(
    replay: Replay,
    trace: Iterator[Block],
    warmup: int,
    work: Workload,
    emit: Emit,
) -> list[dict[str, float]]:
    """Replay the runs, emit their events, and return the peaks of each in MiB."""
    pool, peaks, phase = replay.pool, [], "reset"
    for block in trace:
        run = {"run": len(peaks), "warmup": len(peaks) < warmup}
        if block.phase == "prefill" and phase == "reset":
            pool.peak, pool.peak_held = pool.total, pool.held
            emit("run_started", **run)
        elif block.phase == "sample" and phase == "prefill":
            emit("prefilled", run=run["run"])
        phase = block.phase
        replay.step(block)
        if phase == "reset":
            peaks.append(
                {
                    "peak_active_mib": pool.peak_held / MIB,
                    "peak_pool_mib": pool.peak / MIB,
                }
            )
            emit("run", **run, **NO_SPEED, **counts(work), **peaks[-1])
    return peaks


def counts(work: Workload) -> dict[str, int]:
    return {"prompt_tokens": work.prompt_tokens, "generated_tokens": work.generate}


def compact(details: dict) -> dict:
    """Who holds what, as lists: the runner keeps it in cell.json."""
    return {
        "buffers": [list(buffer.values()) for buffer in details["buffers"]],
        "layers": [list(layer.values()) for layer in details["layers"]],
        "captures": [list(capture.values()) for capture in details["captures"]],
    }
