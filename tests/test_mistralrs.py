"""The engine mistralrs: what it is asked, what it refuses by name, and what is inside each
release.
"""

import json
import re
from pathlib import Path

import pytest
import yaml

from kvpeak.base.axes import Cell
from kvpeak.base.errors import Unsupported, UserError
from kvpeak.experiment import workloads
from kvpeak.experiment.matrix import Matrix
from kvpeak.inputs.model_folder import describe_files
from kvpeak.mistral import asked, loading
from kvpeak.mistral.text import answer_ids, prompt_text
from kvpeak.mistral.versions import candle_inside, releases

ROOT = Path(__file__).parents[1]
PROTOCOL = {"repeat_penalty": 1.1, "repeat_window": 64, "generate": 16}


def test_a_penalty_is_passed_on_where_its_window_never_moves():
    assert asked.penalty(PROTOCOL | {"repeat_window": 36}, tokens=20) == 1.1
    with pytest.raises(Unsupported, match=r"repeat_window 35: .* window of at least 36"):
        asked.penalty(PROTOCOL | {"repeat_window": 35}, tokens=20)


@pytest.mark.parametrize("none", [{"repeat_penalty": 1}, {"repeat_window": 0}])
def test_no_penalty_is_none(none):
    assert asked.penalty(PROTOCOL | none, tokens=2000) is None


def test_the_paged_cache_is_refused_on_a_cpu_and_by_name_elsewhere():
    assert asked.paged("paged", "metal")
    assert not asked.paged("own", "cpu")
    with pytest.raises(Unsupported, match=r"no PagedAttention on the CPU"):
        asked.paged("paged", "cpu")
    with pytest.raises(Unsupported, match=r"kv_cache cat: mistral.rs has own and paged"):
        asked.paged("cat", "metal")


@pytest.mark.parametrize("options", [{"attention": "naive"}, {"prefill_chunk": 512}])
def test_what_mistral_rs_cannot_be_told_is_unsupported(options):
    with pytest.raises(Unsupported, match=r"has its own way only"):
        asked.check_options(options)


@pytest.mark.parametrize(
    "model", [{"weights": "random"}, {"weights": "real", "quantize": {"bits": 4}}]
)
def test_a_model_that_is_not_in_files_is_unsupported(model):
    with pytest.raises(Unsupported, match=r"mistral.rs reads weights"):
        asked.check_model(model)


@pytest.mark.parametrize(
    ("workload", "message"),
    [
        ({"batch": 2}, "batch: this engine measures turns and repeat"),
        ({"shared_prefix": 9}, "shared_prefix: this engine measures"),
        ({"turns": [[3, 4]], "keep": "trim"}, "cannot be told to take an answer back"),
        ({"turns": [[3, 4]], "keep": "all"}, "measured without a penalty"),
    ],
)
def test_a_workload_that_mistral_rs_cannot_be_told_is_unsupported(workload, message):
    with pytest.raises(Unsupported, match=message):
        asked.check_workload(workload, PROTOCOL)


def test_the_prefix_cache_is_on_for_a_session_that_is_kept_and_for_nothing_else():
    kept, thrown = ({"turns": [[3, 4]], "keep": keep} for keep in ("all", "none"))
    for workload, own in ((kept, 16), (thrown, 0), ({"repeat": 3}, 0), (None, 0)):
        asked.check_workload(workload, PROTOCOL | {"repeat_penalty": 1})
        assert asked.prefixes(workload) == own


def encode(text: str) -> list[int]:
    """A tokenizer of characters that knows no q."""
    return [ord(sign) for sign in text if sign != "q"]


def decode(ids: list[int]) -> str:
    return "".join(map(chr, ids))


def test_the_prompts_text_leaves_out_what_the_engine_puts_before_it():
    ids = encode("hello")
    assert prompt_text(ids, 0, decode, encode) == "hello"
    assert prompt_text(ids, 1, decode, encode) == "hell"


def test_a_prompt_that_the_engine_cuts_otherwise_is_refused():
    with pytest.raises(UserError, match=r"prompt's 3 tokens are 2 for mistral.rs"):
        prompt_text([97, ord("q"), 98], 0, decode, encode)


def test_ids_of_an_answer_are_known_if_they_are_as_many_as_it_says():
    assert answer_ids("ab", 2, encode) == [97, 98]
    assert answer_ids("aq", 2, encode) is None


def test_the_reserve_is_read_from_the_engines_messages():
    said = (
        b"\x1b[2m2026\x1b[0m INFO mistralrs_core::paged_attention: Allocating 512 MB for "
        b"PagedAttention KV cache per GPU\nINFO: Using PagedAttention with block size 32\n"
    )
    assert loading.reserve_mib(said) == 512
    assert loading.reserve_mib(b"INFO: nothing of the kind\n") is None


def test_messages_of_the_start_are_read_and_still_reach_standard_error(capfd):
    def start():
        import os

        os.write(1, b"Allocating 7 MB for PagedAttention KV cache per GPU\n")
        return "runner"

    assert loading._reading_the_reserve(start) == ("runner", 7.0)
    assert "Allocating 7 MB" in capfd.readouterr().err


