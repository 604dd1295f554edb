"""What a record says of its inputs: where the model comes from, and how it is quantised."""

import json
from pathlib import Path

import pytest

from kvpeak.base.files import sha256_of
from kvpeak.base.made import BY_HAND, say_why_not
from kvpeak.inputs.make_model import write_record
from kvpeak.report import sources
from kvpeak.runner.provenance import inputs

RECORD = {"name": "m", "source": "a/b@1 on the hub", "files": {}}
PACKED = {"group_size": 64, "bits": 4}
GPTQ = {"quant_method": "gptq", "bits": 4}
FP8 = {"quant_method": "fp8"}


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    folder = Path("models/m")
    folder.mkdir(parents=True)
    return folder


def found(folder: Path, weights: str | None = "real") -> dict:
    model = {"folder": str(folder), "weights": weights}
    return inputs({"model": model, "prompt": {"path": "prompts/p.json"}})


def write(file: Path, value: object) -> None:
    file.write_text(json.dumps(value))


def test_what_was_measured_with_is_known_by_its_hash(folder):
    request = {"model": {"folder": str(folder), "config": "m.json"}, "prompt": {"path": "p.json"}}
    assert set(inputs(request).values()) == {None}
    files = {
        "model_sha256": folder / "model.json",
        "shapes_sha256": folder / "config.json",
        "config_sha256": Path("m.json"),
        "prompt_sha256": Path("p.json"),
    }
    for file in files.values():
        write(file, {"file": file.name})
    known = inputs(request)
    assert {name: known[name] for name in files} == {
        name: sha256_of(file) for name, file in files.items()
    }
    assert len({known[name] for name in files}) == len(files)


def test_the_source_of_a_model_is_said_by_a_record_that_was_written_here(folder):
    write_record(folder / "model.json", RECORD)
    assert found(folder)["model_source"] == "a/b@1 on the hub"
    folder.rename("models/other")  # whose name it does not have
    assert found(Path("models/other"))["model_source"] == BY_HAND


def test_a_record_of_somebody_else_says_no_more_than_that_the_model_lies_there(folder):
    write(folder / "model.json", RECORD)
    assert found(folder)["model_source"] == BY_HAND


def test_a_model_that_is_not_there_has_no_source(folder):
    assert set(found(folder).values()) == {None}
    say_why_not(folder / "model.json", "unavailable", "no network")
    assert found(folder)["model_source"] is None


@pytest.mark.parametrize(
    ("weights", "config", "said", "words"),
    [
        ("real", {"quantization": PACKED | {"a.b": PACKED}}, PACKED, "quantised to 4 bits"),
        ("real", {"quantization_config": GPTQ | {"sym": []}}, GPTQ, "quantised to 4 bits"),
        ("real", {"text_config": {"quantization_config": FP8}}, FP8, "quantised"),
        ("real", {"quantization": {"bits": [4]}}, {}, "quantised"),
        ("real", {"quantization": None}, None, ""),
        ("random", {"quantization": PACKED}, PACKED, "quantised to 4 bits"),
        ("random", {"quantization_config": PACKED}, None, ""),  # mlx-lm's own key alone is obeyed
    ],
)
def test_a_model_is_quantised_as_its_config_says(folder, weights, config, said, words):
    write(folder / "config.json", config)
    assert found(folder, weights)["model_quantization"] == said
    assert sources.stored_quantized({"weights": weights}, found(folder, weights)) == words
    assert sources.stored_quantized({"weights": "none"}, found(folder, weights)) == ""


def test_a_model_is_quantised_as_the_file_beside_its_config_says(folder):
    write(folder / "config.json", {})
    write(folder / "hf_quant_config.json", {"quant_method": "x" * 10_000})
    assert len(found(folder)["model_quantization"]["quant_method"]) == 2000
    assert found(folder, "random")["model_quantization"] is None


@pytest.mark.parametrize("text", ["[]", "{", '{"quantization": 4}'])
def test_a_damaged_config_says_nothing_of_it(folder, text):
    (folder / "config.json").write_text(text)
    assert found(folder)["model_quantization"] is None


def test_one_record_of_a_model_put_there_by_hand_is_enough():
    """Older records say nothing of it."""
    model = {"name": "m", "kind": "hub", "weights": "real", "repository": "a/b", "revision": "1"}
    records = [
        {
            "request": {"engine": "mlx", "model": model, "protocol": {"generate": 8}},
            "engine": {"dtype": "float32"},
            "inputs": {"model_sha256": "0"} | said,
        }
        for said in ({}, {"model_source": BY_HAND}, {"model_source": BY_HAND})
    ]
    assert [each["source"] for each in sources.models(records[:1])] == ["a/b at 1"]
    assert [each["source"] for each in sources.models(records)] == [f"a/b at 1, {BY_HAND}"]
