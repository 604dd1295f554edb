"""What a stranger's file may be, and that reading it ends in one line."""

import csv
import io
import json
import os

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kvpeak.base import untrusted
from kvpeak.base.errors import UserError
from kvpeak.base.text import seen
from kvpeak.base.untrusted import csv_rows, read_csv, read_json, read_object, read_text


def refused(call, *arguments) -> str:
    with pytest.raises(UserError) as raised:
        call(*arguments)
    return str(raised.value)


def test_a_pipe_is_refused_and_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    assert "expected a regular file" in refused(read_text, tmp_path / "pipe")


def test_a_device_and_a_folder_are_refused(tmp_path):
    link = tmp_path / "zero"
    link.symlink_to("/dev/zero")
    assert "expected a regular file" in refused(read_text, link)
    assert "regular file" in refused(read_text, tmp_path) or "directory" in refused(
        read_text, tmp_path
    )


def test_a_sparse_file_is_not_read_beyond_the_limit(tmp_path):
    with (tmp_path / "big").open("wb") as file:
        file.truncate(2**40)
    assert "larger than 1 MiB" in refused(read_text, tmp_path / "big", 2**20)


def test_a_byte_order_mark_is_no_part_of_the_text(tmp_path):
    (tmp_path / "marked").write_bytes(b"\xef\xbb\xbfa,b\n1,2\n")
    assert read_csv(tmp_path / "marked", ("a",)) == [{"a": "1", "b": "2"}]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[" * 100_000, "nested too deeply"),
        ("{", "expected JSON"),
        ("[NaN]", "NaN is no number"),
        ("[1e999]", "no figure is as large"),
        ("[-1E+0400]", "no figure is as large"),
        (f"[{10**400}]", "no figure is as large"),
        (f"[{'9' * 299}e99]", "no figure is as large"),
        (f"[{'9' * 250}e+077]", "no figure is as large"),
        ('{"a": 1, "a": 2}', "a key is there twice"),
        ('{"a\\u202e": 1}', "has characters that cannot be seen"),
        ("[1]", "expected a JSON object"),
    ],
)
def test_what_is_no_json_object_is_one_line(tmp_path, text, said):
    (tmp_path / "record.json").write_text(text)
    line = refused(read_object, tmp_path / "record.json")
    assert said in line
    assert str(tmp_path / "record.json") in line
    assert "\n" not in line


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("run;warmup\n0;1,5\n", "separated by semicolons"),
        ("run\n0\n", "column warmup is not there; found run"),
        ("", "column run is not there; found nothing"),
        ("run,warmup\n0\n", "line 2: expected 2 fields"),
        ("run,warmup\n0,1,2\n", "line 2: expected 2 fields"),
        (f"run,warmup\n0,{'x' * 2**21}\n", "field larger than field limit"),
    ],
)
def test_what_is_no_table_is_one_line(tmp_path, text, said):
    (tmp_path / "runs.csv").write_text(text)
    line = refused(read_csv, tmp_path / "runs.csv", ("run", "warmup"))
    assert said in line
    assert len(line) < 500


def test_a_large_table_with_a_wide_sign_is_refused(tmp_path, monkeypatch):
    """One makes eight bytes of every character."""
    monkeypatch.setattr(untrusted, "MOST_WIDE", 100)
    for sign, fits in (("x", True), ("😀", False)):
        (tmp_path / "t.csv").write_text("a\n" + "x\n" * 50 + sign + "\n", encoding="utf-8")
        if fits:
            assert len(read_csv(tmp_path / "t.csv")) == 51
        else:
            assert "t.csv: more than " in refused(read_csv, tmp_path / "t.csv")


@given(st.binary(max_size=300))
def test_any_bytes_are_a_value_or_one_line(tmp_path_factory, content):
    file = tmp_path_factory.getbasetemp() / "any"
    file.write_bytes(content)
    for read in (read_json, read_csv):
        try:
            read(file)
        except UserError as error:
            assert str(file) in str(error)


@given(
    st.lists(
        st.lists(
            st.text(st.characters(exclude_characters="\r\0"), max_size=8), min_size=2, max_size=2
        ),
        max_size=5,
    )
)
@example([["", "\ud800"]])
def test_a_table_that_was_written_is_read(rows):
    out = io.StringIO(newline="")
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["a", "b"])
    writer.writerows(rows)
    found = [[row["a"], row["b"]] for row in csv_rows(out.getvalue(), "table", ("a", "b"))]
    assert found == seen(rows)


def test_a_table_of_too_many_rows_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(untrusted, "MOST_ROWS", 3)
    (tmp_path / "plan.csv").write_text("a,b\n" + "1,2\n" * 3)
    assert len(read_csv(tmp_path / "plan.csv")) == 3
    (tmp_path / "plan.csv").write_text("a,b\n" + "1,2\n" * 4)
    assert "plan.csv: more than 3 rows" in refused(read_csv, tmp_path / "plan.csv")


def test_large_numbers_of_configs_are_read_as_they_are(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(f'{{"a": {10**30}, "b": -3.4e38, "c": "1e999", "d": 1e-400, "e": [1E+100, 7]}}')
    assert read_object(path) == {"a": 10**30, "b": -3.4e38, "c": "1e999", "d": 0.0, "e": [1e100, 7]}


def test_a_value_is_what_json_says(tmp_path):
    (tmp_path / "value.json").write_text(json.dumps({"a": [1, None, "ü"]}))
    assert read_object(tmp_path / "value.json") == {"a": [1, None, "ü"]}
