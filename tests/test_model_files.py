"""The record of a model folder, and what it catches."""

import json
import os

import pytest

from kvpeak.base import layout, made
from kvpeak.base.errors import UserError
from kvpeak.base.files import sha256_of
from kvpeak.inputs.model_folder import describe_files, read_config, verify_model


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    files = describe_files(tmp_path, ["config.json", "model.safetensors"])
    (tmp_path / "model.json").write_text(json.dumps({"name": "tiny", "files": files}))
    return tmp_path


def refusal(folder, **options) -> str:
    with pytest.raises(UserError) as error:
        verify_model(folder, **options)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_an_unchanged_folder_passes(folder):
    assert verify_model(folder, hashes=True)["name"] == "tiny"


def test_a_missing_file_is_named(folder):
    (folder / "model.safetensors").unlink()
    assert f"{folder / 'model.safetensors'}: missing" in refusal(folder)


def test_a_truncated_file_is_named_with_both_sizes(folder):
    (folder / "model.safetensors").write_bytes(b"weight")
    assert "model.safetensors: 6 bytes, expected 7" in refusal(folder)


def test_a_changed_byte_is_found_by_the_hash_alone(folder):
    (folder / "model.safetensors").write_bytes(b"weightz")
    assert "model.safetensors: sha256" in refusal(folder)


def test_weights_are_hashed_once_until_they_change(folder, monkeypatch):
    """A gigabyte takes a second, and each cell loads it."""
    hashed = []
    monkeypatch.chdir(folder)
    layout.MADE.mkdir(parents=True)
    monkeypatch.setattr(made, "_SETTLED_S", -1)
    monkeypatch.setattr(made, "sha256_of", lambda path: hashed.append(path.name) or sha256_of(path))
    for _ in range(3):
        verify_model(folder)
    assert hashed.count("model.safetensors") == 1
    os.utime(folder / "model.safetensors", ns=(0, 0))
    verify_model(folder)
    assert hashed.count("model.safetensors") == 2


def test_a_file_that_was_just_written_is_not_remembered(folder, monkeypatch):
    """It could change once more within one tick of the file system's clock."""
    monkeypatch.chdir(folder)
    layout.MADE.mkdir(parents=True)
    monkeypatch.setattr(made, "_SETTLED_S", 3600)
    verify_model(folder)
    assert [*layout.MADE.iterdir()] == []


def test_a_folder_that_was_not_made_says_how_to_make_it(folder):
    (folder / "model.json").unlink()
    assert "make the model: snakemake --cores 1" in refusal(folder)


@pytest.mark.parametrize("content", ["{", "[]"])
def test_a_config_that_is_no_json_object_is_one_line(folder, content):
    (folder / "config.json").write_text(content)
    with pytest.raises(UserError, match=r"config\.json"):
        read_config(folder)
