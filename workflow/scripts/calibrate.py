"""Measure what an engine's environment can do at most on this machine: a matrix product, a copy, a matrix-vector product.

Takes a few seconds, once per machine and environment. `decode` is held against the faster of the copy and the
matrix-vector product, which reads a matrix much larger than a cache and is what decode consists of.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

from kvpeak.base.errors import UserError
from kvpeak.base.files import write_json
from kvpeak.live.blas import load_blas

DTYPES = ("float32", "bfloat16", "float16")
SHORTEST_S = 0.02  # a product is long enough that starting it does not count
LARGEST = 8192  # rows of the square matrices
COPIED = 1 << 24  # elements: 64 MiB of float32; the types of 16 bits are slow on a CPU
CUDA_COPY_BYTES = 1 << 29  # larger than a data-centre card's cache
CUDA_QUEUED = 8  # of one kind at once: a launch, and waiting for its end, take longer than many a small kernel
REPEATS = 10  # of one kind at least: the best of two or three is a matter of luck beside other work
BUDGET_S = 0.5  # for each figure, or longer where that many take longer


def measure(dtypes: list[str]) -> dict:
    """FLOP/s and bytes/s of each type, in this process's MLX: {blas, device, dtypes: {dtype: {flops, ...}}}."""
    blas = load_blas()
    import mlx.core as mx  # after the BLAS, which has to come first

    from kvpeak.live import device

    device = device.describe()
    cuda = device["accelerator"] == "cuda"
    # results take the same memory again, which is not zeroed each time
    mx.set_cache_limit(2 * CUDA_QUEUED * CUDA_COPY_BYTES if cuda else 1 << 30)
    return {
        "mlx": mx.__version__,
        "device": device,
        "blas": blas if device["accelerator"] == "cpu" else None,
        "dtypes": {name: measure_dtype(mx, getattr(mx, name), cuda) for name in dtypes},
    }


def measure_dtype(mx, dtype, cuda: bool) -> dict:
    """The best of REPEATS calls or more each: `flops` of an n×n product (2n³), `copy` and `matvec` in bytes read and written."""
    nbytes, queued = (CUDA_COPY_BYTES, CUDA_QUEUED) if cuda else (COPIED * dtype.size, 1)
    n = 256
    while True:
        a = mx.random.normal((n, n)).astype(dtype)
        if n == LARGEST or best(mx, lambda: a @ a, queued, 1, 0) >= SHORTEST_S:  # noqa: B023
            break
        n *= 2
    found = {"matmul_rows": n, "flops": 2 * n**3 / best(mx, lambda: a @ a, queued)}
    source = mx.random.normal((nbytes // dtype.size,)).astype(dtype)
    found["copy"] = 2 * nbytes / best(mx, lambda: source + 1, queued)
    matrix = source.reshape(-1, 4096)
    token = mx.zeros((1, 4096), dtype)
    found["matvec"] = nbytes / best(mx, lambda: token @ matrix.T, queued)
    return found


def best(mx, compute, queued: int, repeats: int = REPEATS, budget_s: float = BUDGET_S) -> float:
    """The shortest time of one of `queued` calls in seconds, of `repeats` rounds and as many more as fit in `budget_s`.

    One round before them does not count.
    """
    mx.eval([compute() for _ in range(queued)])
    shortest, rounds, end = float("inf"), 0, time.perf_counter() + budget_s
    while rounds < repeats or time.perf_counter() < end:
        began = time.perf_counter()
        mx.eval([compute() for _ in range(queued)])
        shortest = min(shortest, (time.perf_counter() - began) / queued)
        rounds += 1
    return shortest


def calibrate(commit: str, python: str, dtypes: list[str]) -> dict:
    """Measure in a process of the environment's own interpreter. Raises UserError where that fails."""
    from kvpeak.system import machine  # an environment of an engine need not have what these import
    from kvpeak.system.lock import measuring_alone
    from kvpeak.system.nvml import chosen_gpu, open_gpu

    def say(text: str) -> None:
        print(f"calibrate {commit}: {text}", file=sys.stderr)

    with measuring_alone(f"calibration of {commit}", (), say, lambda: None):
        gpu = open_gpu(chosen_gpu(None, os.environ.get("CUDA_VISIBLE_DEVICES")))
        name = machine.state(gpu and gpu.state())["name"]
        command = [python, __file__, "--measure", "--dtypes", *dtypes]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise UserError(f"{commit}: exit code {done.returncode}; the lines above say why")
    return {"commit": commit, "machine": name} | json.loads(done.stdout)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--commit", help="the environment's name")
    parser.add_argument(
        "--python", default=sys.executable, help="its interpreter; default: this one"
    )
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, default=list(DTYPES))
    parser.add_argument("--out", type=Path, help="where the JSON goes")
    parser.add_argument(
        "--measure", action="store_true", help="measure in this process and print the JSON"
    )
    arguments = parser.parse_args()
    if arguments.measure:
        print(json.dumps(measure(arguments.dtypes)))
        return 0
    if not (arguments.commit and arguments.out):
        parser.error("--commit and --out are needed")
    try:
        write_json(arguments.out, calibrate(arguments.commit, arguments.python, arguments.dtypes))
    except UserError as error:
        print(f"calibrate: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
