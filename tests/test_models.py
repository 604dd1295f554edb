"""Loading models: random weights of many model classes, and safetensors folders."""

import json
import subprocess
import sys
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_flatten

from kvpeak.base.errors import UserError
from kvpeak.inputs.model_folder import describe_files
from kvpeak.live import loading

ROOT = Path(__file__).parents[1]
TINY = json.loads((ROOT / "config/models/qwen2-tiny.json").read_text())
SMALL = TINY | {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "vocab_size": 300,
}
PROMPT = mx.array([[3, 1, 4, 1, 5, 9, 2, 6, 5, 3]])


def greedy(model, tokens: int) -> list[int]:
    """The model's greedy continuation of PROMPT with mlx-lm's own cache."""
    cache = loading.mlx_lm_module("cache").make_prompt_cache(model)
    token, ids = PROMPT, []
    for _ in range(tokens):
        token = model(token, cache=cache)[:, -1:].argmax(-1)
        ids.append(token.item())
    return ids


def values(model) -> dict:
    return {
        name: np.array(value.astype(mx.float32)) for name, value in tree_flatten(model.parameters())
    }


def same(one: dict, other: dict) -> bool:
    return one.keys() == other.keys() and all((one[key] == other[key]).all() for key in one)


def test_random_weights_depend_on_the_seed_alone():
    first, again, other = (values(loading.random_model(SMALL, seed, None)) for seed in (7, 7, 8))
    assert same(first, again)
    assert not same(first, other)


def test_a_random_untied_model_does_not_repeat_itself():
    assert len(set(greedy(loading.random_model(TINY, 0, None), 64))) > 56


@pytest.mark.parametrize(("tied", "head"), [(True, False), (False, True)])
def test_the_output_is_tied_as_the_config_says(tied, head):
    model = loading.random_model(SMALL | {"tie_word_embeddings": tied}, 0, None)
    assert ("lm_head.weight" in values(model)) is head


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [(None, mx.float32), ("bfloat16", mx.bfloat16), ("float16", mx.float16)],
)
def test_random_weights_have_the_dtype(dtype, expected):
    model = loading.random_model(SMALL, 0, dtype)
    assert {value.dtype for _, value in tree_flatten(model.parameters())} == {expected}


def test_a_quantised_config_gives_quantised_random_weights():
    quantised = SMALL | {"quantization": {"group_size": 32, "bits": 4}}
    model = loading.random_model(quantised, 0, None)
    assert model.layers[0].mlp.up_proj.bits == 4
    assert model(PROMPT).shape == (1, 10, 300)


def test_loading_leaves_no_free_buffers_in_the_pool():
    mx.clear_cache()
    model = loading.random_model(SMALL, 0, "bfloat16")
    assert mx.get_cache_memory() == 0
    assert model is not None


MODEL_TYPES = {
    "llama": {},
    "mistral": {},  # another name of llama's
    "gemma2": {"head_dim": 16, "query_pre_attn_scalar": 16},
    "gemma3_text": {"head_dim": 16, "sliding_window": 8, "sliding_window_pattern": 2},
    "phi3": {},
    "qwen3": {"head_dim": 16},
    "qwen3_moe": {
        "head_dim": 16,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "norm_topk_prob": True,
    },
    "olmo2": {},
    "starcoder2": {"norm_epsilon": 1e-5},
    "cohere": {"layer_norm_eps": 1e-5},
    "gpt_neox": {
        "layer_norm_eps": 1e-5,
        "rotary_emb_base": 10000,
        "rotary_pct": 0.25,
    },
    "gpt_oss": {
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "head_dim": 16,
        "sliding_window": 8,
    },
    "deepseek_v3": {  # keys and values as one latent
        "moe_intermediate_size": 32,
        "n_routed_experts": 4,
        "n_shared_experts": 1,
        "q_lora_rank": 32,
        "num_experts_per_tok": 2,
        "kv_lora_rank": 32,
        "qk_rope_head_dim": 16,
        "v_head_dim": 16,
        "qk_nope_head_dim": 16,
    },
    "lfm2": {  # short convolutions between attention layers
        "norm_eps": 1e-5,
        "conv_bias": False,
        "conv_L_cache": 3,
        "block_dim": 64,
        "block_multiple_of": 8,
        "block_ffn_dim_multiplier": 1.0,
        "block_auto_adjust_ff_dim": False,
        "block_ff_dim": 96,
        "full_attn_idxs": [1],
    },
    "mamba": {
        "state_size": 8,
        "conv_kernel": 4,
        "use_bias": False,
        "use_conv_bias": True,
        "time_step_rank": 4,
    },
}


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_any_mlx_lm_text_model_loads_and_generates(model_type):
    config = SMALL | {"model_type": model_type} | MODEL_TYPES[model_type]
    model = loading.random_model(config, 0, None)
    assert mx.isfinite(model(PROMPT)).all()
    assert all(0 <= token < 300 for token in greedy(model, 4))


