"""How fast `kvpeak pools` is, and how much memory it takes.

    python tests/bench/pools_speed.py

- One setting: a trace of 163,000 events under PyTorch's rule.
- A search: the same trace under 1,000 settings, on all cores.
- A snapshot of PyTorch's memory with 2 million events: `kvpeak pools FILE` as a process of its own.

The trace is a made-up program of random requests, seeded. The targets are for 2 idle cores.
"""

import os
import pickle
import random
import resource
import subprocess
import sys
import tempfile
from itertools import islice
from pathlib import Path
from statistics import median
from time import perf_counter

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "workflow/scripts"))

from kvpeak.pools import settings, snapshot  # noqa: E402
from kvpeak.pools.replay import Setting, policies, replay, replay_all  # noqa: E402

EVENTS, SETTINGS, SNAPSHOT_EVENTS = 163_000, 1_000, 2_000_000
LIVE, STACKS, FRAMES = 2_000, 300, 20  # buffers at a time; different stacks, and their depth


def made_up(events: int) -> dict:
    """A snapshot as torch.cuda.memory._snapshot() gives it, with so many events."""
    draw = random.Random(0)
    stacks = [
        [{"name": f"f{s}", "filename": f"module{s % 40}.py", "line": k} for k in range(FRAMES)]
        for s in range(STACKS)
    ]
    sizes = [int(512 * 1.35**k) for k in range(40)]
    history, live, address = [], [], 1 << 40

    def event(action, at, size):
        stack = stacks[draw.randrange(STACKS)]
        history.append(
            {
                "action": action,
                "addr": at,
                "size": size,
                "stream": 0,
                "time_us": 10**15 + 3 * len(history),
                "compile_context": "N/A",
                "user_metadata": "",
                "frames": stack,
            }
        )

    while len(history) < events:
        if len(live) < LIVE or draw.random() < 0.5:
            size = draw.choice(sizes)
            address += size + 512
            live.append((address, size))
            event("alloc", address, size)
        else:
            at, size = live.pop(draw.randrange(len(live)))
            event("free_requested", at, size)
            event("free_completed", at, size)
    return {"device_traces": [history], "segments": [], "allocator_settings": {}}


def one_setting(trace) -> float:
    """Seconds, the median of nine replays."""
    took = []
    for _ in range(9):
        start = perf_counter()
        replay(trace, Setting("torch"))
        took.append(perf_counter() - start)
    return median(took)


def search(trace) -> float:
    """Seconds for SETTINGS settings of all policies."""
    tried = [each for policy in policies().values() for each in settings.space(policy)]
    tried = list(islice((each for _ in range(SETTINGS) for each in tried), SETTINGS))
    start = perf_counter()
    replay_all(trace, tried)
    return perf_counter() - start


def command(file: Path) -> tuple[float, float]:
    """Seconds and peak MiB of `kvpeak pools` on a snapshot."""
    start = perf_counter()
    program = [sys.executable, ROOT / "workflow/scripts/pools.py", file]
    subprocess.run(program, check=True, stdout=subprocess.DEVNULL)
    took = perf_counter() - start
    return took, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024


def main() -> None:
    replay(snapshot.traces(made_up(100), "small")[0], Setting("torch"))  # builds the library
    (trace,) = snapshot.traces(made_up(EVENTS + EVENTS // 2), "made up")
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    name = f"{len(trace):,} events, one setting"
    print(f"{name:40}{1000 * one_setting(trace):8.1f} ms   target 20 ms")
    print(f"{SETTINGS:,} settings{'':26}{search(trace):8.1f} s    target 60 s")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "snapshot.pickle"
        with file.open("wb") as opened:
            pickle.dump(made_up(SNAPSHOT_EVENTS), opened)
        took, peak = command(file)
        print(f"{SNAPSHOT_EVENTS:,} events, the command{'':12}{took:8.1f} s    target 30 s")
        print(f"{'':40}{peak:8,.0f} MiB  target 2,048 MiB")


if __name__ == "__main__":
    main()
