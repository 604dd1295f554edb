"""A model from a stranger: nothing of it is run or believed, and what would bring MLX down is
refused before MLX reads it.
"""

import json
import os
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from conftest import TINY_MODEL
from mlx.utils import tree_flatten
from test_make_model import HUB, SHAPES, hub, models_folder, real_files, sha256  # noqa: F401
from test_render import drawn, project, rendered, without_pictures  # noqa: F401
from tiny_gguf import gguf_bytes, llama_metadata, llama_tensors

from kvpeak.base import untrusted
from kvpeak.base.errors import UserError
from kvpeak.base.made import BY_HAND, say_why_not, why_not_made
from kvpeak.base.program import main
from kvpeak.commands import pools
from kvpeak.experiment.preparation import to_be_tried_again
from kvpeak.inputs import gguf
from kvpeak.inputs.model_folder import describe_files
from kvpeak.inputs.shapes import find_shapes
from kvpeak.inputs.weights_check import check_weights
from kvpeak.live import loading
from kvpeak.runner import provenance

SCRIPTS = Path(__file__).parents[2] / "workflow/scripts"
EVIL = "name \x1b]0;owned\x07 \u202eend"


def load(folder: Path, weights: str = "real"):
    return loading.load_model(folder, weights=weights, dtype=None, seed=0)


def refusal(folder: Path, weights: str = "real") -> str:
    with pytest.raises(UserError) as error:
        load(folder, weights)
    assert str(error.value).isprintable()
    return str(error.value)


@pytest.fixture
def saved(tmp_path) -> Path:
    """A folder with a small model's config.json and safetensors."""
    folder = tmp_path / "m"
    folder.mkdir()
    model = loading.random_model(SHAPES, 1, "float32")
    (folder / "config.json").write_text(json.dumps(SHAPES))
    weights = dict(tree_flatten(model.parameters()))
    mx.save_safetensors(str(folder / "model.safetensors"), weights)
    return folder


@pytest.fixture
def recorded(saved) -> Path:
    """The same with the record of a step, which remembers hashes."""
    files = describe_files(saved, ["config.json", "model.safetensors"])
    (saved / "model.json").write_text(json.dumps({"name": "m", "files": files}))
    return saved


def config(folder: Path, **changes) -> None:
    (folder / "config.json").write_text(json.dumps(SHAPES | changes))


# Code from a model folder (1)


@pytest.mark.parametrize("weights", ["real", "random"])
@pytest.mark.parametrize("key", ["model_file", "auto_map", "custom_pipelines"])
def test_code_that_a_config_names_is_refused_whatever_the_library_does(saved, key, weights):
    config(saved, **{key: "evil.py"})
    assert f"config.json: {key}: asks for a custom module" in refusal(saved, weights)


def test_code_inside_the_language_model_of_a_config_is_refused(saved):
    config(saved, text_config={"model_file": "evil.py"})
    assert "model_file: asks for a custom module" in refusal(saved)


def test_code_that_a_second_key_hides_is_refused(saved):
    """mlx-lm reads the file itself, and sees each key as it is."""
    whole = json.dumps(SHAPES)
    for more, said in (
        ('"model_file": "evil.py", "model_file\\t": null', "characters that cannot be seen"),
        ('"model_file": "evil.py", "model_file": null', "a key is there twice"),
        ('"num_hidden_layers\\u200b": 2', "characters that cannot be seen"),
    ):
        (saved / "config.json").write_text(f"{whole[:-1]}, {more}}}")
        assert "config.json: expected JSON: " in (found := refusal(saved)) and said in found


def test_the_engine_runs_no_code_of_a_model_folder(saved):
    """The real engine, as the runner starts it."""
    wire = saved / "ran"
    (saved / "evil.py").write_text(f"open({str(wire)!r}, 'w')")
    config(saved, model_file="evil.py")
    (saved / "prompt.json").write_text('{"tokens": [1, 2]}')
    done = engine(saved)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].endswith("only models that mlx-lm has are loaded")
    assert not wire.exists()