@pytest.mark.parametrize("model_type", ["nonesuch", "cache", "a.b", None])
def test_an_unknown_model_type_is_one_line(model_type):
    with pytest.raises(UserError, match=f"model_type: {model_type!r}: expected a model type"):
        loading.random_model(SMALL | {"model_type": model_type}, 0, None)


def test_a_config_without_a_needed_key_is_one_line():
    config = {key: value for key, value in SMALL.items() if key != "rms_norm_eps"}
    with pytest.raises(UserError, match=r"cannot build a qwen2 from it: .*rms_norm_eps"):
        loading.random_model(config, 0, None)


def test_an_unknown_dtype_is_one_line():
    with pytest.raises(UserError, match="dtype: int8: expected one of float32"):
        loading.random_model(SMALL, 0, "int8")


@pytest.fixture
def saved(tmp_path):
    """A folder with a small model's config.json and safetensors, and that model."""
    model = loading.random_model(SMALL, 1, "bfloat16")
    (tmp_path / "config.json").write_text(json.dumps(SMALL))
    mx.save_safetensors(str(tmp_path / "model.safetensors"), dict(tree_flatten(model.parameters())))
    return tmp_path, model


def test_safetensors_load_as_they_were_saved(saved):
    folder, model = saved
    loaded, config = loading.load_model(folder, weights="real", dtype=None, seed=0)
    assert same(values(loaded), values(model))
    assert config["vocab_size"] == 300
    assert loaded.layers[0].mlp.up_proj.weight.dtype == mx.bfloat16


def test_safetensors_load_in_another_dtype(saved):
    folder, model = saved
    loaded, _ = loading.load_model(folder, weights="real", dtype="float32", seed=0)
    assert same(values(loaded), values(model))
    assert loaded.layers[0].mlp.up_proj.weight.dtype == mx.float32


def test_random_weights_need_no_weight_file(saved):
    folder, _ = saved
    (folder / "model.safetensors").unlink()
    loaded, _ = loading.load_model(folder, weights="random", dtype="float32", seed=5)
    assert same(values(loaded), values(loading.random_model(SMALL, 5, "float32")))


def test_a_folder_without_weights_is_one_line(saved):
    folder, _ = saved
    (folder / "model.safetensors").unlink()
    with pytest.raises(UserError, match="expected model"):
        loading.load_model(folder, weights="real", dtype=None, seed=0)


def test_weights_that_do_not_fit_the_config_are_one_line(saved):
    folder, _ = saved
    (folder / "config.json").write_text(json.dumps(SMALL | {"num_hidden_layers": 3}))
    with pytest.raises(UserError) as error:
        loading.load_model(folder, weights="real", dtype=None, seed=0)
    assert str(folder) in str(error.value) and "\n" not in str(error.value)


def test_random_weights_come_without_importing_transformers():
    """Most of a short cell's time would be that import; a later use of mlx_lm still works."""
    program = """
import json, sys
from kvpeak.live import loading
loading.random_model(json.load(open("config/models/qwen2-tiny.json")), 0, None)
assert "transformers" not in sys.modules
from mlx_lm import stream_generate
assert callable(stream_generate)
"""
    subprocess.run(
        [sys.executable, "-c", program],
        check=True,
        cwd=ROOT,
        env={"PYTHONPATH": str(ROOT / "workflow/scripts"), "PATH": "/usr/bin:/bin"},
    )


def test_a_file_that_differs_from_the_record_is_noticed_before_loading(saved):
    folder, _ = saved
    record = {"name": "tiny", "files": describe_files(folder, ["config.json", "model.safetensors"])}
    (folder / "model.json").write_text(json.dumps(record))
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    with pytest.raises(UserError, match=r"model\.safetensors: \d+ bytes, expected \d+"):
        loading.load_model(folder, weights="real", dtype=None, seed=0)
