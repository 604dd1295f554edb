"""How far generation is from what the device can do: prefill from its matrix units, decode from its memory.

First a calibration: a large matrix product and a large copy. Then the engine's loop on a random model, fused attention
and mlx-lm's cache. The floors count what a pass cannot do without: every product once, half of the causal attention;
and for a decoded token every weight and the whole cache read once.
"""

import argparse
import json
import sys
from pathlib import Path
from statistics import median
from time import perf_counter

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "workflow/scripts"))

from kvpeak.blas import load_openblas  # noqa: E402

load_openblas()

import mlx.core as mx  # noqa: E402
from mlx.utils import tree_flatten  # noqa: E402

from kvpeak.allocator import Peaks  # noqa: E402
from kvpeak.generation import Sampling, generate  # noqa: E402
from kvpeak.kv_caches import make_caches  # noqa: E402
from kvpeak.models import random_model  # noqa: E402


def seconds(work, repeats: int) -> float:
    """The median time of one evaluation of work(), of `repeats` after a warm-up."""
    mx.eval(work())
    times = []
    for _ in range(repeats):
        mx.synchronize()
        start = perf_counter()
        mx.eval(work())
        times.append(perf_counter() - start)
    return median(times)


def matmul_flop_s(size: int, dtype: mx.Dtype, repeats: int) -> float:
    """Of the product of two random square matrices."""
    a, b = (mx.random.normal((size, size)).astype(dtype) for _ in range(2))
    return 2 * size**3 / seconds(lambda: a @ b, repeats)


def copy_bytes_s(nbytes: int, repeats: int) -> float:
    """Of an element-wise pass over `nbytes` bytes, read and written bytes added."""
    x = mx.random.randint(0, 1 << 30, (nbytes // 4,), mx.int32)
    return 2 * x.nbytes / seconds(lambda: x + 1, repeats)


def floors(config: dict, model, prompt_tokens: int, generate: int) -> tuple[float, float]:
    """(floating-point operations of a prefill, bytes that one decoded token reads on average)."""
    parameters = dict(tree_flatten(model.parameters()))
    layers, heads, hidden = (
        config[f"num_{what}"] if what != "hidden_size" else config[what]
        for what in ("hidden_layers", "attention_heads", "hidden_size")
    )
    head_dim = hidden // heads
    matrices = sum(p.size for name, p in parameters.items() if p.ndim > 1 and "layers" in name)
    flop = 2 * matrices * prompt_tokens + 2 * layers * hidden * prompt_tokens**2
    head = config["vocab_size"] * hidden
    itemsize = next(iter(parameters.values())).itemsize
    cache = 2 * layers * config["num_key_value_heads"] * head_dim * (prompt_tokens + generate / 2)
    return flop, itemsize * (matrices + head + cache)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", type=Path, default=ROOT / "config/models/qwen2-tiny.json")
    parser.add_argument("--dtype", choices=("float32", "float16", "bfloat16"), default="float32")
    parser.add_argument("--prompt-tokens", type=int, nargs="+", default=[129, 513])
    parser.add_argument("--generate", type=int, default=128)
    parser.add_argument("--matrix-size", type=int, default=1024, help="GPU: 8192")
    parser.add_argument("--copy-mib", type=int, default=64, help="GPU: 4096")
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    dtype = getattr(mx, arguments.dtype)
    rate = matmul_flop_s(arguments.matrix_size, dtype, arguments.repeats)
    bandwidth = copy_bytes_s(arguments.copy_mib << 20, arguments.repeats)
    mx.clear_cache()
    print(f"matrix product {rate / 1e12:.2f} TFLOP/s, copy {bandwidth / 1e12:.3f} TB/s")
    config = json.loads(arguments.config.read_text())
    model = random_model(config, seed=0, dtype=arguments.dtype)
    for tokens in arguments.prompt_tokens:
        flop, nbytes = floors(config, model, tokens, arguments.generate)
        prompt = mx.random.randint(0, config["vocab_size"], (tokens,), mx.uint32)
        runs = [
            generate(
                model,
                make_caches("mlx-lm", model, 0),
                prompt,
                Sampling(arguments.generate),
                Peaks(),
            )
            for _ in range(arguments.repeats + 1)
        ][1:]
        prefill_s = median(run.prefill_s for run in runs)
        step_s = median(run.decode_s for run in runs) / (arguments.generate - 1)
        print(
            f"{tokens} tokens: prefill {1e3 * prefill_s:.2f} ms, floor {1e3 * flop / rate:.2f} ms "
            f"({flop / rate / prefill_s:.1%}); decode {1e3 * step_s:.3f} ms a token, "
            f"floor {1e3 * nbytes / bandwidth:.3f} ms ({nbytes / bandwidth / step_s:.1%})"
        )


if __name__ == "__main__":
    main()