def engine(folder: Path, weights: str = "real") -> subprocess.CompletedProcess:
    asked = {
        "cell": {},
        "engine": "mlx",
        "model": {"name": "m", "folder": str(folder), "weights": weights, "dtype": "float32"},
        "prompt": {"name": "p", "tokens": 2, "path": str(folder / "prompt.json")},
        "kv_cache": "cat",
        "cap": "none",
        "options": {"attention": "fused", "prefill_chunk": "whole"},
        "protocol": {
            **{"warmup": 0, "recorded": 1, "generate": 2, "ignore_eos": True, "seed": 0},
            **{"repeat_penalty": 1, "repeat_window": 8},
        },
    }
    asked["model"]["seed"] = 0
    file = folder / "request.json"
    file.write_text(json.dumps(asked))
    return subprocess.run(
        [sys.executable, SCRIPTS / "mlx_engine.py", file],
        cwd=SCRIPTS.parents[1],
        capture_output=True,
        text=True,
        check=False,
    )


# Pins (5)


FORGED = {
    "its own hashes, and the pins of the matrix beside them": {
        "files": {"model.safetensors": "1" * 64}
    },
    "a conversion, after which no file has the hash of the pins": {
        "files": {"model.safetensors": "1" * 64},
        "quantize": {"bits": 8},
    },
    "a download of what nobody has pinned": {},
}


@pytest.mark.parametrize("case", FORGED)
def test_a_forged_record_in_a_model_folder_is_not_believed(models_folder, real_files, case):  # noqa: F811
    entry = HUB | FORGED[case]
    hand_over(models_folder, real_files, entry)
    done = models_folder.make(entry)
    if "files" in entry:
        assert done.returncode == 1 and len(done.stderr.splitlines()) == 1
    else:
        assert BY_HAND in (models_folder.folder / "model.json").read_text()


def hand_over(models_folder, files: dict[str, bytes], entry: dict) -> None:  # noqa: F811
    """Put a folder there whose records say that the entry's model was made."""
    record = {
        **{"name": "tiny", "kind": "hub", "weights": "real", "config_sha256": None},
        **{"repository": entry["repository"], "revision": entry["revision"]},
        "pinned_sha256": entry.get("files"),
        **({"quantize": entry["quantize"]} if "quantize" in entry else {}),
        "source": "the hub",
        "files": {
            name: {"bytes": len(content), "sha256": sha256(content)}
            for name, content in files.items()
        },
    }
    said = json.dumps(record, indent=1).encode() + b"\n"
    models_folder.put(files | {".made.json": said, "model.json": said})


def test_a_model_that_was_handed_over_is_made_again(models_folder, hub, monkeypatch):  # noqa: F811
    """Its model.json says that there is nothing to do; so does that of a folder of this project
    into which somebody has put another one.
    """
    monkeypatch.chdir(models_folder.root)
    record = models_folder.folder / "model.json"
    hand_over(models_folder, {}, HUB)
    assert to_be_tried_again(record)
    shutil.rmtree(models_folder.folder)
    models_folder.made(HUB, endpoint=hub.url)
    assert not to_be_tried_again(record)
    record.write_text(record.read_text().replace("tiny", "tony"))
    assert to_be_tried_again(record)


def test_a_record_of_another_model_or_of_other_small_files_is_not_believed(
    models_folder,  # noqa: F811
    hub,  # noqa: F811
    monkeypatch,
):
    """It was written here, and is copied; a config.json of the same size is put beside it."""
    monkeypatch.chdir(models_folder.root)
    models_folder.made(HUB, endpoint=hub.url)
    other = models_folder.folder.with_name("other")
    shutil.copytree(models_folder.folder, other)
    assert to_be_tried_again(other / "model.json")
    assert not to_be_tried_again(models_folder.folder / "model.json")
    config = models_folder.folder / "config.json"
    config.write_text(config.read_text().replace("1", "2", 1))
    assert "config.json: sha256 " in refusal(models_folder.folder)


UNNAMED = ("modelx.safetensors", "evil.gguf", "generation_config.json", "hf_quant_config.json")


