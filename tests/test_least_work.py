"""The least work of a phase, against counts made in another way: from the model that MLX builds."""

import math

import mlx.core as mx
import pytest
from mlx.utils import tree_flatten

from kvpeak.analysis.least_work import (
    attended,
    counted_shapes,
    decode_bytes,
    kv_bytes,
    layer_weights,
    prefill_flops,
)
from kvpeak.inputs.shapes import find_shapes, kv_bytes_per_token, read_shapes
from kvpeak.live.attention import naive_attention
from kvpeak.live.generation import prefill
from kvpeak.live.kv_caches import make_caches
from kvpeak.live.loading import random_model

CONFIG = {
    "model_type": "qwen2",
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 96,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-06,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "torch_dtype": "float32",
}


@pytest.fixture(scope="module")
def shapes():
    return read_shapes(CONFIG, "config.json")


def test_attended_counts_the_scores_that_are_made():
    assert attended(10, 10) == 100  # naive, whole: every query against every key
    assert attended(10, 10, fused=True) == 55  # what is masked is skipped
    assert attended(10, 4) == 4 * 4 + 4 * 8 + 2 * 10


def test_a_layers_weights_are_those_of_the_model(shapes):
    model = random_model(CONFIG, seed=0, dtype=None)
    matrices = [
        value.size
        for name, value in tree_flatten(model.parameters())
        if name.startswith("model.layers.1.") and value.ndim == 2
    ]
    assert layer_weights(shapes) == sum(matrices)


FAMILIES = {
    "qwen2": {},
    "llama": {"num_hidden_layers": 3, "tie_word_embeddings": True},
    "qwen3": {"head_dim": 16, "num_hidden_layers": 4},
}


@pytest.mark.parametrize(("tokens", "chunk"), [(11, None), (11, 4), (12, 4), (1, None)])
@pytest.mark.parametrize("family", FAMILIES)
def test_prefill_flops_are_those_of_the_products_that_mlx_evaluates(
    family, tokens, chunk, monkeypatch
):
    """The graph of the logits holds what a lazy engine has to do for them, and nothing else."""
    monkeypatch.setattr(mx.fast, "scaled_dot_product_attention", naive_attention)
    config = CONFIG | FAMILIES[family] | {"model_type": family}
    model = random_model(config, seed=0, dtype=None)
    products = []

    def look(found):
        if found.get("type") == "primitive" and found["name"] in ("Matmul", "AddMM"):
            (_, left, _), (_, (*_, columns), _), *_ = found["inputs"]
            products.append(2 * math.prod(left) * columns)

    def logits(prompt):
        return prefill(model, make_caches("cat", model, tokens + 1), prompt, chunk)

    # a chunk is evaluated before the next; inside an export it stays in the graph
    monkeypatch.setattr(mx, "eval", lambda *_: None)
    mx.export_function(look, logits, mx.arange(tokens))
    shapes = counted_shapes(config, "float32")
    assert prefill_flops(shapes, tokens, chunk or tokens) == sum(products)


def test_the_audited_prefills_of_the_tiny_model():
    shapes = find_shapes("qwen2-tiny", "float32")
    assert prefill_flops(shapes, 513, 513) / 1e9 == pytest.approx(3.38, abs=0.005)
    assert prefill_flops(shapes, 129, 129) / 1e9 == pytest.approx(0.70, abs=0.005)


def test_other_models_have_no_work_that_is_counted():
    assert kv_bytes(CONFIG, "float32") == 2 * 2 * 2 * 8 * 4  # of both, layers, heads, their size
    assert counted_shapes({"model_type": "mamba2"}, "float32") is None
    assert kv_bytes({"model_type": "deepseek_v3", "kv_lora_rank": 64}, "float32") is None
    assert counted_shapes(CONFIG | {"quantization": {"bits": 4}}, "float32") is None


def test_decode_reads_every_weight_but_the_embedding_and_the_cache(shapes):
    model = random_model(CONFIG, seed=0, dtype=None)
    weights = sum(value.nbytes for _, value in tree_flatten(model.parameters()))
    embedding = model.model.embed_tokens.weight.nbytes
    row = kv_bytes_per_token(CONFIG, "float32")
    # 3 tokens from a prompt of 4: two steps, which attend to 5 and 6 tokens
    steps = [weights - embedding + row * (context + 1) for context in (5, 6)]
    assert decode_bytes(shapes, 4, 3, row) == sum(steps) / 2
    assert mx.float32.size == shapes.itemsize
