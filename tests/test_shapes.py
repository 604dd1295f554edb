"""Shapes from config files: what is refused, and the sizes of models whose sizes are known."""

import json
from pathlib import Path

import pytest

from kvpeak.base.errors import UserError
from kvpeak.inputs.shapes import CONFIGS, find_shapes, read_shapes, weight_tensors

TINY = json.loads((CONFIGS / "qwen2-tiny.json").read_text())


@pytest.mark.parametrize(
    ("model", "parameters"),
    [  # as the model cards count them
        ("qwen2.5-0.5b-instruct", 494_032_768),
        ("qwen2.5-1.5b-instruct", 1_543_714_304),
        ("qwen2.5-3b-instruct", 3_085_938_688),
        ("qwen2.5-7b-instruct", 7_615_616_512),
        ("llama-3.2-1b-instruct", 1_235_814_400),
        ("llama-3.2-3b-instruct", 3_212_749_824),
        ("smollm2-135m-instruct", 134_515_008),
    ],
)
def test_the_weights_are_as_many_as_the_model_has_parameters(model, parameters):
    assert sum(weight_tensors(find_shapes(model))) == 2 * parameters


def test_quantised_weights_are_those_of_the_file_and_the_embedding_in_float32():
    """4.68 GB is the size of Qwen2.5-7B-Instruct-Q4_K_M.gguf; its embedding there has 4.5 bits."""
    shapes = find_shapes("qwen2.5-7b-instruct-q4_k_m")
    embedding = shapes.vocab * shapes.hidden
    in_file = sum(weight_tensors(shapes)) - 4 * embedding + embedding * 144 // 256
    assert in_file / 1e9 == pytest.approx(4.68, abs=0.01)


@pytest.mark.parametrize("name", [path.stem for path in Path(CONFIGS).glob("*.json")])
def test_every_shipped_config_has_shapes(name):
    assert find_shapes(name).layers > 0


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("hidden_size", 0, "hidden_size: 0: expected a positive integer"),
        ("num_hidden_layers", -2, "num_hidden_layers: -2: expected a positive integer"),
        ("vocab_size", 1.5, "vocab_size: 1.5: expected a positive integer"),
        ("intermediate_size", "688", "intermediate_size: '688': expected a positive integer"),
        ("max_position_embeddings", True, "True: expected a positive integer"),
        ("num_key_value_heads", 3, "num_key_value_heads: 3: expected a divisor of num_attention"),
        ("num_attention_heads", 12, "num_attention_heads: 12: expected a divisor of hidden_size"),
        ("model_type", "gpt2", "model_type: 'gpt2': expected one of qwen2, llama"),
        ("torch_dtype", "int8", "torch_dtype: 'int8': expected one of float32"),
        ("gguf_file_type", "Q2_K", "gguf_file_type: 'Q2_K': expected Q4_K_M"),
    ],
)
def test_a_wrong_size_is_named_in_one_line(key, value, expected):
    with pytest.raises(UserError) as caught:
        read_shapes(TINY | {key: value}, "tiny.json")
    assert str(caught.value).startswith(f"tiny.json: {key}")
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_size_is_named():
    with pytest.raises(UserError, match=r"tiny\.json: vocab_size: None: expected a positive"):
        read_shapes({key: TINY[key] for key in TINY if key != "vocab_size"}, "tiny.json")


QWEN = json.loads((CONFIGS / "qwen2.5-7b-instruct.json").read_text())


@pytest.mark.parametrize(
    "changes",
    [
        {"torch_dtype": None, "dtype": "bfloat16"},
        {"dtype": None},
        {"head_dim": None},
        {"head_dim": 128},
        {"gguf_file_type": None},
    ],
)
def test_newer_names_and_nulls_mean_the_same(changes):
    assert read_shapes(QWEN | changes, "c") == find_shapes("qwen2.5-7b-instruct")


@pytest.mark.parametrize("missing", [{}, {"num_key_value_heads": None}])
def test_without_key_value_heads_every_head_has_its_own(missing):
    config = {key: value for key, value in TINY.items() if key != "num_key_value_heads"}
    shapes = read_shapes(config | missing, "c")
    assert shapes.kv_heads == shapes.heads == TINY["num_attention_heads"]


def test_a_type_other_than_the_checkpoint_s_is_a_conversion():
    assert find_shapes("qwen2.5-0.5b-instruct", "float16").cast
    assert not find_shapes("qwen2.5-0.5b-instruct", "bfloat16").cast
    assert not find_shapes("qwen2.5-7b-instruct-q4_k_m").cast


def test_a_type_that_is_no_text_is_one_line():
    with pytest.raises(UserError, match=r"c: dtype: \['float32'\]: expected one of float32"):
        read_shapes(TINY | {"torch_dtype": None, "dtype": ["float32"]}, "c")
