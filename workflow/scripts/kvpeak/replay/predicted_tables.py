"""What nobody measured, as the replay predicts it: other lengths, caps, models and machines."""

from itertools import product

from kvpeak.base.numbers import KIB, MIB
from kvpeak.inputs.shapes import Shapes, find_shapes
from kvpeak.replay.caps import COMPARED, slack_of
from kvpeak.replay.longest import longest
from kvpeak.replay.pools import size_class
from kvpeak.replay.prediction import predict, prefill_details
from kvpeak.replay.published import MODEL
from kvpeak.replay.workload import KV_CACHES, workload

MODELS = (
    *("smollm2-135m-instruct", "qwen2.5-0.5b-instruct", "llama-3.2-1b-instruct"),
    *("qwen2.5-1.5b-instruct", "qwen2.5-3b-instruct", "llama-3.2-3b-instruct"),
    *("qwen2.5-7b-instruct", "qwen2.5-7b-instruct-q4_k_m"),
)
MACHINES_GIB = (8, 16, 24, 32, 64)
LENGTHS = (513, 1025, 2049, 4097, 8193, 16385)
CURVE = (513, *range(1025, 16386, 1024))  # tokens; those that the finding measured are among them


def holders_table(shapes: Shapes, prompt_tokens: int = 4097) -> list[dict]:
    """Which tensors hold buffers of which size at the end of the prefill, equal ones counted."""
    rows = []
    for kv_cache, (cap, slack) in product(KV_CACHES, COMPARED.items()):
        counted: dict[tuple, int] = {}
        details = prefill_details(shapes, workload(prompt_tokens, kv_cache), slack)
        for capture in details["captures"]:
            kind = capture["role"], capture["requested_bytes"], capture["buffer_bytes"]
            counted[kind] = counted.get(kind, 0) + 1
        for (role, requested, size), tensors in sorted(
            counted.items(), key=lambda item: -item[0][2]
        ):
            rows.append(
                {
                    "kv_cache": kv_cache,
                    "cap": cap,
                    "role": role,
                    "requested_mib": requested / MIB,
                    "buffer_mib": size / MIB,
                    "tensors": tensors,
                    "excess_mib": tensors * (size - size_class(requested)) / MIB,
                }
            )
    return rows


def length_table(shapes: Shapes) -> list[dict]:
    return [
        {
            "prompt_tokens": tokens,
            "kv_cache": kv_cache,
            "cap": cap,
            "peak_mib": predict(shapes, workload(tokens, kv_cache), slack)["peak_mib"],
        }
        for kv_cache, (cap, slack), tokens in product(KV_CACHES, COMPARED.items(), CURVE)
    ]


def slack_table(shapes: Shapes) -> list[dict]:
    rows = []
    for tokens, kv_cache in product((513, 2049, 4097, 8193), KV_CACHES):
        row = {"prompt_tokens": tokens, "kv_cache": kv_cache}
        for cap in ("none", "1x", "2x", "4x", "8x"):
            found = predict(shapes, workload(tokens, kv_cache), slack_of(cap))
            row[f"cap_{cap}"] = found["peak_mib"]
        rows.append(row)
    return rows


def longest_table(shapes: Shapes) -> list[dict]:
    """The longest prompt that fits into each machine's memory, even if the process had all of
    it.
    """
    rows = []
    for kv_cache, (cap, slack), gib in product(KV_CACHES, COMPARED.items(), MACHINES_GIB):
        found = longest(shapes, kv_cache, slack, gib * KIB)
        rows.append(
            {
                "kv_cache": kv_cache,
                "cap": cap,
                "memory_gib": gib,
                "longest_tokens": found.tokens,
                "longest_low": found.low,
                "longest_high": found.high,
                "all_positions": "yes" if found.all_positions else "no",
                "peak_mib": found.peak_mib,
            }
        )
    return rows


def models_table(prompt_tokens: int = 4097, kv_cache: str = "cat-contiguous") -> list[dict]:
    """Every model at one length, and the finding's in types other than its checkpoint's.

    Converted weights leave their uploads in the pool; *_waited_mib are the peaks of a program that
    waits for the device before the prefill, and so gives them back.
    """
    named = [(model, find_shapes(model)) for model in MODELS]
    named += [(MODEL, find_shapes(MODEL, dtype)) for dtype in ("float16", "float32")]
    rows = []
    for model, shapes in named:
        work = workload(prompt_tokens, kv_cache)
        (without, capped), (without_waited, capped_waited) = (
            [predict(shapes, work, slack, waits)["peak_mib"] for slack in COMPARED.values()]
            for waits in (False, True)
        )
        rows.append(
            {
                "model": model,
                "dtype": shapes.dtype,
                "prompt_tokens": prompt_tokens,
                "kv_cache": kv_cache,
                "none_mib": without,
                "none_waited_mib": without_waited,
                "capped_mib": capped,
                "capped_waited_mib": capped_waited,
                "times": without / capped,
            }
        )
    return rows


def too_large_table(kv_cache: str = "cat-contiguous") -> list[dict]:
    """The models and lengths that do not fit in a machine's memory without the cap, or with it."""
    rows = []
    for model, tokens in product(MODELS, LENGTHS):
        shapes = find_shapes(model)
        work = workload(tokens, kv_cache)
        if tokens + work.generate > shapes.positions:
            continue
        gib = {
            cap: predict(shapes, work, slack)["peak_mib"] / KIB for cap, slack in COMPARED.items()
        }
        too_small = {
            cap: [str(size) for size in MACHINES_GIB if size < gib[cap]] for cap in COMPARED
        }
        if too_small["none"]:
            rows.append(
                {
                    "model": model,
                    "prompt_tokens": tokens,
                    "none_gib": gib["none"],
                    "none_not_in_gib": ", ".join(too_small["none"]),
                    "capped_gib": gib["4x"],
                    "capped_not_in_gib": ", ".join(too_small["4x"]),
                }
            )
    return rows
