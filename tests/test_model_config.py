"""One reader of config.json for all: synonyms, nulls, a language model inside another."""

import json

import pytest
from conftest import ROOT

from kvpeak.base.errors import UserError
from kvpeak.base.model_config import (
    code_key,
    dtype_of,
    end_ids,
    key_of,
    quantization,
    sizes,
    text_part,
)
from kvpeak.inputs.prompts import check_ids, cut
from kvpeak.inputs.shapes import kv_bytes_per_token, read_shapes

QWEN = {
    "model_type": "qwen2",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 300,
    "max_position_embeddings": 128,
    "torch_dtype": "bfloat16",
}
TYPES = {file.stem: json.loads(file.read_text()) for file in ROOT.glob("config/model-types/*.json")}


@pytest.mark.parametrize("key", ["dtype", "torch_dtype"])
@pytest.mark.parametrize("value", ["bfloat16", "torch.bfloat16"])
def test_both_spellings_of_the_type_are_one(key, value):
    config = {name: each for name, each in QWEN.items() if name != "torch_dtype"} | {key: value}
    assert dtype_of(config) == "bfloat16"
    assert read_shapes(config, "x").itemsize == 2


def test_the_newer_spelling_goes_before_an_older_null():
    assert dtype_of({"torch_dtype": None, "dtype": "float16"}) == "float16"
    assert dtype_of({}) is None


def test_a_null_is_a_key_that_is_missing():
    config = QWEN | {"head_dim": None, "num_key_value_heads": None}
    assert (sizes(config).head_dim, sizes(config).kv_heads) == (16, 4)
    assert read_shapes(config, "x").kv_heads == 4
    assert kv_bytes_per_token(config, "bfloat16") == 2 * 2 * 4 * 16 * 2


def test_gpt2s_names_are_the_same_sizes():
    found = sizes(TYPES["gpt2"])
    assert (found.layers, found.hidden, found.heads, found.kv_heads) == (2, 128, 2, 2)
    assert (found.head_dim, found.positions, found.vocab) == (64, 2048, 1000)
    assert key_of(TYPES["gpt2"], "hidden") == "n_embd"


def test_the_language_model_inside_a_vision_model_is_read():
    outer = {"model_type": "kimi_vl", "vocab_size": 9, "text_config": QWEN | {"head_dim": 32}}
    assert text_part(outer)["num_hidden_layers"] == 2
    assert (sizes(outer).vocab, sizes(outer).head_dim, dtype_of(outer)) == (300, 32, "bfloat16")


@pytest.mark.parametrize("model_type", TYPES)
def test_every_config_has_layers_and_a_vocabulary(model_type):
    found = sizes(TYPES[model_type])
    assert found.layers
    assert found.vocab


@pytest.mark.parametrize("value", [True, 0, -1, "8", 2.0, [1]])
def test_what_is_no_positive_integer_is_unknown(value):
    assert sizes(QWEN | {"vocab_size": value}).vocab is None
    with pytest.raises(UserError, match=r"vocab_size: .*: expected a positive integer"):
        read_shapes(QWEN | {"vocab_size": value}, "x")


def test_the_end_is_none_one_or_several():
    assert end_ids({}) == frozenset()
    assert end_ids({"eos_token_id": 7}) == {7}
    assert end_ids({"text_config": {"eos_token_id": [7, 8]}}) == {7, 8}


@pytest.mark.parametrize("key", ["quantization", "quantization_config"])
def test_quantised_weights_are_found_by_either_key_and_inside(key):
    said = {"bits": 4, "group_size": 64}
    assert quantization({key: said}) == said
    assert quantization({"text_config": {key: said}}) == said
    assert quantization({key: None}) is None


@pytest.mark.parametrize("key", ["model_file", "auto_map"])
def test_code_that_a_config_asks_for_is_found(key):
    assert code_key({"text_config": {key: "evil.py"}}) == key
    assert code_key(QWEN) is None


def test_ids_beyond_the_vocabulary_are_refused():
    check_ids([0, 299], 300, "prompt.json")
    for number in (300, 2_000_000_000, -1):
        with pytest.raises(UserError, match=f"prompt.json: token id {number}: .* has 300 ids"):
            check_ids([5, number], 300, "prompt.json")


def test_a_tokenizer_larger_than_the_model_is_refused(tmp_path):
    from tokenizers import Tokenizer, models, pre_tokenizers

    tokenizer = Tokenizer(models.WordLevel({"a": 0, "b": 5}, unk_token="a"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("a b")
    assert cut(corpus, tmp_path / "tokenizer.json", {"vocab_size": 6}, 2) == [0, 5]
    with pytest.raises(UserError, match="token id 5: the model's vocabulary has 5 ids"):
        cut(corpus, tmp_path / "tokenizer.json", {"vocab_size": 5}, 2)


def test_positions_that_are_null_do_not_limit_the_prompt(tmp_path):
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("abc")
    config = {"vocab_size": 100, "max_position_embeddings": None}
    assert len(cut(corpus, None, config, 3)) == 3
