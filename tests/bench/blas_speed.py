"""Compare what MLX's float32 products reach on this CPU with the BLAS of its wheel and with others.

Every figure is the best of several products in a process of its own; the choices take turns, round
by round. Printed: the median of the rounds in GFLOP/s, their range, and the median ratio to the
first choice.
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from statistics import median

SCRIPTS = Path(__file__).parents[2] / "workflow/scripts"
SHAPES = ("512x896x4864", "1024x1024x1024", "1x896x4864")
SECONDS = 0.5  # for each shape in each process, and three products at least


def measure(shapes: list[str]) -> dict:
    """{"blas": what served, shape: FLOP/s}: products of (m, k) and (k, n) in this process."""
    sys.path.insert(0, str(SCRIPTS))
    from time import perf_counter

    from kvpeak.live.blas import load_blas

    found = {"blas": load_blas()}
    import mlx.core as mx

    for shape in shapes:
        m, k, n = map(int, shape.split("x"))
        a, b = mx.random.normal((m, k)), mx.random.normal((k, n))
        mx.eval(a @ b)
        best, rounds, end = float("inf"), 0, perf_counter() + SECONDS
        while rounds < 3 or perf_counter() < end:
            began = perf_counter()
            mx.eval(a @ b)
            best, rounds = min(best, perf_counter() - began), rounds + 1
        found[shape] = 2 * m * k * n / best
    return found


def in_process(choice: str, shapes: list[str]) -> dict:
    command = [sys.executable, __file__, "--measure", "--shapes", *shapes]
    environment = os.environ | {"KVPEAK_BLAS": choice}
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout)


def report(shape: str, choice: str, found: list[float], first: list[float]) -> str:
    rates = [rate / 1e9 for rate in found]
    ratio = median(rate / other for rate, other in zip(found, first, strict=True))
    spread = f"{min(rates):.1f} to {max(rates):.1f}"
    return f"{shape:<16} {choice:<12} {median(rates):>9.1f}  {spread:<18} {ratio:>6.1f}x"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--blas", nargs="+", default=["reference", "scipy"], help="of KVPEAK_BLAS")
    parser.add_argument("--shapes", nargs="+", default=list(SHAPES), metavar="MxKxN")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--measure", action="store_true", help="one process: print its JSON")
    given = parser.parse_args()
    if given.measure:
        print(json.dumps(measure(given.shapes)))
        return 0
    found = {choice: [] for choice in given.blas}
    for number in range(given.rounds):
        for choice in given.blas if number % 2 == 0 else reversed(given.blas):
            found[choice].append(in_process(choice, given.shapes))
    for choice, rounds in found.items():
        print(f"{choice}: {rounds[0]['blas']}")
    load = os.getloadavg()[0]
    print(f"GFLOP/s of float32, {given.rounds} rounds, {os.cpu_count()} CPUs, load {load:.1f}")
    for shape in given.shapes:
        rates = {choice: [each[shape] for each in rounds] for choice, rounds in found.items()}
        for choice in given.blas:
            print(report(shape, choice, rates[choice], rates[given.blas[0]]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
