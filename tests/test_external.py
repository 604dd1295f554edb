"""External engines: arguments without a shell, tables in other people's columns, and one line an
error.
"""

import json

import pytest

from kvpeak.base.errors import UserError
from kvpeak.protocol.command import command_of
from kvpeak.runner.table_output import read_runs

CELL = {
    "commit": "c",
    "model": "m",
    "prompt": "p",
    "kv_cache": "cat",
    "cap": "none",
    "variant": "v",
    "round": 1,
}
COLUMNS = {
    "prompt_tokens": "prompt",
    "generated_tokens": "generated",
    "prefill_tok_s": "prefill rate",
    "ttft_s": {"name": "ttft", "unit": "ms"},
    "decode_s": "decode",
    "peak_pool_mib": {"name": "pool", "unit": "bytes"},
}
HEADER = "prompt,generated,prefill rate,ttft,decode,pool"


def request(tmp_path, run=("bin/x", "--kv-cache", "{kv_cache}"), **output):
    return {
        "cell": CELL,
        "model": {"folder": "models/m"},
        "prompt": {"path": "prompts/m/p.json", "tokens": 9},
        "protocol": {"warmup": 1, "recorded": 2, "generate": 4, "seed": 0},
        "external": {
            "program": "results/engines/c/source/bin/x",
            "folder": "results/engines/c/source",
            "run": list(run),
            "output": {"file": "{out}/t.csv", "format": "csv", "columns": COLUMNS} | output,
        },
    }


def table(tmp_path, *rows):
    (tmp_path / "t.csv").write_text("\n".join((HEADER, *rows)) + "\n")
    return tmp_path


def test_a_value_is_one_argument_whatever_it_holds(tmp_path):
    asked = request(tmp_path, run=("bin/x", "--a={kv_cache};{{x}}", "{out}"))
    asked["cell"] = CELL | {"kv_cache": "$(id) {out}"}
    program, first, out = command_of(asked, tmp_path)
    assert program.endswith("/results/engines/c/source/bin/x")
    assert first == "--a=$(id) {out};{x}"
    assert out == str(tmp_path)


def test_rows_become_runs_in_this_projects_units(tmp_path):
    folder = table(tmp_path, *["9,4,90,250,0.5,2097152"] * 3)
    runs = read_runs(request(tmp_path), folder)
    assert [run["warmup"] for run in runs] == [True, False, False]
    assert runs[0] == {
        "event": "run",
        "run": 0,
        "warmup": True,
        "prompt_tokens": 9,
        "generated_tokens": 4,
        "prefill_s": 0.1,
        "ttft_s": 0.25,
        "decode_s": 0.5,
        "tokens_sha256": None,
        "peak_active_mib": None,
        "peak_pool_mib": 2.0,
    }


def test_a_table_of_recorded_runs_only_is_taken_as_it_is(tmp_path):
    folder = table(tmp_path, *["9,4,90,250,0.5,0"] * 2)
    assert [run["warmup"] for run in read_runs(request(tmp_path), folder)] == [
        False,
        False,
    ]


def test_json_lines_and_a_json_list_are_the_same(tmp_path):
    row = {"prompt": 9, "generated": 4, "prefill rate": 90, "ttft": 250, "decode": 0.5, "pool": 0}
    asked = request(tmp_path, file="{out}/t.json", format="json")
    (tmp_path / "t.json").write_text(json.dumps([row, row]))
    listed = read_runs(asked, tmp_path)
    (tmp_path / "t.json").write_text(f"{json.dumps(row)}\n{json.dumps(row)}\n")
    assert read_runs(asked, tmp_path) == listed


@pytest.mark.parametrize(
    ("rows", "line"),
    [
        (["9,4,x,250,0.5,0"] * 2, '"x": expected a number ≥ 0'),
        (["9,4,nan,250,0.5,0"] * 2, '"nan": expected a number ≥ 0'),
        (["9,4,-1,250,0.5,0"] * 2, '"-1": expected a number ≥ 0'),
        (["9,4,1e300,250,0.5,0"] * 2, '"1e300": expected a number ≥ 0'),
        (["9,4,90,250,0.5,0"], "1 recorded runs; expected 2"),
        ([], "0 recorded runs; expected 2"),
    ],
)
def test_a_figure_that_does_not_parse_is_one_line(tmp_path, rows, line):
    with pytest.raises(UserError) as error:
        read_runs(request(tmp_path), table(tmp_path, *rows))
    assert line in str(error.value)
    assert str(tmp_path / "t.csv") in str(error.value)
    assert "\n" not in str(error.value)


def test_a_missing_column_lists_the_columns_that_are_there(tmp_path):
    asked = request(tmp_path, columns=COLUMNS | {"decode_s": "decode_time"})
    with pytest.raises(UserError) as error:
        read_runs(asked, table(tmp_path, "9,4,90,250,0.5,0"))
    assert (
        "column decode_time (output.columns.decode_s) is not there; found prompt, generated"
        in str(error.value)
    )


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(UserError, match=r"t.csv: the engine wrote no such file"):
        read_runs(request(tmp_path), tmp_path)


def test_a_byte_order_mark_belongs_to_no_column(tmp_path):
    text = "\ufeff" + "\n".join((HEADER, *["9,4,90,250,0.5,0"] * 2))
    (tmp_path / "t.csv").write_text(text, encoding="utf-8")
    assert len(read_runs(request(tmp_path), tmp_path)) == 2
