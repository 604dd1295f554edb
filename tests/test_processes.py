"""One process's folder as a row: its means, its joules, its words, and the work of its shapes."""

import copy
import csv
import json
from pathlib import Path

import pytest
from cells import CONFIG, measured_with

from kvpeak.analysis.least_work import counted_shapes, decode_bytes, prefill_flops
from kvpeak.analysis.processes import read_process
from kvpeak.base.columns import MEMORY, RUNS
from kvpeak.base.errors import UserError

RECORD = json.loads((Path(__file__).parent / "data/cell.json").read_text())
KV_BYTES = 2 * 2 * 2 * 8 * 4  # keys and values · layers · heads · their size · float32


@pytest.fixture
def process(tmp_path, monkeypatch):
    """A function that writes a process, changed at paths of its record, and reads it."""
    monkeypatch.chdir(tmp_path)
    inputs = measured_with(Path("models/tiny"), CONFIG)

    def process(*runs: dict, **changes):
        record = copy.deepcopy(RECORD)
        record["request"]["model"]["folder"] = "models/tiny"
        record["inputs"] = inputs
        for path, value in changes.items():
            *parents, key = path.split("__")
            inner = record
            for name in parents:
                inner = inner.setdefault(name, {})
            inner[key] = value
        with (tmp_path / "runs.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, RUNS.names, lineterminator="\n")
            writer.writeheader()
            usual = {"warmup": "false", "tokens_sha256": "ab"}
            writer.writerows(usual | {"run": at} | run for at, run in enumerate(runs))
        (tmp_path / "cell.json").write_text(json.dumps(record))
        return read_process(tmp_path)[0]

    return process


def test_speeds_are_the_means_of_the_recorded_runs_that_have_one(process):
    found = process(
        {"warmup": "True", "decode_tok_s": 999, "prompt_tokens": 1},
        {"decode_tok_s": 10, "prefill_tok_s": 4, "prompt_tokens": 9, "generated_tokens": 5},
        {"decode_tok_s": 20},
        {"prefill_tok_s": 8},
    )
    assert (found["decode_tok_s"], found["prefill_tok_s"], found["ttft_ms"]) == (15, 6, None)
    assert (found["runs"], found["prompt_tokens"], found["generated_tokens"]) == (3, "9", "5")
    nothing = process({"warmup": "TRUE", "prompt_tokens": 1})
    assert (nothing["runs"], nothing["prompt_tokens"], nothing["hashes"]) == (0, None, [])


def test_a_speed_that_is_no_number_names_its_column(process, tmp_path):
    with pytest.raises(UserError, match=f"^{tmp_path}/runs.csv: line 2: ttft_ms: soon: expected"):
        process({"ttft_ms": "soon"})


@pytest.mark.parametrize("text", ["many", "nan", "1e30", "1_000"])
def test_joules_that_are_no_number_name_their_column(process, text):
    with pytest.raises(UserError, match=f"line 2: prefill_j: {text}: expected a number"):
        process({"prefill_j": text, "prompt_tokens": 4})


def test_a_long_text_that_is_no_number_is_named_by_its_beginning(process):
    with pytest.raises(UserError, match="ttft_ms: " + "s" * 80 + ": expected a number"):
        process({"ttft_ms": "s" * 100})


def test_two_runs_of_one_number_are_refused(process, tmp_path):
    with pytest.raises(UserError, match=f"^{tmp_path}/runs.csv: run: one of them is there twice"):
        process({"run": 1}, {"run": 1})


@pytest.mark.parametrize("other", ["abc", "zzz"])
def test_runs_and_records_are_those_of_the_cell(process, tmp_path, other):
    process({"model": "tiny"})
    own = {"model": "".join(["ti", "ny"])}
    assert read_process(tmp_path, own)[0]["runs"] == 1
    said = f"^{tmp_path}/runs.csv: model: {other}: expected tiny, whose folder it is"
    process({"model": other})
    with pytest.raises(UserError, match=said):
        read_process(tmp_path, own)
    process({"model": other}, cell__model=other)
    with pytest.raises(UserError, match=said.replace("runs.csv", "cell.json")):
        read_process(tmp_path, own)


def test_work_below_zero_is_none(process):
    found = process(engine__kv_bytes_per_token=-5.0)
    assert found["kv_bytes_per_token"] is None
    assert process(engine__kv_bytes_per_token=0.0)["kv_bytes_per_token"] == 0


@pytest.mark.parametrize(
    "part", [{"decode_s": 1e-290}, {"turn": "x"}, {"held_rss_mib": -1}, {"first_difference": 1e30}]
)
def test_a_turn_that_no_table_could_hold_costs_its_process(process, part):
    whole = {"prompt_tokens": 4, "generated_tokens": 9, "turn": 1} | part
    events = [{"event": "run", "run": 0, "warmup": False, "parts": [whole]}]
    if "first_difference" in part:
        events[0]["first_differences"] = [part["first_difference"]]
    with pytest.raises(UserError, match=r"cell\.json: events: parts: \w+: .*: expected a number"):
        process(events=events, request__prompt__workload={"repeat": 1})


@pytest.mark.parametrize(
    ("workload", "each"),
    [
        ({}, 0),
        ({"repeat": 2}, 2),
        ({"turns": [1] * 3}, 3),
        ({"batch": 5}, 5),
        ({"shared_prefix": 512}, 4),
    ],
)
def test_more_parts_than_were_asked_for_cost_their_process(process, workload, each):
    """Of four runs; the turns of all cells have to fit one table."""
    part = {"prompt_tokens": 4, "generated_tokens": 9}
    run = {"event": "run", "run": 0, "warmup": False}
    whole = [run | {"parts": [part] * each}] * 4
    found = process(events=whole, request__prompt__workload=workload)
    assert len(found["turns"]) == 4 * each
    said = f"{4 * each + 1} parts of runs: expected {4 * each}, as it was asked"
    with pytest.raises(UserError, match=said):
        process(
            events=[*whole, run | {"parts": [part]}],
            request__prompt__workload=workload,
        )


def test_a_long_text_of_a_turn_costs_its_process(process):
    part = {"prompt_tokens": 4, "generated_tokens": 9, "tokens_sha256": "a" * 2001}
    events = [{"event": "run", "run": 0, "warmup": False, "parts": [part]}]
    with pytest.raises(UserError, match="parts: tokens_sha256: longer than 2,000 characters"):
        process(events=events, request__prompt__workload={"repeat": 1})


@pytest.mark.parametrize("size", ["nan", "inf", "1e30", "x"])
def test_a_sample_that_is_no_number_costs_the_samples(process, tmp_path, size):
    (tmp_path / "memory.csv").write_text(
        f"{','.join(MEMORY.names)}\n" + ",".join(["1", "load", *[size] * (len(MEMORY.names) - 2)])
    )
    assert process()["sampled_load_mib"] is None


def test_answers_are_counted_once_each(process):
    found = process(*({"tokens_sha256": text} for text in ("cd", "ab", "cd", "")))
    assert (found["hashes"], found["outputs"]) == (["ab", "cd"], 2)


def test_joules_are_for_each_token_of_the_runs_that_counted_them(process):
    """Prefill: 60 joules for 30 tokens. Decode: 24 for 8 steps by the clock and 4 by the tokens."""
    both = {"prompt_tokens": 10, "generated_tokens": 5}
    found = process(
        both | {"prefill_j": 20, "decode_j": 10, "decode_s": 2, "decode_tok_s": 4},
        both | {"prefill_j": 10, "decode_j": 14},
        both | {"prefill_j": 30},
        both,
        {"prefill_j": 1000, "warmup": "true", "prompt_tokens": 1},
        request__protocol__recorded=4,
    )
    assert found["prefill_j_per_token"] == 2
    assert found["decode_j_per_token"] == 2
    for generated in (0, 1):
        alone = process({"decode_j": 10, "generated_tokens": generated, "prompt_tokens": 4})
        assert (alone["decode_j_per_token"], alone["prefill_j_per_token"]) == (None, None)
    single = process({"decode_j": 10, "generated_tokens": 2, "prompt_tokens": 4})
    assert single["decode_j_per_token"] == 10
    for clock in ({"decode_s": 2}, {"decode_tok_s": 4}):  # half of it says no steps
        found = process(both | {"decode_j": 10} | clock)
        assert found["decode_j_per_token"] == 2.5


def test_what_the_record_says_in_words(process):
    found = process(
        engine__method="replayed: real",
        request__gpu=1,
        request__env={"B": "2", "A": "1"},
        engine__loop="own",
        engine__kv_layers="full",
        energy={"source": "RAPL", "idle_w": 3.5},
        harness__dirty=True,
        flags=["load: busy"],
        detail="a\nb",
        engine__pool={"setting": "candle,cap:4x"},
    )
    assert (found["pool_rule"], process()["pool_rule"]) == ("candle,cap:4x", "")
    assert (found["method"], found["gpu"], found["env"]) == ("replayed: real", "1", "A=1; B=2")
    assert (found["loop"], found["kv_layers"]) == ("own", "full")
    assert (found["energy_source"], found["idle_w"]) == ("RAPL", 3.5)
    assert (found["harness"], found["dirty"]) == ("v1", "yes")
    assert (found["flags"], found["detail"]) == (["load: busy"], "a b")
    assert found["versions"] == "mlx 0.32.4, mlx-lm 0.32.2"
    assert (found["cap_bytes"], found["weights"]) == ("33554432", "random")


def test_a_figure_beyond_all_measure_is_none(process):
    found = process(memory__peak_pool_mib=10**30, memory__peak_active_mib=1e290)
    assert (found["peak_pool_mib"], found["peak_active_mib"]) == (None, None)
    assert process(memory__peak_pool_mib=10**24)["peak_pool_mib"] == 10**24


def test_of_texts_so_much_is_kept_as_can_be_for_all_cells(process):
    found = process(detail="x" * 2001, flags=["y" * 2001] * 101)
    assert found["detail"] == "x" * 1999 + "…"
    assert found["flags"] == ["y" * 1999 + "…"] * 100
    found = process(detail="x" * 2000, flags=["y"] * 100)
    assert (found["detail"], len(found["flags"])) == ("x" * 2000, 100)


def test_what_the_record_does_not_say(process):
    found = process(
        engine__method=None,
        engine__cap_bytes=None,
        harness__revision=None,
        outcome=None,
        machine__before__name=None,
    )
    assert (found["method"], found["cap_bytes"], found["gpu"]) == ("live", "", "")
    assert (found["harness"], found["dirty"]) == ("0.1.0", "no")
    assert (found["outcome"], found["machine"], found["turns"]) == ("unknown", "unknown", [])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"memory__peak_pool_mib": True}, "memory.peak_pool_mib: True: expected a number"),
        ({"memory__peak_pool_mib": "7"}, "memory.peak_pool_mib: 7: expected a number"),
        ({"memory": 3}, "memory.peak_footprint_mib: expected an object before"),
        ({"flags": ["a", 3]}, "flags: expected a list of texts"),
        ({"flags": "a"}, "flags: expected a list of texts"),
        ({"engine__versions": ["mlx"]}, "engine.versions: expected an object"),
        ({"engine__loop": {}}, "engine.loop: {}: expected text"),
        ({"engine__loop": ["x" * 99]}, f"engine.loop: ['{'x' * 78}: expected text"),
        ({"memory__peak_pool_mib": "7" * 99}, f"memory.peak_pool_mib: {'7' * 80}: expected a"),
        ({"events": [{"event": "run", "parts": [3]}]}, "events: a run's parts: "),
        (
            {"request__prompt__workload": {"batch": "x\n"}},
            "request.prompt.workload: batch x: expected one such as",
        ),
        (
            {"request__prompt__workload": {"batch": "x" * 99}},
            f"request.prompt.workload: batch {'x' * 74}: expected one such as",
        ),
    ],
)
def test_a_value_of_another_kind_is_named(process, tmp_path, change, said):
    with pytest.raises(UserError) as error:
        process(**change)
    assert str(error.value).startswith(f"{tmp_path}/cell.json: {said}")


