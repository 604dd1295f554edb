"""Naive attention against MLX's fused kernel."""

import mlx.core as mx
import pytest
from test_models import MODEL_TYPES, SMALL

from kvpeak.base.errors import Unsupported
from kvpeak.live import attention, loading
from kvpeak.live.allocator import Peaks
from kvpeak.live.generation import Sampling, Watch, generate
from kvpeak.live.kv_caches import make_caches

BATCH, HEADS, QUERIES, TOTAL, SIZE = 2, 6, 5, 9, 16
WINDOW = mx.arange(TOTAL - QUERIES, TOTAL)[:, None] - mx.arange(TOTAL) < 3
CAUSAL = mx.arange(TOTAL - QUERIES, TOTAL)[:, None] >= mx.arange(TOTAL)
BIAS = mx.random.normal((BATCH, HEADS, QUERIES, TOTAL), key=mx.random.key(9))
MASKS = {
    "none": None,
    "causal": "causal",
    "window": CAUSAL & WINDOW,
    "per batch": mx.stack([CAUSAL, CAUSAL & WINDOW])[:, None],
    "per head": mx.broadcast_to(BIAS > -1, BIAS.shape),
    "added": BIAS,
}


def tensors(kv_heads: int, dtype=mx.float32) -> list[mx.array]:
    shapes = (
        (BATCH, HEADS, QUERIES, SIZE),
        (BATCH, kv_heads, TOTAL, SIZE),
        (BATCH, kv_heads, TOTAL, SIZE),
    )
    return [
        mx.random.normal(shape, key=mx.random.key(i)).astype(dtype)
        for i, shape in enumerate(shapes)
    ]


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("kv_heads", [6, 2, 1])
def test_naive_equals_fused_for_every_mask_and_grouping(kv_heads, mask):
    arguments = {"scale": SIZE**-0.5, "mask": MASKS[mask]}
    naive = attention.naive_attention(*tensors(kv_heads), **arguments)
    fused = mx.fast.scaled_dot_product_attention(*tensors(kv_heads), **arguments)
    assert naive.shape == fused.shape
    assert mx.allclose(naive, fused, atol=1e-5)


@pytest.mark.parametrize("kv_heads", [6, 2])
def test_naive_equals_fused_with_sinks(kv_heads):
    arguments = {"scale": 0.25, "mask": "causal", "sinks": mx.arange(HEADS) / 2}
    naive = attention.naive_attention(*tensors(kv_heads), **arguments)
    assert mx.allclose(
        naive, mx.fast.scaled_dot_product_attention(*tensors(kv_heads), **arguments), atol=1e-5
    )


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16])
def test_naive_keeps_the_dtype(dtype):
    naive = attention.naive_attention(*tensors(2, dtype), scale=0.25, mask="causal")
    assert naive.dtype == dtype


def test_an_unknown_kind_is_unsupported():
    with pytest.raises(Unsupported, match="attention flash: expected naive or fused"):
        attention.use("flash")


def test_calls_are_counted_while_the_block_runs():
    before = mx.fast.scaled_dot_product_attention
    with attention.calls() as calls:
        mx.fast.scaled_dot_product_attention(*tensors(2), scale=1.0)
    assert len(calls) == 1
    assert mx.fast.scaled_dot_product_attention is before


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_naive_gives_the_tokens_of_fused_in_any_model(monkeypatch, model_type):
    """gpt_oss among them with sinks, gemma3_text with windows, deepseek_v3 with a mask that is
    added.
    """
    config = SMALL | {"model_type": model_type} | MODEL_TYPES[model_type]
    model = loading.random_model(config, 0, None)
    prompt = mx.array([(3 * i * i + 2) % 300 for i in range(21)], mx.uint32)

    def tokens() -> list[int]:
        caches = make_caches("mlx-lm", model, 0)
        return generate(model, caches, prompt, Sampling(12, 1.1), Watch(Peaks())).tokens

    fused = tokens()
    monkeypatch.setattr(mx.fast, "scaled_dot_product_attention", attention.naive_attention)
    assert tokens() == fused
