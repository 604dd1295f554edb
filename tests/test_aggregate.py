"""kvpeak aggregate as it is called, on cells written here."""

import csv
import json
from pathlib import Path

import pytest

from kvpeak.base.axes import AXES
from kvpeak.base.columns import RUNS, SUMMARY
from kvpeak.base.program import main
from kvpeak.commands import aggregate

ROOT = Path(__file__).parents[1]
RECORD = json.loads((ROOT / "tests/data/cell.json").read_text())
NAMES = ("mlx-0.32.4", "tiny", "alice-512", "cat", "none", "default")
CONFIG = {
    "model_type": "qwen2",
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 96,
    "max_position_embeddings": 64,
}


@pytest.fixture
def cells(tmp_path, monkeypatch):
    """Write a cell: `cells(round, speeds of its runs, the first being the warm-up's, changes of its record)`."""
    monkeypatch.chdir(tmp_path)
    Path("models/tiny").mkdir(parents=True)
    Path("models/tiny/config.json").write_text(json.dumps(CONFIG))
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
        (folder / "cell.json").write_text(json.dumps(RECORD | record))
        return folder

    return write


def read(name: str) -> list[dict]:
    with Path("results", f"{name}.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def test_a_cell_is_the_mean_of_its_processes_and_their_largest_peak(cells):
    memory = RECORD["memory"]
    peaks = ("peak_footprint_mib", "peak_device_mib")
    cells(1, [999, 10, 20], memory=memory | dict(zip(peaks, (100.5, 7), strict=True)))
    cells(2, [999, 45], memory=memory | dict(zip(peaks, (99.25, 9), strict=True)))
    assert main(aggregate, []) == 0
    (row,) = read("summary")
    assert tuple(row) == SUMMARY.names
    assert (row["rounds"], row["runs"], row["decode_tok_s"]) == ("2", "3", "30")
    assert (row["peak_footprint_mib"], row["peak_footprint_min_mib"]) == ("100.5", "99.25")
    assert (row["peak_device_mib"], row["peak_device_min_mib"]) == ("9", "7")
    assert (row["outcome"], row["dirty"], row["prefill_tok_s"]) == ("ok", "no", "")
    assert [run["warmup"] for run in read("runs")] == ["true", "false", "false", "true", "false"]


def test_the_shapes_say_the_least_work(cells):
    cells(1, [1, 1])
    main(aggregate, [])
    (row,) = read("summary")
    assert row["kv_bytes_per_token"] == str(2 * 2 * 2 * 8 * 4)
    assert int(row["prefill_flops"]) > 0 and int(row["decode_bytes"]) > 0


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


def test_other_tokens_in_one_run_show(cells):
    folder = cells(1, [1, 1, 1])
    text = (folder / "runs.csv").read_text()
    at = text.rindex("abab")
    (folder / "runs.csv").write_text(text[:at] + "cd" + text[at + 2 :])
    main(aggregate, [])
    assert read("summary")[0]["tokens_sha256"] == "differs"


def test_what_was_not_measured_or_does_not_run_here_is_left_out(cells, capsys):
    (cells(1, [1, 1]) / "cell.json").unlink()
    cells(1, [1, 1], names=(*NAMES[:3], "prealloc", *NAMES[4:]), here="no")
    main(aggregate, [])
    assert read("summary") == read("runs") == []
    assert capsys.readouterr().err == "0 processes measured, 1 missing\n"


def test_a_damaged_result_is_one_line_and_the_old_tables_stay(cells, capsys):
    folder = cells(1, [1, 1])
    main(aggregate, [])
    before = read("summary")
    (folder / "cell.json").write_text("garbage")
    assert main(aggregate, []) == 1
    assert capsys.readouterr().err.splitlines()[1:] == [
        f"aggregate: {folder}: Expecting value: line 1 column 1 (char 0); delete the folder to measure the cell again"
    ]
    assert read("summary") == before
