"""Quantised weights: drawn, converted when the model is made, or taken from a GGUF as they are."""

import json
import shutil
from pathlib import Path

import mlx.core as mx
import mlx.nn as nn
import pytest
from mlx.utils import tree_flatten
from test_models import SMALL
from tiny_gguf import gguf_bytes, llama_metadata, llama_tensors

from kvpeak.base.errors import UserError
from kvpeak.commands.make_model import make
from kvpeak.inputs import gguf
from kvpeak.inputs.weights_check import check_weights
from kvpeak.live import loading
from kvpeak.live.conversion import convert

PROMPT = mx.array([[3, 1, 4, 1, 5, 9, 2, 6]])


@pytest.fixture
def saved(tmp_path) -> Path:
    """A folder with a small model's config.json and safetensors."""
    model = loading.random_model(SMALL, 1, "float32")
    (tmp_path / "config.json").write_text(json.dumps(SMALL))
    mx.save_safetensors(str(tmp_path / "model.safetensors"), dict(tree_flatten(model.parameters())))
    return tmp_path


def load(folder: Path):
    return loading.load_model(folder, weights="real", dtype=None, seed=0)


@pytest.mark.parametrize(
    ("asked", "bits", "group_size", "mode"),
    [
        ({"bits": 8, "group_size": 32}, 8, 32, "affine"),
        ({"bits": 4}, 4, 64, "affine"),
        ({"mode": "mxfp4"}, 4, 32, "mxfp4"),
    ],
)
def test_the_conversion_is_mlx_lms_and_loads_again(saved, asked, bits, group_size, mode):
    """Each layer holds what MLX's own quantisation makes of its weights."""
    before, _ = load(saved)
    convert(saved, asked)
    check_weights(saved)
    model, config = load(saved)
    found = config["quantization"]
    assert (found["bits"], found["group_size"], found["mode"]) == (bits, group_size, mode)
    layer = model.layers[0].mlp.up_proj
    assert isinstance(layer, nn.QuantizedLinear)
    expected = mx.quantize(
        before.layers[0].mlp.up_proj.weight, group_size=group_size, bits=bits, mode=mode
    )
    assert mx.array_equal(layer.weight, expected[0])
    assert model(PROMPT).shape == (1, 8, 300)


def test_bits_that_mlx_does_not_have_are_one_line(saved):
    with pytest.raises(UserError, match="quantize: ") as error:
        convert(saved, {"bits": 7})
    assert "\n" not in str(error.value)
    load(saved)  # what was there is there still


def test_random_weights_are_quantised_as_the_entry_says(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    source = tmp_path / "shapes.json"
    source.write_text(json.dumps(SMALL))
    entry = {"kind": "random", "config": str(source), "quantize": {"bits": 8, "group_size": 32}}
    make("small", entry, tmp_path / "small")
    record = json.loads((tmp_path / "small/model.json").read_text())
    assert record["quantize"] == {"bits": 8, "group_size": 32}
    model, _ = loading.load_model(tmp_path / "small", weights="random", dtype=None, seed=0)
    assert model.layers[0].mlp.up_proj.bits == 8


def test_a_layers_own_entry_goes_before_the_whole():
    how = {"group_size": 32, "bits": 4, "model.layers.0.mlp.up_proj": {"group_size": 32, "bits": 8}}
    how["model.layers.1.mlp.up_proj"] = False
    model = loading.random_model(SMALL | {"quantization": how}, 0, None)
    assert model.layers[0].mlp.up_proj.bits == 8
    assert model.layers[0].mlp.down_proj.bits == 4
    assert isinstance(model.layers[1].mlp.up_proj, nn.Linear)


def test_a_gguf_as_it_is_stored_gives_the_dequantised_models_answers(tmp_path):
    """Packed weights are MLX's affine groups of 32: the same numbers, a fraction of the memory."""
    plain, packed = tmp_path / "plain", tmp_path / "packed"
    plain.mkdir()
    content = gguf_bytes(llama_metadata(), llama_tensors("Q4_1"))
    (plain / "tiny.gguf").write_bytes(content)
    header = gguf.read_header(plain / "tiny.gguf")
    config = gguf.llama_config(header)
    (plain / "config.json").write_text(json.dumps(config))
    shutil.copytree(plain, packed)
    stored = gguf.quantization(header)
    (packed / "config.json").write_text(json.dumps(config | {"quantization": stored}))
    dequantised, _ = load(plain)
    as_stored, _ = load(packed)
    size = config["vocab_size"]
    tokens = PROMPT % size
    assert mx.allclose(as_stored(tokens), dequantised(tokens), atol=1e-3, rtol=1e-3)
    assert held_bytes(as_stored) < held_bytes(dequantised) / 2


def held_bytes(model) -> int:
    return sum(value.nbytes for _, value in tree_flatten(model.parameters()))


def index(folder: Path, *names: str) -> None:
    weights = {f"w{number}": name for number, name in enumerate(names)}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weights}))


def test_damage_in_a_folder_is_found_and_named(saved):
    check_weights(saved)
    index(saved, "model.safetensors")
    check_weights(saved)
    index(saved, "model.safetensors", "model-00002-of-00002.safetensors")
    with pytest.raises(UserError, match=r"model-00002-of-00002.safetensors: missing"):
        check_weights(saved)
    index(saved, "model-00001-of-00001.safetensors")
    (saved / "model-00001-of-00001.safetensors").write_bytes(
        (saved / "model.safetensors").read_bytes()
    )
    with pytest.raises(UserError, match=r"/model.safetensors: .* does not name it"):
        check_weights(saved)


def test_a_dangling_link_is_named(saved):
    (saved / "tokenizer.json").symlink_to(saved / "blobs" / "gone")
    with pytest.raises(UserError, match=r"tokenizer.json: a link whose target is gone"):
        check_weights(saved)


@pytest.mark.parametrize(
    "change", [lambda data: data[:-1], lambda data: data + b"0", lambda _: b""]
)
def test_a_file_of_another_length_than_its_header_says_is_named(saved, change):
    path = saved / "model.safetensors"
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(UserError, match=r"model\.safetensors: ") as error:
        check_weights(saved)
    assert "\n" not in str(error.value)