@pytest.mark.parametrize(
    ("accelerator", "source"), [("cpu", "wait4 ru_maxrss"), ("cuda", "NVML"), ("metal", "wait4")]
)
def test_the_source_is_that_of_the_headline(process, accelerator, source):
    kept = "wait4 ru_maxrss" if accelerator != "metal" else "wait4"
    found = process(
        engine__device__accelerator=accelerator,
        memory__peak_footprint_source=kept,
        memory__peak_device_source="NVML",
    )
    assert found["peak_source"] == source


def test_the_least_work_is_that_of_the_shapes_and_of_what_was_asked(process):
    shapes = counted_shapes(CONFIG, "float32")
    whole = process()
    assert whole["kv_bytes_per_token"] == whole["kv_bytes_from_shapes"] == KV_BYTES
    assert whole["prefill_flops"] == prefill_flops(shapes, 513, 513)
    assert whole["decode_bytes"] == round(decode_bytes(shapes, 513, 128, KV_BYTES))
    chunked = process(request__options__prefill_chunk=64)
    assert chunked["prefill_flops"] == prefill_flops(shapes, 513, 64) < whole["prefill_flops"]
    for attention in ("fused", "sdpa"):  # in the alphabet before and after naive
        fused = process(engine__attention=attention)
        assert fused["prefill_flops"] == prefill_flops(shapes, 513, 513, fused=True)
    assert process(engine__attention=None)["prefill_flops"] == whole["prefill_flops"]