def test_a_gguf_files_config_is_not_shown_to_mistral_rs(tmp_path):
    model, into = tmp_path / "model", tmp_path / "into"
    model.mkdir()
    into.mkdir()
    listed(model, "a.gguf", "config.json", "tokenizer.json")
    assert loading.link_files(model, into) == ["a.gguf"]
    assert sorted(file.name for file in into.iterdir()) == ["a.gguf", "tokenizer.json"]


def listed(model: Path, *names: str) -> None:
    """Files of a model, empty, which its model.json lists."""
    for name in names:
        (model / name).write_text("")
    record = {"files": describe_files(model, [*names])}
    (model / "model.json").write_text(json.dumps(record))


def test_weights_that_the_record_does_not_list_are_not_shown_to_mistral_rs(tmp_path):
    """It prefers the one whose name ends as that of a shard, whatever it begins with."""
    model, into = tmp_path / "model", tmp_path / "into"
    model.mkdir()
    into.mkdir()
    names = ("model.safetensors", "config.json", "tokenizer.json")
    listed(model, *names)
    for name in ("x.model-00001-of-00001.safetensors", "other.safetensors", "evil.gguf"):
        (model / name).write_text("")
    assert loading.link_files(model, into) == []
    assert {file.name for file in into.iterdir()} == {*names}


def test_a_folder_without_weights_is_named(tmp_path):
    listed(tmp_path, "tokenizer.json")
    with pytest.raises(UserError, match=r"holds no \.gguf and no \.safetensors"):
        loading.link_files(tmp_path, tmp_path)


def test_every_release_is_there_once_with_the_commit_of_its_candle():
    found = releases()
    assert len({release.version for release in found}) == len(found)
    assert all(re.fullmatch("[0-9a-f]{7}", release.revision) for release in found)
    assert candle_inside("0.9.2").words == "0.11.0 at 35d7ae7"
    assert candle_inside("0.8.9").words == "0.10.2 at e020e8a"
    assert candle_inside("0.0.1") is None


def test_the_documented_table_is_the_data():
    text = (ROOT / "docs/mistralrs.md").read_text()
    rows = re.findall(r"^\| (0\.\d+\.\d+) \| (\S+) \| `(\w+)` \| (.+?) \|$", text, re.MULTILINE)
    assert rows == [
        (release.version, release.candle or "–", release.revision, release.known_from)
        for release in releases()
    ]


def matrix(**changes) -> Matrix:
    data = yaml.safe_load((ROOT / "config/matrix.yaml").read_text())
    data["commits"] = {"m": {"engine": "mistralrs", "packages": {"mistralrs": "0.9.2"}}}
    data |= {"kv_caches": ["own", "paged"], "caps": ["none"], "exclude": [], "include": []}
    data |= {"compare": [], "variants": {"stock": {"repeat_penalty": 1}, "penalty": {}}}
    return Matrix(data | changes, "matrix.yaml")


def cell(kv_cache="own", variant="stock", model="smollm2-135m-instruct") -> Cell:
    return Cell("m", model, "alice-128", kv_cache, "none", variant)


def test_the_plan_says_why_a_cell_is_not_for_mistral_rs(monkeypatch):
    monkeypatch.setenv("KVPEAK_ACCELERATOR", "cpu")
    planned = matrix()
    assert planned.reason_not_here(cell()) == ""
    assert "no PagedAttention on the CPU" in planned.reason_not_here(cell("paged"))
    assert "penalises the whole text" in planned.reason_not_here(cell(variant="penalty"))
    assert "reads weights from files" in planned.reason_not_here(cell(model="qwen2-tiny"))


def test_a_variants_penalty_takes_the_place_of_the_protocols():
    request = matrix().request(cell())
    assert request["protocol"]["repeat_penalty"] == 1
    assert "repeat_penalty" not in request["options"]
    assert matrix().request(cell(variant="penalty"))["protocol"]["repeat_penalty"] == 1.1


WORKLOADS = {
    "kept": {"turns": [{"tokens": 9, "times": 3}]},
    "trimmed": {"turns": [{"tokens": 9, "times": 3}], "keep": "trim"},
    "requests": {"tokens": 9, "repeat": 5},
    "batch": {"tokens": 9, "batch": 2},
    "shared": {"tokens": 9, "shared_prefix": 4},
}


def test_the_plan_says_which_workloads_are_not_for_mistral_rs(monkeypatch):
    monkeypatch.setenv("KVPEAK_ACCELERATOR", "cpu")
    once = {"warmup": 0, "recorded": 1}
    planned = matrix(prompts=WORKLOADS, protocol=once)

    def reason(prompt: str, found: Matrix = planned) -> str:
        names = ("m", "smollm2-135m-instruct", prompt, "own", "none", "stock")
        return found.reason_not_here(Cell(*names))

    assert (reason("kept"), reason("requests")) == ("", "")
    assert "cannot be told to take an answer back" in reason("trimmed")
    assert "decides itself which requests it puts together" in reason("batch")
    assert "can be neither saved nor emptied" in reason("shared")
    twice = matrix(prompts=WORKLOADS, protocol=once | {"recorded": 2})
    assert "a second run would find the first one's turns" in reason("kept", twice)


@pytest.mark.parametrize("engine", ["candle-replay", "command"])
def test_engines_of_one_prompt_have_no_workloads(engine):
    for entry in WORKLOADS.values():
        assert "not applicable: engine" in workloads.not_applicable(engine, entry)
    assert workloads.not_applicable(engine, {"tokens": 9}) == ""
