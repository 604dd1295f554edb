"""kvpeak aggregate as it is called, on cells written here."""

import csv
import json
from pathlib import Path

import pytest
from cells import CONFIG, measured_with

from kvpeak.base.axes import AXES
from kvpeak.base.columns import PROCESSES, RUNS, SUMMARY
from kvpeak.base.program import main
from kvpeak.commands import aggregate

ROOT = Path(__file__).parents[1]
RECORD = json.loads((ROOT / "tests/data/cell.json").read_text())
NAMES = ("mlx-0.32.4", "tiny", "alice-512", "cat", "none", "default")


@pytest.fixture
def cells(tmp_path, monkeypatch):
    """Write a cell: `cells(round, speeds of its runs, the first being the warm-up's, changes of
    its record)`.
    """
    monkeypatch.chdir(tmp_path)
    inputs = measured_with(Path("models/tiny"), CONFIG)
    Path("results").mkdir()
    Path("results/plan.csv").write_text(",".join((*AXES, "round", "runs_here", "path")) + "\n")

    def write(number: int, speeds=(), names=NAMES, here="yes", **record) -> Path:
        folder = Path("results/cells", *names, f"r{number}")
        folder.mkdir(parents=True)
        with Path("results/plan.csv").open("a") as plan:
            plan.write(",".join((*names, str(number), here, str(folder))) + "\n")
        rows = [
            dict(zip(AXES, names, strict=True))
            | {"round": number, "run": run, "warmup": "false" if run else "true"}
            | {"prompt_tokens": 513, "generated_tokens": 128, "decode_tok_s": speed}
            | {"tokens_sha256": "ab" * 32}
            for run, speed in enumerate(speeds)
        ]
        with (folder / "runs.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, RUNS.names, lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
        cell = dict(zip(AXES, names, strict=True)) | {"round": number}
        told = {"cell": cell, "inputs": inputs}
        (folder / "cell.json").write_text(json.dumps(RECORD | told | record))
        return folder

    return write


def read(name: str) -> list[dict]:
    with Path("results", f"{name}.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def test_a_cell_is_the_mean_speed_and_the_median_peak_of_its_processes(cells):
    memory = RECORD["memory"]
    peaks = ("peak_footprint_mib", "peak_device_mib")
    cells(1, [999, 10, 20], memory=memory | dict(zip(peaks, (100.5, 7), strict=True)))
    cells(2, [999, 45], memory=memory | dict(zip(peaks, (99.25, 9), strict=True)))
    assert main(aggregate, []) == 0
    (row,) = read("summary")
    assert tuple(row) == SUMMARY.names
    assert (row["rounds"], row["runs"], row["decode_tok_s"]) == ("2", "3", "30")
    footprint, device = (
        [row[f"peak_{name}_{end}mib"] for end in ("min_", "", "max_")]
        for name in ("footprint", "device")
    )
    assert footprint == ["99.25", "99.875", "100.5"]
    assert device == ["7", "8", "9"]
    assert [each["peak_footprint_mib"] for each in read("processes")] == ["100.5", "99.25"]
    assert tuple(read("processes")[0]) == PROCESSES.names
    assert (row["outcome"], row["dirty"], row["prefill_tok_s"]) == ("ok", "no", "")
    assert (row["tokens_sha256"], row["outputs"]) == ("ab" * 32, "1")
    assert [run["warmup"] for run in read("runs")] == ["true", "false", "false", "true", "false"]


def test_the_shapes_say_the_least_work(cells):
    cells(1, [1, 1])
    main(aggregate, [])
    (row,) = read("summary")
    assert row["kv_bytes_per_token"] == str(2 * 2 * 2 * 8 * 4)
    assert int(row["prefill_flops"]) > 0 and int(row["decode_bytes"]) > 0


def test_what_the_engine_measured_goes_before_the_shapes(cells):
    """A quantised cache's bytes, in the tables and in the least that a decode step moves."""
    held = {"kv_bytes_per_token": 72, "kv_window_bytes": 0, "kv_state_bytes": 0}
    quantised = RECORD["request"] | {"kv_cache": "quantized-8"}
    layers = {"kv_layers": "layers 0-1: QuantizedKVCache"}
    cells(1, [1, 1])
    names = (*NAMES[:3], "quantized-8", *NAMES[4:])
    cells(1, [1, 1], names, request=quantised, engine=RECORD["engine"] | held | layers)
    main(aggregate, [])
    plain, row = read("summary")
    assert (row["kv_bytes_per_token"], row["kv_bytes_from_shapes"]) == ("72", "256")
    assert row["kv_difference"] == "8 bits, a scale and a bias for each 64 values"
    assert row["kv_layers"] == "layers 0-1: QuantizedKVCache"
    fewer = int(plain["decode_bytes"]) - int(row["decode_bytes"])
    context = RECORD["request"]["prompt"]["tokens"] + RECORD["request"]["protocol"]["generate"] / 2
    assert fewer == (256 - 72) * (context + 1)
    assert row["prefill_flops"] == plain["prefill_flops"]


@pytest.mark.parametrize(
    "change",
    [
        {"engine": RECORD["engine"] | {"method": "replayed: counted"}},
        {"request": RECORD["request"] | {"kv_cache": "rotating-64"}},
        {"request": RECORD["request"] | {"model": RECORD["request"]["model"] | {"folder": "gone"}}},
    ],
)
def test_what_the_shapes_do_not_say_is_empty(cells, change):
    cells(1, [1, 1], **change)
    main(aggregate, [])
    (row,) = read("summary")
    assert row["prefill_flops"] == row["decode_bytes"] == ""


def test_an_outcome_of_one_process_is_that_of_the_cell(cells):
    cells(1, [1, 1], flags=["load: busy"])
    cells(2, outcome="guard", detail="stopped", flags=["load: busy", "swap: grew"])
    main(aggregate, [])
    (row,) = read("summary")
    assert (row["outcome"], row["detail"]) == ("guard", "stopped")
    assert row["flags"] == "load: busy; swap: grew"


def test_what_computed_is_said_of_every_process(cells):
    cells(1, [1, 1], engine=RECORD["engine"] | {"blas": "OpenBLAS, 2 threads"})
    cells(2, [1, 1], engine=RECORD["engine"] | {"blas": "OpenBLAS, 1 threads"})
    cells(1, names=(*NAMES[:3], "prealloc", *NAMES[4:]), engine={"blas": None})
    main(aggregate, [])
    cat, prealloc = read("summary")
    assert cat["versions"] == "mlx 0.32.4, mlx-lm 0.32.2"
    assert cat["blas"] == "OpenBLAS, 2 threads; OpenBLAS, 1 threads"
    assert prealloc["versions"] == prealloc["blas"] == ""


def test_each_turn_is_a_row_with_its_cell_and_its_round(cells):
    part = {"prompt_tokens": 8, "generated_tokens": 5, "prefill_s": 2, "ttft_s": 3, "decode_s": 4}
    parts = [part | {"turn": 1}, part | {"turn": 2, "prefill_s": 4}]
    event = {"event": "run", "run": 1, "warmup": False, "parts": parts}
    asked = RECORD["request"] | {
        "prompt": RECORD["request"]["prompt"] | {"workload": {"repeat": 2}}
    }
    cells(1, [1, 1], events=[event], request=asked)
    cells(2, [1, 1], events=[event | {"parts": parts[:1]}], request=asked)
    main(aggregate, [])
    rows = read("turns")
    assert [[row[axis] for axis in AXES] for row in rows] == [list(NAMES)] * 3
    assert [(row["round"], row["run"], row["turn"], row["warmup"]) for row in rows] == [
        ("1", "1", "1", "false"),
        ("1", "1", "2", "false"),
        ("2", "1", "1", "false"),
    ]
    assert [row["prefill_tok_s"] for row in rows] == ["4", "2", "4"]
    assert (rows[0]["ttft_ms"], rows[0]["decode_tok_s"]) == ("3000", "1")


@pytest.mark.parametrize("outcome", ["guard", "oom", "timeout"])
def test_the_first_outcome_that_is_not_ok_is_the_cell_s(cells, outcome):
    cells(1, [1, 1])
    cells(2, outcome=outcome)
    cells(3, outcome="unsupported")
    main(aggregate, [])
    assert read("summary")[0]["outcome"] == outcome
    assert [row["outcome"] for row in read("processes")] == ["ok", outcome, "unsupported"]


def test_a_process_that_cannot_be_read_has_no_figures(cells):
    (cells(1, [1, 1]) / "cell.json").write_text("[1]")
    main(aggregate, [])
    (process,), (cell,) = read("processes"), read("summary")
    assert (process["runs"], process["outputs"], cell["runs"]) == ("0", "0", "0")
    assert (process["decode_tok_s"], process["tokens_sha256"], cell["rounds"]) == ("", "", "1")


def test_two_answers_in_two_processes_are_two(cells):
    first, second = cells(1, [1, 1]), cells(2, [1, 1])
    text = (second / "runs.csv").read_text()
    (second / "runs.csv").write_text(text.replace("ab" * 32, "cd" * 32))
    main(aggregate, [])
    assert first != second
    assert [row["tokens_sha256"] for row in read("processes")] == ["ab" * 32, "cd" * 32]
    assert (read("summary")[0]["tokens_sha256"], read("summary")[0]["outputs"]) == ("differs", "2")


@pytest.mark.parametrize("others", [["cd"], ["cd", "ef"]])
def test_other_tokens_in_a_run_show(cells, others):
    folder = cells(1, [1, 1, 1, 1])
    text = (folder / "runs.csv").read_text()
    for other in others:
        before, _, after = text.rpartition("ab" * 32)
        text = before + other * 32 + after
    (folder / "runs.csv").write_text(text)
    main(aggregate, [])
    (cell,), (process,) = read("summary"), read("processes")
    assert cell["tokens_sha256"] == process["tokens_sha256"] == "differs"
    assert cell["outputs"] == process["outputs"] == str(1 + len(others))


def test_what_was_not_measured_or_does_not_run_here_is_left_out(cells, capsys):
    (cells(1, [1, 1]) / "cell.json").unlink()
    cells(1, [1, 1], names=(*NAMES[:3], "prealloc", *NAMES[4:]), here="no")
    main(aggregate, [])
    assert read("summary") == read("runs") == []
    assert capsys.readouterr().err == "0 processes measured, 1 missing\n"


DAMAGED = {
    "no JSON": "garbage",
    "no object": "[1]",
    "a list for a text": json.dumps(RECORD | {"engine": RECORD["engine"] | {"method": ["live"]}}),
    "text for a number": json.dumps(RECORD | {"memory": {"peak_footprint_mib": "much"}}),
    "nested too deeply": "[" * 100_000,
}


@pytest.mark.parametrize("text", DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_record_is_named_and_costs_the_others_nothing(cells, capsys, text):
    damaged = cells(1, [1, 1])
    cells(1, [1, 7], names=(*NAMES[:3], "prealloc", *NAMES[4:]))
    (damaged / "cell.json").write_text(text)
    assert main(aggregate, []) == 0
    line, *_ = capsys.readouterr().err.splitlines()
    assert line.startswith(f"{damaged}/cell.json: ")
    assert line.endswith(f"; delete {damaged} to measure the cell again")
    bad, good = read("summary")
    assert (bad["outcome"], bad["peak_footprint_mib"]) == ("unreadable", "")
    assert bad["detail"].startswith(f"{damaged}/cell.json: ")
    assert (good["outcome"], good["decode_tok_s"]) == ("ok", "7")


def test_a_table_without_a_column_is_named(cells, capsys):
    folder = cells(1, [1, 1])
    (folder / "runs.csv").write_text("warmup;decode_tok_s\nfalse;1,5\n")
    assert main(aggregate, []) == 0
    assert "separated by semicolons" in capsys.readouterr().err
    assert read("summary")[0]["outcome"] == "unreadable"


# Configs as their models have them: no num_attention_heads, no heads at all, a null.
OTHER_CONFIGS = {
    "gpt2": {"model_type": "gpt2", "n_ctx": 2048, "n_embd": 256, "n_head": 4, "n_layer": 4},
    "mamba2": {"model_type": "mamba2", "hidden_size": 256, "num_heads": 8, "head_dim": 64},
    "null": CONFIG | {"num_key_value_heads": None, "head_dim": None},
    "text": CONFIG | {"hidden_size": "32"},
    "zero": CONFIG | {"num_attention_heads": 0},
    "no object": [],
}


def test_a_config_that_says_too_little_of_the_work_says_what_it_can_of_the_cache(cells):
    inputs = measured_with(Path("models/tiny"), CONFIG | {"intermediate_size": None})
    cells(
        1,
        [1, 1],
        inputs=inputs,
        engine=RECORD["engine"] | {"kv_bytes_per_token": 128, "kv_layers": "layer 1: KVCache"},
    )
    main(aggregate, [])
    (row,) = read("summary")
    assert row["decode_bytes"] == ""
    assert (row["kv_bytes_from_shapes"], row["kv_bytes_per_token"]) == ("256", "128")
    assert row["kv_difference"] == "1 of 2 layers keeps every token"


@pytest.mark.parametrize("config", OTHER_CONFIGS.values(), ids=OTHER_CONFIGS)
def test_a_config_of_another_kind_costs_no_table(cells, config):
    folder = Path("models/other")
    inputs = measured_with(folder, config)
    request = RECORD["request"]
    other = request | {"model": request["model"] | {"folder": str(folder)}}
    cells(1, [1, 5], names=(NAMES[0], "other", *NAMES[2:]), request=other, inputs=inputs)
    cells(1, [1, 6])
    assert main(aggregate, []) == 0
    rows = read("summary")
    assert [row["decode_tok_s"] for row in rows] == ["5", "6"]
    assert [bool(row["prefill_flops"]) for row in rows][1]


def test_text_that_a_spreadsheet_would_calculate_is_marked(cells):
    cells(1, outcome="guard", detail="=1+1")
    main(aggregate, [])
    assert read("summary")[0]["detail"] == "'=1+1"


def test_a_text_that_no_file_can_hold_is_spelled(cells):
    cells(1, [1, 1], flags=["load: \ud800 \x1b[31m"])
    assert main(aggregate, []) == 0
    assert read("summary")[0]["flags"] == r"load: \\ud800 \\x1b[31m"
