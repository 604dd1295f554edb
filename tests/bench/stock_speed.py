"""Compare the variant `stock` with mlx-lm's own stream_generate: tokens, memory counters, speed.

One process loads a random model and lets the two take turns (A B, B A, …) at the same prompt, each
with an empty pool at its start. Printed: whether the tokens are equal in every round; the largest
counters of all rounds, which must be equal (a run may stay below its like, because a thread frees
what another is about to allocate); and the speeds of `stock` over stream_generate's as a median
with its 95 % interval (a bootstrap over rounds). The exit code is 1 if something differs, or if an
interval leaves 0.95 to 1.05.
"""

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import median

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "workflow/scripts"))
sys.path.insert(0, str(Path(__file__).parent))

from engine_speed import interval, without_text  # noqa: E402

from kvpeak.live.blas import load_blas  # noqa: E402

LEAST, MOST = 0.95, 1.05
PEAKS = ("peak_active_mib", "peak_pool_mib")
RATES = ("prompt_tok_s", "decode_tok_s")


def stock_loop(model, prompt, generate: int) -> Callable[[], dict]:
    """A function that runs the engine's variant `stock` once."""
    from kvpeak.live import stock
    from kvpeak.live.allocator import Peaks
    from kvpeak.live.generation import Sampling, Watch
    from kvpeak.live.kv_caches import make_caches

    def once() -> dict:
        caches, peaks = make_caches("mlx-lm", model, 0), Peaks()
        result = stock.generate(model, caches, prompt, Sampling(generate), Watch(peaks), 2048)
        return peaks.mib() | {
            "tokens": result.tokens,
            "prompt_tok_s": prompt.size / result.ttft_s,
            "decode_tok_s": (generate - 1) / result.decode_s,
        }

    return once


def stream_loop(model, prompt, generate: int) -> Callable[[], dict]:
    """The same for stream_generate with its defaults, its rate counted over n − 1 intervals."""
    from mlx_lm import stream_generate

    from kvpeak.live.allocator import Peaks

    def once() -> dict:
        peaks, tokens = Peaks(), []
        for last in stream_generate(
            model,
            without_text(),
            prompt,
            max_tokens=generate,
            prompt_progress_callback=lambda *_: peaks.sample(),
        ):
            peaks.sample()
            tokens.append(last.token)
        return peaks.mib() | {
            "tokens": tokens,
            "prompt_tok_s": last.prompt_tps,
            "decode_tok_s": last.generation_tps * (generate - 1) / generate,
        }

    return once


def measured(once: Callable[[], dict]) -> dict:
    """One run from an empty pool."""
    import mlx.core as mx

    mx.synchronize()
    mx.clear_cache()
    return once()


def compare(arguments: argparse.Namespace) -> list[tuple[dict, dict]]:
    """What `stock` and stream_generate gave in every round."""
    import mlx.core as mx

    from kvpeak.live.loading import random_model

    config = json.loads(arguments.config.read_text())
    model = random_model(config, seed=0, dtype=arguments.dtype)
    prompt = mx.random.randint(0, config["vocab_size"], (arguments.prompt_tokens,), mx.uint32)
    ours, theirs = (make(model, prompt, arguments.generate) for make in (stock_loop, stream_loop))
    measured(ours), measured(theirs)
    rounds = []
    for number in range(arguments.rounds):
        if number % 2:
            second, first = measured(theirs), measured(ours)
        else:
            first, second = measured(ours), measured(theirs)
        rounds.append((first, second))
    return rounds


def report(rounds: list[tuple[dict, dict]]) -> bool:
    """Print the comparison; return whether all of it holds."""
    same = all(ours["tokens"] == theirs["tokens"] for ours, theirs in rounds)
    print(f"tokens: {'equal in every round' if same else 'differ'}")
    for key in PEAKS:
        ours, theirs = (max(each[side][key] for each in rounds) for side in (0, 1))
        same = same and ours == theirs
        print(f"{key}: {ours:.3f} : {theirs:.3f} {'equal' if ours == theirs else 'differ'}")
    for key in RATES:
        ratios = [ours[key] / theirs[key] for ours, theirs in rounds]
        low, high = interval([ratios])
        same = same and low >= LEAST and high <= MOST
        print(f"{key}: {median(ratios):.3f}x (95 % {low:.3f} to {high:.3f})")
    return same


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", type=Path, default=ROOT / "config/models/qwen2-tiny.json")
    parser.add_argument("--dtype", choices=("float32", "float16", "bfloat16"), default="float32")
    parser.add_argument("--prompt-tokens", type=int, default=2100)
    parser.add_argument("--generate", type=int, default=260)
    parser.add_argument("--rounds", type=int, default=24)
    arguments = parser.parse_args()
    load_blas()
    return 0 if report(compare(arguments)) else 1


if __name__ == "__main__":
    sys.exit(main())
