"""The least work of a phase, against counts made in another way: from the model that MLX builds."""

import mlx.core as mx
import pytest
from mlx.utils import tree_flatten

from kvpeak.analysis.least_work import attended, decode_bytes, layer_weights, prefill_flops
from kvpeak.inputs.shapes import kv_bytes_per_token, read_shapes
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
    assert attended(10, 1) == 55  # what is masked is skipped
    assert attended(10, 4) == 4 * 4 + 4 * 8 + 2 * 10


def test_a_layers_weights_are_those_of_the_model(shapes):
    model = random_model(CONFIG, seed=0, dtype=None)
    matrices = [
        value.size
        for name, value in tree_flatten(model.parameters())
        if name.startswith("model.layers.1.") and value.ndim == 2
    ]
    assert layer_weights(shapes) == sum(matrices)


def test_prefill_flops_are_the_products_one_by_one(shapes):
    tokens, heads, head_dim = 5, 4, 8
    products = [(tokens, 32, n) for n in (32, 16, 16, 32)]  # q, k, v, output
    products += [(tokens, 32, 64), (tokens, 32, 64), (tokens, 64, 32)]  # gate, up, down
    products += [(tokens, head_dim, tokens), (tokens, tokens, head_dim)] * heads
    total = 2 * sum(2 * m * k * n for m, k, n in products) + 2 * 32 * 96
    assert prefill_flops(shapes, tokens, chunk=tokens) == total


def test_decode_reads_every_weight_but_the_embedding_and_the_cache(shapes):
    model = random_model(CONFIG, seed=0, dtype=None)
    weights = sum(value.nbytes for _, value in tree_flatten(model.parameters()))
    embedding = model.model.embed_tokens.weight.nbytes
    row = kv_bytes_per_token(CONFIG, "float32")
    # 3 tokens from a prompt of 4: two steps, which attend to 5 and 6 tokens
    steps = [weights - embedding + row * (context + 1) for context in (5, 6)]
    assert decode_bytes(shapes, 4, 3) == sum(steps) / 2
    assert mx.float32.size == shapes.itemsize
