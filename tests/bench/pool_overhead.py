"""What a pool in MLX's place, and a recording, cost in speed against MLX as it is.

    python tests/bench/pool_overhead.py [--rounds N]

Processes of the tiny model in the order A B B A, with `pool: mlx`, with `record: true` and with
neither. Prints the ratio of the speeds of each round's pairs, with a 95 % interval (Student t over
the rounds' logarithms). Run it on a quiet machine.
"""

import argparse
import math
import os
import statistics
import sys
import tempfile
from pathlib import Path

from pool_validation import random_model, request_of, run
from scipy.stats import t as student

KINDS = {"pool: mlx": {"pool": "mlx"}, "record: true": {"record": True}}
COMPARED_SPEEDS = ("prefill", "decode")
TOKENS, GENERATE, RUNS = 513, 128, 4


def speeds(folder: Path, model: dict, options: dict) -> dict[str, float]:
    """Tokens per second of one process's last run."""
    request = request_of(model, "cat", TOKENS, options)
    request["cap"] = "32MiB"  # MLX's own on a CPU
    request["protocol"] |= {"warmup": 1, "recorded": RUNS - 1, "generate": GENERATE}
    done = run(folder, request)["run"]
    return {
        "prefill": TOKENS / done["prefill_s"],
        "decode": (GENERATE - 1) / done["decode_s"],
    }


def interval(ratios: list[float]) -> tuple[float, float, float]:
    """The geometric mean and its 95 % interval."""
    logs = [math.log(ratio) for ratio in ratios]
    middle = statistics.mean(logs)
    half = student.ppf(0.975, len(logs) - 1) * statistics.stdev(logs) / math.sqrt(len(logs))
    return tuple(math.exp(middle + off) for off in (0, -half, half))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=8)
    given = parser.parse_args()
    found = {(kind, speed): [] for kind in KINDS for speed in COMPARED_SPEEDS}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = random_model("qwen2-tiny", folder)
        tokens = [(11 * i * i + 7) % 4096 for i in range(TOKENS)]
        (folder / "prompt.json").write_text(f'{{"tokens": {tokens}}}')
        for _ in range(given.rounds):
            for kind, options in KINDS.items():
                a, b, c, d = (speeds(folder, model, each) for each in ({}, options, options, {}))
                for speed in COMPARED_SPEEDS:
                    ratio = math.sqrt(b[speed] * c[speed] / (a[speed] * d[speed]))
                    found[kind, speed].append(ratio)
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores, {given.rounds} rounds")
    for (kind, speed), ratios in found.items():
        middle, low, high = interval(ratios)
        print(f"{kind:14}{speed:8} {middle:.3f} ({low:.3f} to {high:.3f}) of MLX's own speed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
