"""Every model type of mlx-lm with small shapes: each cell runs, or says which layer refuses it.

config/model-types has the configs, tests/data/published_kv_bytes.json what others say of large
ones.
"""

import json
import re
from pathlib import Path

import mlx.core as mx
import pytest
from conftest import ROOT

from kvpeak.base.errors import Unsupported, UserError
from kvpeak.live import loading, session
from kvpeak.live.kv_caches import make_caches
from kvpeak.live.kv_state import measure

DATA = Path(__file__).parent / "data"
TYPES = {file.stem: json.loads(file.read_text()) for file in ROOT.glob("config/model-types/*.json")}
PUBLISHED = json.loads((DATA / "published_kv_bytes.json").read_text())["models"]
PROMPT = [(7 * i * i + 3) % 100 for i in range(33)]
GENERATE = 6

# No layer of theirs keeps plain keys and values.
NO_PLAIN = {"falcon_mamba", "mamba", "mamba2", "recurrent_gemma", "rwkv7"}
# Their attention works on the arrays themselves, which a quantised cache does not have, or has
# sinks.
NOT_QUANTISED = {
    "afm7",
    "deepseek_v3",
    "deepseek_v32",
    "gemma2",
    "gemma4",
    "gemma4_text",
    "glm4_moe_lite",
    "gpt_oss",
    "iquestloopcoder",
    "kimi_linear",
    "kimi_vl",
    "longcat_flash",
    "longcat_flash_ngram",
    "phi",
    "plamo",
    "plamo2",
    "stablelm",
}
ONLY_METAL = {"bitnet"}
# With mlx-lm's own cache and loop, too, it corrupts memory on a CPU (MLX 0.32.4).
CRASHES = {"phi3small"}


def cell_of(folder: Path, kv_cache: str, chunk="whole") -> session.Cell:
    """The cell of the model in `folder`, in this process. Raises Unsupported."""
    return session.Cell(
        {
            "folder": str(folder),
            "model": {"folder": str(folder), "weights": "random", "dtype": None},
            "prompt": {"path": str(folder / "prompt.json")},
            "kv_cache": kv_cache,
            "options": {"attention": "fused", "prefill_chunk": chunk},
            "protocol": {
                "generate": GENERATE,
                "ignore_eos": True,
                "repeat_penalty": 1.1,
                "repeat_window": 64,
                "seed": 0,
            },
        },
        None,
    )


@pytest.fixture
def folder(tmp_path):
    """Writes a config beside a prompt; returns the folder."""

    def write(config: dict) -> Path:
        (tmp_path / "config.json").write_text(json.dumps(config))
        (tmp_path / "prompt.json").write_text(json.dumps({"tokens": PROMPT}))
        return tmp_path

    return write


def answer(folder: Path, kv_cache: str) -> tuple[list[int], dict] | str:
    """The tokens and what `loaded` says, or why the cell is unsupported."""
    try:
        cell = cell_of(folder, kv_cache)
        result, _ = cell.generate(lambda: None)
    except Unsupported as error:
        return str(error)
    return result.tokens, cell.loaded


def test_there_are_all_types_of_mlx_lms_own_test():
    assert len(TYPES) >= 52


@pytest.mark.parametrize("model_type", sorted(TYPES.keys() - ONLY_METAL - CRASHES))
def test_every_cache_runs_in_any_model_or_says_why_not(folder, model_type):
    where = folder(TYPES[model_type])
    tokens, loaded = answer(where, "mlx-lm")
    assert len(tokens) == GENERATE
    cat = answer(where, "cat")
    if model_type in NO_PLAIN:
        assert re.search(r"cat: .* has none: layers? \d.*Cache", cat)
    else:
        assert cat[0] == tokens
        assert re.search(r"layers? \d[^;]*: CatCache", cat[1]["kv_layers"])
        held = ("kv_bytes_per_token", "kv_window_bytes", "kv_state_bytes")
        assert [cat[1][key] for key in held] == [loaded[key] for key in held]
        assert loaded["kv_bytes_per_token"] > 0
    quantised = answer(where, "quantized-8")
    if model_type in NO_PLAIN:
        assert "has none: " in quantised
    elif model_type in NOT_QUANTISED:
        assert re.match(r"kv_cache quantized-8: layer \d+(\.\d+)? \(\w+Cache\): ", quantised)
    else:
        assert len(quantised[0]) == GENERATE
        assert quantised[1]["kv_bytes_per_token"] < loaded["kv_bytes_per_token"]


