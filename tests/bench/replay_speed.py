"""How fast the replay is: one full run, 1,000 predictions, and its memory against the number of
events.

A full run is the finding's: 24 layers, 4,097 tokens, 128 generated. The sweep is 1,000 predictions
of models, lengths, caches and slacks, prefill and 128 tokens, one after the other in this process
and through kvpeak predict on all cores. The targets that are printed are for 2 idle cores.
"""

import subprocess
import sys
import tempfile
import tracemalloc
from pathlib import Path
from statistics import median
from time import perf_counter, process_time

from kvpeak.inputs.shapes import find_shapes
from kvpeak.replay.pools import CandlePool
from kvpeak.replay.replay import FastReplay, Replay
from kvpeak.replay.trace import candle_trace, requests
from kvpeak.replay.workload import KV_CACHES, Workload

ROOT = Path(__file__).parents[2]

MODELS = (
    *("smollm2-135m-instruct", "qwen2.5-0.5b-instruct", "qwen2.5-1.5b-instruct"),
    *("qwen2.5-3b-instruct", "qwen2.5-7b-instruct"),
    *("llama-3.2-1b-instruct", "llama-3.2-3b-instruct"),
)
LENGTHS = (128, 256, 513, 600, 1025, 1100, 1500, 2049, 3000, 4097, 5000, 6000)
SLACKS = (None, 0, 1, 2)
SHAPES = find_shapes("qwen2.5-0.5b-instruct")


def full_run(kv_cache: str, slack: int | None, replay: type = FastReplay) -> float:
    """Seconds of one run of the finding's protocol."""
    work = Workload(4097, kv_cache, runs=1, capacity=4225)
    start = perf_counter()
    replay(CandlePool(slack)).run(candle_trace(SHAPES, work))
    return perf_counter() - start


def sweep() -> tuple[int, float, float]:
    """How many predictions, their wall seconds and their processor seconds, in this process."""
    wall, cpu, count = perf_counter(), process_time(), 0
    for model in MODELS:
        shapes = find_shapes(model)
        for length in LENGTHS:
            for kv_cache in KV_CACHES:
                for slack in SLACKS:
                    work = Workload(length, kv_cache, runs=1, capacity=length + 128)
                    FastReplay(CandlePool(slack)).run(candle_trace(shapes, work))
                    count += 1
    return count, perf_counter() - wall, process_time() - cpu


def program_sweep() -> float:
    """Seconds of the same sweep by kvpeak predict."""
    with tempfile.TemporaryDirectory() as folder:
        start = perf_counter()
        subprocess.run(
            [
                *(Path(sys.executable).with_name("kvpeak"), "predict"),
                *("--model", ",".join(MODELS), "--prompt-tokens", ",".join(map(str, LENGTHS))),
                *("--kv-cache", ",".join(KV_CACHES), "--slack", "none,0,1,2", "--runs", "1"),
                *("--sweep", Path(folder, "sweep.csv")),
            ],
            check=True,
        )
        return perf_counter() - start


def peak_kib(generate: int) -> tuple[int, float]:
    """How many events a run of this many tokens has, and the most memory that its replay takes."""
    work = Workload(513, "cat", generate, runs=1)
    events = sum(1 for _ in requests(candle_trace(SHAPES, work)))
    tracemalloc.start()
    FastReplay(CandlePool()).run(candle_trace(SHAPES, work))
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return events, most / 1024


def main() -> None:
    events = sum(
        1 for _ in requests(candle_trace(SHAPES, Workload(4097, "cat-contiguous", runs=1)))
    )
    print(f"one full run ({events:,} events with cat-contiguous), target 60 ms:")
    for kv_cache in KV_CACHES:
        for slack in (None, 2):
            times = sorted(full_run(kv_cache, slack) for _ in range(9))
            plain = full_run(kv_cache, slack, Replay)
            print(
                f"  {kv_cache:15} slack {slack!s:5} {1000 * times[0]:6.1f} ms at best, "
                f"{1000 * median(times):6.1f} median; event by event {1000 * plain:6.0f}"
            )
    count, wall, cpu = sweep()
    print(f"{count:,} predictions, target 20 s on 2 cores for 1,000:")
    print(f"  one process {wall:.1f} s ({cpu:.1f} s of processor time)")
    print(f"  kvpeak predict --sweep, all cores {program_sweep():.1f} s")
    print("memory of the replay, flat in the number of events:")
    for generate in (64, 128, 256, 510):
        print("  {:9,} events {:7,.0f} KiB".format(*peak_kib(generate)))


if __name__ == "__main__":
    main()