@pytest.mark.parametrize("name", UNNAMED)
def test_what_an_honest_record_does_not_name_is_not_loaded(recorded, name):
    """mlx-lm takes every model*.safetensors, in the order of the disk: the last one wins."""
    load(recorded)
    shutil.copy(recorded / "model.safetensors", recorded / name)
    said = refusal(recorded)
    assert f"{recorded / name}: model.json does not name it; take the file away, or delete" in said


def test_the_record_of_shapes_alone_is_not_that_of_weights(recorded):
    """It is of the same model, and was written here."""
    files = describe_files(recorded, ["config.json"])
    (recorded / "model.json").write_text(json.dumps({"name": "m", "files": files}))
    load(recorded, "random")
    assert "model.safetensors: model.json does not name it" in refusal(recorded)


def test_other_weights_of_the_same_size_are_refused(recorded):
    other = dict(tree_flatten(loading.random_model(SHAPES, 2, "float32").parameters()))
    file = recorded / "model.safetensors"
    before = file.stat()
    mx.save_safetensors(str(file), other)
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert file.stat().st_size == before.st_size
    assert f"{file}: sha256 " in refusal(recorded)


def test_a_tensor_in_two_files_is_refused(saved):
    shutil.copy(saved / "model.safetensors", saved / "model-a.safetensors")
    with pytest.raises(UserError, match=r"model\.safetensors: .*: is in model-a\.safetensors, too"):
        check_weights(saved)


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json", "m.gguf"])
def test_a_tebibyte_of_nothing_is_not_hashed(tmp_path, name):
    """Its header may agree, and it comes in an archive of 10 kB."""
    size = 1 << 40
    (tmp_path / name).write_bytes(
        header({"dtype": "F32", "shape": [size // 4], "data_offsets": [0, size]})
    )
    os.truncate(tmp_path / name, (tmp_path / name).stat().st_size + size)
    with pytest.raises(UserError, match="on the disk: it is next to empty; get the file again"):
        describe_files(tmp_path, [name])


def test_weights_with_some_holes_are_hashed(recorded, monkeypatch):
    """As a file system that compresses has them for zeros."""
    file = recorded / "model.safetensors"
    file.write_bytes(bytes(1 << 16))
    os.truncate(file, 1 << 20)
    monkeypatch.setattr(untrusted, "LARGE", 0)
    files = describe_files(recorded, [file.name])
    assert files[file.name]["sha256"] == sha256(bytes(1 << 20))


MORE = ({"quantization": {"group_size": 32, "bits": 2}}, {"dtype": "float16"}, {"x": 1})


@pytest.mark.parametrize("more", MORE)
def test_random_weights_are_those_that_the_matrix_asks_for(models_folder, more):  # noqa: F811
    """A config.json that adds to it would be measured, and the matrix's be named."""
    entry = {"kind": "random", "config": str(models_folder.config)}
    planned = json.loads(models_folder.config.read_text())
    models_folder.put({"config.json": json.dumps(planned | more).encode()})
    assert "config.json: is not what " in models_folder.refused(entry)
    models_folder.put({"config.json": json.dumps(planned).encode()})
    assert models_folder.made(entry)["weights"] == "random"


def test_weights_in_other_bits_than_the_plan_says_are_refused(models_folder, real_files):  # noqa: F811
    """A config of the shapes alone says none: a quantised repository may be planned with it."""
    shapes = json.loads(models_folder.config.read_text())
    packed = {bits: {"quantization": {"group_size": 32, "bits": bits}} for bits in (2, 4)}
    entry = HUB | {"config": str(models_folder.config)}
    models_folder.config.write_text(json.dumps(shapes | packed[4]))
    models_folder.put(real_files | {"config.json": json.dumps(shapes).encode()})
    assert "'bits': 4}, but the model has None" in models_folder.refused(entry)
    models_folder.put({"config.json": json.dumps(shapes | packed[2]).encode()})
    assert "'bits': 4}, but the model has {" in models_folder.refused(entry)
    models_folder.config.write_text(json.dumps(shapes))
    assert models_folder.made(entry)["source"] == BY_HAND


def test_a_damaged_record_in_a_model_folder_is_none(models_folder, real_files):  # noqa: F811
    for forged in (b"[" * 100_000, b'{"files": {"../../key": {}}}', b"[]"):
        models_folder.put(real_files)
        models_folder.put({".made.json": forged})
        assert "by hand" in models_folder.made(HUB)["source"]
        models_folder.put({"model.json": forged})


def test_a_pin_of_a_file_that_the_hub_does_not_have_is_refused(models_folder, hub):  # noqa: F811
    entry = HUB | {"files": {"nothing.bin": "0" * 64}}
    assert "nothing.bin" in models_folder.refused(entry, endpoint=hub.url)


def test_no_reason_holds_the_password_of_a_hub(models_folder, hub):  # noqa: F811
    """An address with a user is how a mirror is given; the reason is published."""
    entry = HUB | {"revision": "f" * 40}
    mirror = hub.url.replace("http://", "http://me:SECRETPW@")
    line = models_folder.refused(entry, endpoint=mirror)
    assert "cannot be downloaded from the hub (" in line
    assert "SECRETPW" not in line
    left = models_folder.folder / "why.json"
    say_why_not(left, "unavailable", f"asked {mirror}/TOK and http://a@b:p@c/d")
    assert why_not_made(left).reason == f"asked {hub.url}/TOK and http://c/d"


def test_weights_that_only_one_engine_would_load_are_refused(saved, tmp_path):
    """A hidden file is nobody's; of two kinds MLX takes the one and mistral.rs the other."""
    from kvpeak.mistral.loading import link_files

    for name in ("tokenizer.json", "._evil.gguf"):
        (saved / name).write_text("{}")
    (tmp_path / "into").mkdir()
    check_weights(saved)
    names = ["model.safetensors", "config.json", "tokenizer.json"]
    (saved / "model.json").write_text(json.dumps({"files": describe_files(saved, names)}))
    assert link_files(saved, tmp_path / "into") == []
    assert {path.name for path in (tmp_path / "into").iterdir()} == {*names}
    (saved / "evil.gguf").write_bytes(b"GGUF")
    with pytest.raises(UserError, match=r"holds model\.safetensors and evil\.gguf; MLX would"):
        check_weights(saved)


@pytest.mark.parametrize("kind", ["a file", "a link", "a folder"])
@pytest.mark.parametrize("name", ["new", "old", "download"])
def test_what_lies_under_a_hidden_name_does_not_keep_a_model_from_being_made(
    models_folder,  # noqa: F811
    hub,  # noqa: F811
    tmp_path,
    name,
    kind,
):
    place, mine = models_folder.folder.with_name(f".tiny.{name}"), tmp_path / "mine"
    mine.write_text("mine")
    if kind == "a file":
        place.write_text("x")
    elif kind == "a link":
        place.symlink_to(mine)
    else:
        (place / "inner").mkdir(parents=True)
    models_folder.made(HUB, endpoint=hub.url)
    assert mine.read_text() == "mine" and not place.exists()


def test_a_hub_that_sends_more_than_it_lists_is_refused(models_folder, hub):  # noqa: F811
    hub.served["model.safetensors"] = hub.files["model.safetensors"] + bytes(1 << 20)
    line = models_folder.refused(HUB, endpoint=hub.url)
    assert "model.safetensors" in line
    assert "model.safetensors" not in models_folder.names


def measured() -> None:
    """The small result set's records are of the folder `tiny`, a model of the hub."""
    for file in Path("results").rglob("cell.json"):
        record = json.loads(file.read_text())
        record["request"]["model"] = {"name": "tiny", "folder": "tiny", "weights": "real"} | HUB
        record["inputs"] = provenance.inputs(record["request"])
        file.write_text(json.dumps(record))


def test_files_put_there_by_hand_are_not_called_the_hubs(models_folder, real_files, hub, rendered):  # noqa: F811
    models_folder.put(real_files)
    assert models_folder.made(HUB)["source"] == BY_HAND
    hubs = f"| `tiny` | {HUB['repository']} at {HUB['revision']}"
    doubt = "- The files of `tiny` were put there by hand: nothing shows that they are what the"
    assert f"{hubs}, put there by hand, revision not checked | `" in rendered(measured)
    assert doubt in Path("report/finding.md").read_text()
    shutil.rmtree(models_folder.folder)
    models_folder.made(HUB, endpoint=hub.url)
    details = rendered(measured)
    assert f"{hubs} | `" in details and "by hand" not in details


def test_weights_in_fewer_bits_that_no_plan_names_are_called_so(
    models_folder,  # noqa: F811
    real_files,  # noqa: F811
    rendered,  # noqa: F811
):
    packed = {"quantization": {"group_size": 32, "bits": 2}}
    models_folder.put(real_files | {"config.json": json.dumps(SHAPES | packed).encode()})
    models_folder.made(HUB)
    row = "| Model `tiny` | real weights quantised to 2 bits, computed in float32"
    assert row in rendered(measured)
    models_folder.put({"config.json": json.dumps(SHAPES).encode()})
    assert "| Model `tiny` | real weights, float32" in rendered(measured)


def test_a_record_that_names_files_elsewhere_is_refused(saved):
    files = {"../m/config.json": {"bytes": 1, "sha256": "0" * 64}}
    (saved / "model.json").write_text(json.dumps({"name": "m", "files": files}))
    assert "expected the bytes and sha256 of each file" in refusal(saved)


# Names in a model (8), ids (10), sizes (12)


def test_a_gguf_with_hidden_characters_in_its_names_is_one_line(tmp_path):
    path = tmp_path / "m.gguf"
    path.write_bytes(gguf_bytes({}, {EVIL: ("F32", np.zeros((2, 32)))})[:-28])
    with pytest.raises(UserError, match="the file is cut short") as error:
        gguf.read_header(path)
    assert str(error.value).isprintable() and "\\x1b]0;owned" in str(error.value)


@pytest.mark.parametrize("number", [300, 2_000_000_000])
def test_an_id_beyond_the_vocabulary_never_reaches_the_embedding(saved, number):
    (saved / "prompt.json").write_text(json.dumps({"tokens": [1, number]}))
    done = engine(saved, "random")
    assert done.returncode == 1
    assert f"token id {number}: the model's vocabulary has 256 ids" in done.stderr


def test_a_malformed_gguf_is_refused_before_mlx_reads_it(tmp_path):
    whole = gguf_bytes(llama_metadata(), llama_tensors("F32"))
    path = tmp_path / "m.gguf"
    (tmp_path / "config.json").write_text(json.dumps(SHAPES | {"model_type": "llama"}))
    for damaged in (
        whole[:-4096],
        b"GGUF" + struct.pack("<IQQ", 3, 1, 0) + struct.pack("<Q", 2**62),
        b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<QIQ", 0, 8, 2**62),
    ):
        path.write_bytes(damaged)
        assert str(path) in refusal(tmp_path)


def test_a_header_is_checked_without_keeping_what_it_holds(tmp_path):
    path = tmp_path / "m.gguf"
    path.write_bytes(gguf_bytes(llama_metadata(), llama_tensors("F32")))
    header = gguf.read_header(path, keep=False)
    assert header.metadata["tokenizer.ggml.tokens"] is None
    assert header.shapes == gguf.read_header(path).shapes


def gguf_with(tmp_path: Path, counts: tuple[int, int], body: bytes, size: int = 0) -> str:
    """The refusal of a GGUF of `counts` tensors and entries; with `size` sparse to its end."""
    path = tmp_path / "m.gguf"
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, *counts) + body)
    if size:
        os.truncate(path, size)
    with pytest.raises(UserError) as error:
        gguf.check_header(path)
    assert str(path) in str(error.value)
    return str(error.value)


def test_empty_texts_without_end_in_a_gguf_are_not_counted(tmp_path):
    """Eight bytes each, which a sparse file has for nothing."""
    entry = struct.pack("<QIIQ", 0, 9, 8, 2**30 - 64)
    said = gguf_with(tmp_path, (0, 1), entry, 2**33)
    assert "values in its header; expected at most 4,000,000" in said


def test_a_gguf_header_of_gibibytes_is_refused(tmp_path):
    entry = struct.pack("<QIQ", 0, 8, 2**32)  # one text
    assert "its header is larger than 256 MiB" in gguf_with(tmp_path, (0, 1), entry, 2**33)


def test_a_name_that_a_gguf_has_twice_is_refused(tmp_path):
    """The last of them alone would be looked at."""
    beyond = struct.pack("<QcIQIQ", 1, b"t", 1, 4, 0, 2**40)
    inside = struct.pack("<QcIQIQ", 1, b"t", 1, 4, 0, 0)
    assert "'t': is there twice" in gguf_with(tmp_path, (2, 0), beyond + inside, 4096)
    entry = struct.pack("<QcIB", 1, b"k", 7, 0)
    assert "'k': is there twice" in gguf_with(tmp_path, (0, 2), entry + entry, 4096)


SIZES = {
    "num_hidden_layers": (10**9, "1,000"),
    "hidden_size": (10**290, "2,147,483,648"),
    "vocab_size": (2**31 + 1, "2,147,483,648"),
    "max_position_embeddings": (10**30, "2,147,483,648"),
}


@pytest.mark.parametrize("key", SIZES)
def test_a_size_that_no_model_has_is_refused(tmp_path, key):
    value, most = SIZES[key]
    path = tmp_path / "m.json"
    path.write_text(json.dumps(json.loads(TINY_MODEL) | {key: value}))
    with pytest.raises(UserError) as error:
        find_shapes(str(path))
    assert str(error.value) == (
        f"{path}: {key}: {value!r:.40}: expected a positive integer, at most {most}"
    )


def test_sizes_whose_product_is_too_large_are_one_line(tmp_path, capsys):
    path = tmp_path / "m.json"
    large = {"num_attention_heads": 2**31, "num_key_value_heads": 2**31, "head_dim": 2**31}
    path.write_text(json.dumps(json.loads(TINY_MODEL) | large))
    assert main(pools, [f"candle:{path},cat,16"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert str(path) in line and "expected < 2^63" in line


@pytest.mark.parametrize("said", [{"Fixed": 10**9}, "BatchLongest"])
def test_a_tokenizer_that_pads_is_not_followed(tmp_path, said):
    tokenizer = {
        "version": "1.0",
        "padding": {
            **{"strategy": said, "direction": "Right", "pad_to_multiple_of": None},
            **{"pad_id": 0, "pad_type_id": 0, "pad_token": "a"},
        },
        "truncation": {
            **{"max_length": 1, "strategy": "LongestFirst", "stride": 0, "direction": "Right"},
        },
        "pre_tokenizer": {"type": "Whitespace"},
        "model": {"type": "WordLevel", "vocab": {"a": 0, "b": 1}, "unk_token": "a"},
    }
    done = cut(tmp_path, tokenizer)
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "out.json").read_text())["tokens"] == [0, 1, 0]


def test_a_tokenizer_whose_pattern_goes_beyond_its_limit_is_one_line(tmp_path):
    """The library panics, which is no Exception, and says so itself first."""
    split = {"type": "Split", "behavior": "Isolated", "invert": False}
    split |= {"pattern": {"Regex": "(a| |b|a b)+c"}}
    model = {"type": "WordLevel", "vocab": {"a": 0, "b": 1}, "unk_token": "a"}
    done = cut(tmp_path, {"version": "1.0", "pre_tokenizer": split, "model": model}, "a b " * 40)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert done.stderr.splitlines()[-1].startswith("cut_prompt: tokenizer.json: ")


@pytest.mark.slow
def test_a_tokenizer_that_makes_gibibytes_of_a_word_ends(tmp_path):
    more = {"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 100_000}
    model = {"type": "WordLevel", "vocab": {"a": 0, "b": 1}, "unk_token": "a"}
    normalizer = {"type": "Sequence", "normalizers": [more, more]}
    tokenizer = {"version": "1.0", "normalizer": normalizer, "model": model}
    done = cut(tmp_path, tokenizer)
    assert done.returncode not in (0, -9)
    assert not (tmp_path / "out.json").exists()


def cut(folder: Path, tokenizer: dict, text: str = "a b a b") -> subprocess.CompletedProcess:
    files = {
        "tokenizer.json": json.dumps(tokenizer).encode(),
        "config.json": json.dumps(SHAPES).encode(),
    }
    for name, content in files.items():
        (folder / name).write_bytes(content)
    record = {
        name: {"bytes": len(content), "sha256": sha256(content)} for name, content in files.items()
    }
    (folder / "model.json").write_text(json.dumps({"name": "m", "files": record}))
    (folder / "corpus.txt").write_text(text)
    arguments = ["--corpus", "corpus.txt", "--model-folder", ".", "--tokens", "3"]
    return subprocess.run(
        [sys.executable, SCRIPTS / "cut_prompt.py", *arguments, "--out", "out.json"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("deep", ["config.json", "model.json"])
def test_a_record_of_a_hundred_thousand_brackets_is_one_line(saved, deep):
    (saved / deep).write_text('{"a":' + "[" * 100_000)
    assert "nested too deeply" in refusal(saved)


def test_a_pipe_in_a_model_folder_is_not_waited_for(saved):
    (saved / "config.json").unlink()
    os.mkfifo(saved / "config.json")
    assert "config.json: expected a regular file" in refusal(saved)


def header(tensor: dict, name: str = "model.norm.weight") -> bytes:
    return packed(json.dumps({name: tensor}))


def packed(text: str) -> bytes:
    return struct.pack("<Q", len(text)) + text.encode()


TENSOR = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}
TWICE = f'{{"a":{json.dumps(TENSOR | {"data_offsets": [0, 400]})},"a":{json.dumps(TENSOR)}}}'
NO_TENSORS = {
    "a key that no tensor has": header(TENSOR | {"more": [[]]}),
    "metadata that are no text": header({"a": [[], []]}, "__metadata__"),
    "an offset that is no number": header(TENSOR | {"data_offsets": [0, "4"]}),
    "a shape of lists": header(TENSOR | {"shape": [[]]}),
    "a tensor that ends before it begins": header(TENSOR | {"data_offsets": [8, 4]}),
    "a name twice": packed(TWICE),
}


@pytest.mark.parametrize("case", NO_TENSORS)
def test_a_safetensors_header_holds_tensors_and_nothing_else(tmp_path, case):
    (tmp_path / "model.safetensors").write_bytes(NO_TENSORS[case] + bytes(4))
    with pytest.raises(UserError, match="its header is damaged"):
        check_weights(tmp_path)


def test_a_safetensors_header_of_many_mebibytes_is_not_read(tmp_path):
    path = tmp_path / "model.safetensors"
    path.write_bytes(struct.pack("<Q", 30 << 20))
    os.truncate(path, 31 << 20)
    with pytest.raises(UserError, match="its header has 31457280 bytes; expected at most 16,777"):
        check_weights(tmp_path)


HEADERS = {
    "a header of 2⁶⁰ bytes": struct.pack("<Q", 1 << 60) + b"{}",
    "a header longer than the file": struct.pack("<Q", 100) + b"{}",
    "a header that is no JSON": struct.pack("<Q", 4) + b"evil",
    "a tensor of 2⁶² bytes": header(
        {"dtype": "F32", "shape": [1 << 40, 1 << 20], "data_offsets": [0, 1 << 62]}
    ),
    "a tensor beyond the file": header(
        {"dtype": "F32", "shape": [1024], "data_offsets": [0, 4096]}
    ),
}


@pytest.mark.parametrize("case", HEADERS)
def test_safetensors_with_absurd_sizes_are_refused_in_one_line(tmp_path, case):
    (tmp_path / "model.safetensors").write_bytes(HEADERS[case])
    (tmp_path / "config.json").write_text(TINY_MODEL)
    assert str(tmp_path) in refusal(tmp_path)
