"""What a pool in MLX's place, and a recording, cost in speed against MLX as it is.

    python tests/bench/pool_overhead.py [--rounds N] [--config FILE]

One process for `pool: mlx` and one for `record: true`. It loads a random model, and MLX's
allocator and the pool take turns (A B, B A, …) at mlx-lm's own loop; between turns nothing of a run
is left in either. Prints the pool's speed over MLX's as a median with its 95 % interval (a
bootstrap over rounds). The exit code is 1 if a token differs, or if a median is below 0.98. Run it
on a quiet machine.
"""

import argparse
import ctypes
import gc
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import median

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "workflow/scripts"))
sys.path.insert(0, str(Path(__file__).parent))

from engine_speed import interval  # noqa: E402
from stock_speed import RATES, stock_loop  # noqa: E402

from kvpeak.live.blas import load_blas  # noqa: E402
from kvpeak.pools.trace import Op  # noqa: E402

KINDS = {"pool: mlx": ("mlx", False), "record: true": ("", True)}
LEAST = 0.98
OWN_LIMIT = "32MiB"  # MLX's own on a CPU
ALLOCATOR = "_ZN3mlx4core9allocator9allocatorEv"  # mlx::core::allocator::allocator()


class Turns:
    """MLX's allocator object, with its own table of functions or with the pool's."""

    def __init__(self, setting: str, record: bool):
        import mlx.core as mx

        from kvpeak.live import allocator
        from kvpeak.live.pool import Pool

        find = getattr(ctypes.CDLL(str(Path(mx.__file__).parent / "lib/libmlx.so")), ALLOCATOR)
        find.restype = ctypes.c_void_p
        self._table = ctypes.c_void_p.from_address(find())
        own = self._table.value, mx.clear_cache, allocator.Engine()
        self.pool = Pool(setting, OWN_LIMIT, record)
        counting = allocator.Replaced(self.pool) if setting else own[2]
        pool = self._table.value, mx.clear_cache, counting
        self._sides = {"MLX": own, "pool": pool}
        self._limits = {"MLX": allocator.cap_bytes(OWN_LIMIT), "pool": 0}
        if not setting:
            self._limits["pool"] = self._limits["MLX"]

    def take(self, side: str, once: Callable[[], dict]) -> dict:
        """One run of one side, from an empty pool to an empty pool."""
        import mlx.core as mx

        from kvpeak.live import allocator

        self._table.value, mx.clear_cache, allocator.counting = self._sides[side]
        mx.set_cache_limit(self._limits[side])
        found = once()
        mx.synchronize()
        gc.collect()
        mx.clear_cache()
        return found

    def left(self) -> int:
        """Bytes, or without a policy buffers, that arrays still hold of the pool's."""
        if self.pool.replaces:
            return self.pool.counters().active
        recorded = self.pool.trace("left").op
        return recorded.count(Op.ALLOC) - recorded.count(Op.FREE)


def rounds_of(kind: str, arguments: argparse.Namespace) -> list[dict[str, dict]]:
    """What both sides gave in every round of this process."""
    import mlx.core as mx

    from kvpeak.live.loading import random_model

    config = json.loads(arguments.config.read_text())
    model = random_model(config, seed=0, dtype="float32")
    prompt = mx.random.randint(0, config["vocab_size"], (arguments.prompt_tokens,), mx.uint32)
    once = stock_loop(model, prompt, arguments.generate)
    once()  # what lives as long as the model is MLX's
    turns, rounds = Turns(*KINDS[kind]), []
    for number in range(arguments.rounds + 1):
        sides = ("MLX", "pool") if number % 2 else ("pool", "MLX")
        rounds.append({side: turns.take(side, once) for side in sides})
        if left := turns.left():
            raise SystemExit(f"{kind}: {left} left of the pool after its turn")
    return rounds[1:]


def report(kind: str, rounds: list[dict[str, dict]]) -> bool:
    """Print the comparison; return whether it holds."""
    same = all(each["MLX"]["tokens"] == each["pool"]["tokens"] for each in rounds)
    print(f"{kind}: tokens {'equal in every round' if same else 'differ'}")
    for rate in RATES:
        ratios = [each["pool"][rate] / each["MLX"][rate] for each in rounds]
        low, high = interval([ratios])
        same = same and median(ratios) >= LEAST
        print(f"{kind}: {rate:14} {median(ratios):.3f}x (95 % {low:.3f} to {high:.3f})")
    return same


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--config", type=Path, default=ROOT / "config/models/qwen2-tiny.json")
    parser.add_argument("--prompt-tokens", type=int, default=513)
    parser.add_argument("--generate", type=int, default=128)
    parser.add_argument("--kind", choices=KINDS, help="only this one, in this process")
    arguments = parser.parse_args()
    if arguments.kind:
        load_blas()
        return 0 if report(arguments.kind, rounds_of(arguments.kind, arguments)) else 1
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores, {arguments.rounds} rounds")
    command = [sys.executable, __file__, *sys.argv[1:], "--kind"]
    return max(subprocess.run([*command, kind], check=False).returncode for kind in KINDS)


if __name__ == "__main__":
    sys.exit(main())
