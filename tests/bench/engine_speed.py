"""Compare the MLX engine's generation loop with the one mlx_lm.benchmark times.

Two processes load the same random model and take turns (A B, B A, …) at generating from the same
prompt tokens. Both use mlx-lm's KV cache, MLX's fused attention, one prefill pass and the allocator
as MLX starts it; neither turns ids into text. Printed: the engine's figures over mlx-lm's, round by
round, as a median, its quartiles and its 95 % interval, a bootstrap's. A process may be faster than
its like from start to end, so with --pairs of fresh processes the bootstrap draws pairs, and then
rounds of each.

On a GPU give it work to do: --config config/models/qwen2.5-0.5b-instruct.json --dtype bfloat16
--prompt-tokens 4097
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median, quantiles

import numpy as np

from kvpeak.live.blas import load_blas

ROOT = Path(__file__).parents[2]

RESAMPLES = 9999

TARGETS = {
    "prefill_tok_s": ("at least", 1.00),
    "decode_tok_s": ("at least", 1.00),
    "peak_active_mib": ("at most", 1.01),
}


def engine_loop(model, prompt, generate: int) -> Callable[[], dict]:
    """A function that runs the engine's loop once and returns the figures of TARGETS."""
    from kvpeak.live.allocator import Peaks
    from kvpeak.live.generation import Sampling, Watch
    from kvpeak.live.generation import generate as run
    from kvpeak.live.kv_caches import make_caches

    def once() -> dict:
        peaks = Peaks()
        result = run(
            model, make_caches("mlx-lm", model, 0), prompt, Sampling(generate), Watch(peaks)
        )
        return {
            "prefill_tok_s": prompt.size / result.ttft_s,
            "decode_tok_s": (generate - 1) / result.decode_s,
            "peak_active_mib": peaks.mib()["peak_active_mib"],
        }

    return once


def without_text():
    """A tokenizer without a text: mlx-lm's loop asks for a detokenizer."""
    from mlx_lm.tokenizer_utils import TokenizerWrapper

    class NoText(TokenizerWrapper):
        eos_token_ids = ()
        detokenizer = property(lambda self: self)
        last_segment = ""

        def __init__(self):
            pass

        def add_token(self, token):
            pass

        def finalize(self):
            pass

    return NoText()


def mlx_lm_loop(model, prompt, generate: int) -> Callable[[], dict]:
    """The same for mlx-lm: its stream_generate, called and read as mlx_lm.benchmark does.

    Its prompt time ends when the first id is on the host, so prefill here is to the first token for
    both. Its generation rate counts n tokens over n − 1 intervals, which is corrected.
    """
    import mlx.core as mx
    from mlx_lm import stream_generate

    def once() -> dict:
        mx.reset_peak_memory()
        for response in stream_generate(  # noqa: B007 - the last one is read below
            model, without_text(), prompt, max_tokens=generate, prefill_step_size=prompt.size
        ):
            pass
        return {
            "prefill_tok_s": response.prompt_tps,
            "decode_tok_s": response.generation_tps * (generate - 1) / generate,
            "peak_active_mib": mx.get_peak_memory() / 2**20,
        }

    return once


LOOPS = {"engine": engine_loop, "mlx-lm": mlx_lm_loop}


def work(loop: str, arguments: argparse.Namespace) -> None:
    """One of the two processes: for each line of standard input, run once and print the figures."""
    load_blas()
    import mlx.core as mx

    from kvpeak.live.loading import random_model

    config = json.loads(arguments.config.read_text())
    model = random_model(config, seed=0, dtype=arguments.dtype)
    prompt = mx.random.randint(0, config["vocab_size"], (arguments.prompt_tokens,), mx.uint32)
    once = LOOPS[loop](model, prompt, arguments.generate)
    for _ in sys.stdin:
        print(json.dumps(once()), flush=True)


@contextmanager
def worker(loop: str) -> Iterator[Callable[[], dict]]:
    """A process of its own; yields the function that lets it run once."""
    command = [sys.executable, __file__, *sys.argv[1:], "--loop", loop]
    with subprocess.Popen(
        command, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:

        def once() -> dict:
            print(file=process.stdin, flush=True)
            return json.loads(process.stdout.readline())

        try:
            yield once
        finally:
            process.stdin.close()


def compare(arguments: argparse.Namespace) -> dict[str, list[float]]:
    """The ratios engine / mlx-lm of every round, for each key of TARGETS."""
    ratios = {key: [] for key in TARGETS}
    with worker("engine") as engine, worker("mlx-lm") as mlx_lm:
        engine(), mlx_lm()
        for number in range(arguments.rounds):
            if number % 2:
                theirs, ours = mlx_lm(), engine()
            else:
                ours, theirs = engine(), mlx_lm()
            for key in TARGETS:
                ratios[key].append(ours[key] / theirs[key])
            print(
                f"round {number + 1:2}: "
                + ", ".join(f"{key} {ours[key]:.1f} : {theirs[key]:.1f}" for key in TARGETS),
                flush=True,
            )
    return ratios


def interval(pairs: list[list[float]], seed: int = 0) -> tuple[float, float]:
    """The 95 % interval of the median of all rounds, from medians of drawn rounds of drawn
    pairs.
    """
    random, rounds = np.random.default_rng(seed), np.array(pairs)
    drawn = rounds[random.integers(len(rounds), size=(RESAMPLES, len(rounds)))]
    picked = random.integers(rounds.shape[1], size=drawn.shape)
    medians = np.median(np.take_along_axis(drawn, picked, axis=2), axis=(1, 2))
    return tuple(np.quantile(medians, [0.025, 0.975]))


def verdict(key: str, pairs: list[list[float]]) -> str:
    """One line: the median ratio, its interval and quartiles, and whether the median meets the
    target.
    """
    bound, target = TARGETS[key]
    ratios = [ratio for rounds in pairs for ratio in rounds]
    middle = median(ratios)
    met = middle >= target if bound == "at least" else middle <= target
    low, _, high = quantiles(ratios, n=4, method="inclusive")
    least, most = interval(pairs)
    return (
        f"{key:16} {middle:.3f}× (95 % {least:.3f} to {most:.3f}, quartiles {low:.3f} to "
        f"{high:.3f}); "
        f"target {bound} {target:.2f}×: {'met' if met else 'missed'}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", type=Path, default=ROOT / "config/models/qwen2-tiny.json")
    parser.add_argument("--dtype", choices=("float32", "float16", "bfloat16"), default="float32")
    parser.add_argument("--prompt-tokens", type=int, default=513)
    parser.add_argument("--generate", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=24, help="of each pair of processes")
    parser.add_argument("--pairs", type=int, default=1, help="of processes, one after the other")
    parser.add_argument("--loop", choices=LOOPS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.loop:
        work(arguments.loop, arguments)
        return
    pairs = [compare(arguments) for _ in range(arguments.pairs)]
    for key in TARGETS:
        print(verdict(key, [ratios[key] for ratios in pairs]))


if __name__ == "__main__":
    main()