def test_what_the_engine_measured_goes_before_the_shapes(process):
    shapes = counted_shapes(CONFIG, "float32")
    found = process(engine__kv_bytes_per_token=100.0, engine__kv_state_bytes=7.0)
    assert (found["kv_bytes_per_token"], found["kv_bytes_from_shapes"]) == (100, KV_BYTES)
    assert (found["kv_state_bytes"], found["kv_window_bytes"]) == (7, None)
    assert found["decode_bytes"] == round(decode_bytes(shapes, 513, 128, 100))


@pytest.mark.parametrize(
    "change",
    [{"engine__method": "replayed: real"}, {"engine__method": "imagined"}],
)
def test_only_what_ran_live_has_the_work_of_its_phases(process, change):
    found = process(**change)
    assert (found["prefill_flops"], found["decode_bytes"]) == (None, None)
    assert found["kv_bytes_per_token"] == KV_BYTES


@pytest.mark.parametrize(
    ("asked", "name"),
    [
        ({"turns": [[9, 4], [9, 4]], "keep": "all"}, "turns 2"),
        ({"repeat": 200}, "repeat 200"),
        ({"batch": [9, 8, 7]}, "batch 3"),
        ({"shared_prefix": 512}, "shared_prefix 512"),
    ],
)
def test_a_workload_is_named_and_has_no_work_of_one_prompt(process, asked, name):
    found = process(request__prompt__workload=asked)
    assert (found["workload"], process()["workload"]) == (name, "")
    assert (found["prefill_flops"], found["decode_bytes"]) == (None, None)
    assert found["kv_bytes_per_token"] == KV_BYTES


