"""The table that another program writes: one of its own, regular, small enough, and of now."""

import os
import time

import pytest
from test_external import request, table

from kvpeak.base.errors import UserError
from kvpeak.runner.table_output import read_runs


def refused(tmp_path, **output) -> str:
    with pytest.raises(UserError) as error:
        read_runs(request(tmp_path, **output), tmp_path / "out", since=time.time())
    assert "\n" not in str(error.value) and str(error.value).isprintable()
    return str(error.value)


@pytest.fixture
def out(tmp_path):
    (tmp_path / "out").mkdir()
    return tmp_path / "out"


def test_a_table_outside_the_cells_own_folder_is_not_read(tmp_path, out):
    table(tmp_path, *["9,4,90,250,0.5,0"] * 2)
    assert "is not in the cell's own folder" in refused(tmp_path, file="{out}/../t.csv")
    assert "is not in the cell's own folder" in refused(tmp_path, file=str(tmp_path / "t.csv"))
    (out / "inner").symlink_to(tmp_path)
    assert "is not in the cell's own folder" in refused(tmp_path, file="{out}/inner/t.csv")


def test_a_link_a_pipe_and_a_device_are_not_read(tmp_path, out):
    (out / "t.csv").symlink_to("/etc/passwd")
    assert "it is a link" in refused(tmp_path)
    (out / "t.csv").unlink()
    os.mkfifo(out / "t.csv")
    assert "is not a regular file" in refused(tmp_path)


def test_a_table_of_an_earlier_process_is_not_read(tmp_path, out):
    table(out, *["9,4,90,250,0.5,0"] * 2)
    os.utime(out / "t.csv", (1e9, 1e9))
    assert "is older than the start of the program" in refused(tmp_path)


def test_a_file_of_gibibytes_costs_no_memory(tmp_path, out):
    with (out / "t.csv").open("wb") as file:
        file.truncate(1 << 40)
    assert "more than 67108864 bytes" in refused(tmp_path)


@pytest.mark.parametrize(
    ("text", "form"),
    [
        ("[" * 100_000, "json"),
        ('{"a": ' + "9" * 100_000 + "}", "json"),
        ('"' + "x" * 2_000_000 + '"', "csv"),
        ("\x00\x1b[2J", "json"),
    ],
    ids=["deep", "a long number", "a long field", "control characters"],
)
def test_a_damaged_table_is_one_line(tmp_path, out, text, form):
    (out / "t.csv").write_text(text)
    assert f"expected {form.upper()}: " in refused(tmp_path, format=form)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("p,g,rate\n64,9,12,5\n", "line 2: more fields than columns"),
        ("p,g,rate,rate\n64,9,12,13\n", "column rate is there twice"),
    ],
    ids=["a decimal comma", "two columns of one name"],
)
def test_a_field_that_may_be_another_columns_is_no_figure(tmp_path, out, text, said):
    (out / "t.csv").write_text(text)
    assert said in refused(tmp_path)