@pytest.mark.parametrize("given", PUBLISHED, ids=lambda given: given["model"])
def test_measured_kv_bytes_are_the_published_ones(given):
    """At full size: nothing is computed, so that 671 billion weights take no memory."""
    model = loading.build(given["config"])
    model.set_dtype(mx.bfloat16)
    assert held_by(model, "mlx-lm").kv_bytes_per_token == given["bytes"]


def test_there_are_published_bytes_of_eight_families():
    assert len({given["config"]["model_type"] for given in PUBLISHED}) >= 8


def test_deepseek_v2_is_kept_unrolled_by_mlx_lm_and_the_measure_says_so():
    """Its makers keep 576 values a layer and token; mlx-lm 0.32 keeps every head's keys and
    values.
    """
    config = TYPES["deepseek_v2"]
    model = loading.build(config)
    heads, layers = config["num_attention_heads"], config["num_hidden_layers"]
    width = config["qk_nope_head_dim"] + config["qk_rope_head_dim"] + config["v_head_dim"]
    held = held_by(model, "mlx-lm").kv_bytes_per_token
    assert held == layers * heads * width * 4


@pytest.mark.parametrize(("kv_cache", "bits"), [("quantized-8", 8), ("quantized-4", 4)])
def test_a_quantised_cache_holds_its_bits_and_a_scale_and_bias_for_64_values(kv_cache, bits):
    """Of MLX's affine quantisation: each group has a scale and a bias in the type of the values."""
    given = next(each for each in PUBLISHED if each["model"] == "Llama 2 7B")
    model = loading.build(given["config"])
    model.set_dtype(mx.bfloat16)
    per_value = bits + 2 * 16 / 64
    assert held_by(model, kv_cache).kv_bytes_per_token == given["bytes"] * per_value / 16


def held_by(model, kv_cache: str):
    """What the model's caches hold after a pass that is never computed."""
    caches = make_caches(kv_cache, model, 8)
    model(mx.zeros((1, 2), mx.uint32), cache=caches)
    return measure(caches)


def test_a_windowed_model_keeps_its_windows_and_gives_up_its_plain_caches(folder):
    where = folder(TYPES["gemma3_text"])
    for kv_cache in ("cat", "prealloc", "rotating-8", "quantized-8"):
        _, loaded = answer(where, kv_cache)
        assert ": RotatingKVCache" in loaded["kv_layers"]
        assert loaded["kv_layers"].split(": ")[-1] != "KVCache"


def test_a_hybrid_models_state_has_a_size_of_its_own(folder):
    _, loaded = answer(folder(TYPES["granitemoehybrid"]), "cat")
    assert loaded["kv_state_bytes"] > 0
    assert re.search(r"ArraysCache", loaded["kv_layers"])


@pytest.mark.skipif(mx.metal.is_available(), reason="its kernels run here")
def test_a_model_whose_kernels_need_metal_is_unsupported(folder):
    assert "No Metal back-end" in answer(folder(TYPES["bitnet"]), "mlx-lm")


def test_what_no_pass_can_go_through_is_one_line(folder):
    """A config that mlx-lm builds and cannot run: heads that do not share their keys."""
    config = TYPES["qwen2"] | {"num_attention_heads": 3, "num_key_value_heads": 2, "head_dim": 64}
    with pytest.raises(UserError, match="mlx-lm cannot run") as error:
        cell_of(folder(config), "mlx-lm")
    assert "\n" not in str(error.value)