def test_a_cache_that_does_not_keep_all_has_the_bytes_of_the_shapes_only(process):
    found = process(request__kv_cache="rotating-64")
    assert found["kv_bytes_from_shapes"] == KV_BYTES
    assert (found["kv_bytes_per_token"], found["prefill_flops"]) == (None, None)


def test_a_folder_without_both_files_was_not_measured(tmp_path):
    assert read_process(tmp_path) is None
    (tmp_path / "runs.csv").write_text(",".join(RUNS.names) + "\n")
    assert read_process(tmp_path) is None


def test_a_damaged_config_costs_the_row_its_work_only(process, tmp_path):
    (tmp_path / "other").mkdir()
    (tmp_path / "other/config.json").write_text("[1]")
    found = process({"decode_tok_s": 7}, request__model__folder=str(tmp_path / "other"))
    assert (found["decode_tok_s"], found["kv_bytes_from_shapes"]) == (7, None)


def test_the_largest_sample_is_told_before_in_and_after_the_runs(process, tmp_path):
    samples = [("load", 300), ("idle", 290), ("prefill-0", 200), ("idle", 210), ("decode-0", 220)]
    samples += [("prefill-1", 230), ("decode-1", 250)]
    samples += [("idle", 400), ("exit", 50)]
    lines = [f"{at},{phase},{size},{size}," for at, (phase, size) in enumerate(samples)]
    (tmp_path / "memory.csv").write_text("\n".join([",".join(MEMORY.names), *lines]) + "\n")
    found = process({"run": 0})
    named = [found[f"sampled_{phase}_mib"] for phase in ("load", "run", "end")]
    assert named == [300, 250, 400]
    (tmp_path / "memory.csv").write_text("\n".join([",".join(MEMORY.names), *lines[:2]]) + "\n")
    assert process({"run": 0})["sampled_run_mib"] is None


def test_an_engine_that_keeps_a_file_s_quantised_weights_has_no_least_bytes(process):
    file = {"request__model__file": "some/model.Q4_1.gguf"}
    assert process({"run": 0}, **file)["decode_bytes"]
    found = process({"run": 0}, request__engine="mistralrs", **file)
    assert found["decode_bytes"] is None
    assert found["prefill_flops"]
