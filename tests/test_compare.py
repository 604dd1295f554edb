"""kvpeak compare as it is called, on the small result set and a changed copy of it."""

import csv
import shutil
from pathlib import Path

import pytest

from kvpeak.base.columns import COMPARISON
from kvpeak.cli import start

SMALL = Path(__file__).parent / "data/small"


@pytest.fixture
def folders(tmp_path, monkeypatch):
    """A: the small result set; B: the same on another machine, where cat without a cap takes
    half.
    """
    monkeypatch.chdir(tmp_path)
    for name in ("A", "B"):
        shutil.copytree(SMALL, tmp_path / name)
    table = tmp_path / "B/summary.csv"
    text = (
        table.read_text()
        .replace("Test CPU", "Other CPU")
        .replace("1000.0,998,1001", "500.0,499,501")
    )
    table.write_text(text.replace("abab", "cdab", 1))
    return tmp_path


def run(*arguments):
    return start(["compare", *arguments])


def test_the_largest_change_leads_and_what_else_differs_is_said(folders, capsys):
    assert run("A", "B") == 0
    text = capsys.readouterr().out
    title, _, sentence = text.splitlines()[:3]
    assert title == (
        "# In a laboratory setting: from A to B the peak of tiny with cat and no cap at 513 tokens "
        "falls from 1,000 to 500 MiB"
    )
    assert (
        "peaks at 500 MiB (499 to 501) instead of 1,000 MiB (998 to 1,001) "
        "(2.00× less; medians of 4 processes a side)" in sentence
    )
    assert "The two sides of 8 of 8 pairs come from different machines." in text
    assert "1 cells generated other tokens." in text
    assert "Without the flagged row the same change is named first." in text


def test_other_threads_and_lengths_are_said(folders, capsys):
    table = folders / "B/summary.csv"
    text = table.read_text().replace("2 threads", "1 threads", 2).replace(",2049,128,", ",2048,64,")
    table.write_text(text)
    run("A", "B")
    text = capsys.readouterr().out
    sides = "The two sides of {} of 8 pairs"
    assert f"{sides.format(2)} computed with a different BLAS, or with a different number" in text
    assert f"{sides.format(3)} have prompts of different lengths." in text
    assert f"{sides.format(3)} generated different numbers of tokens." in text


def test_a_folder_of_before_there_was_a_column_is_read(folders, capsys):
    later = ("peak_device_min_mib", "versions", "blas")
    with Path("A/summary.csv").open(newline="") as file:
        rows = [
            {name: value for name, value in row.items() if name not in later}
            for row in csv.DictReader(file)
        ]
    with Path("A/summary.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    assert run("A", "B") == 0
    assert "BLAS" not in capsys.readouterr().out


def test_a_folder_compared_with_itself_shows_nothing(folders, capsys):
    run("A", "A")
    text = capsys.readouterr().out
    assert text.startswith("# From A to A no peak changes above the noise\n")
    assert "different" not in text and "other tokens" not in text


def test_csv_has_every_cell_and_the_described_columns(folders):
    assert run("A", "B", "--out", "out/c.csv") == 0
    with Path("out/c.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert tuple(rows[0]) == COMPARISON.names
    assert len(rows) == 8
    assert (rows[0]["peak_mib_before"], rows[0]["peak_mib_after"]) == ("1000", "500")
    assert (rows[0]["peak_ratio"], rows[0]["decode_tok_s_verdict"]) == ("0.5", "same within 5 %")
    assert rows[4]["outcome_before"] == "oom"


def test_a_cell_of_one_folder_only_is_counted(folders, capsys):
    table = folders / "B/summary.csv"
    table.write_text("".join(table.read_text().splitlines(keepends=True)[:-1]))
    run("A", "B")
    assert "1 cells are in one of the folders only." in capsys.readouterr().out


def test_a_folder_without_results_is_one_line(folders, capsys):
    assert run("A", "nowhere") == 1
    assert capsys.readouterr().err.startswith("kvpeak compare: nowhere/plan.csv: No such file")


def resaved(path: Path, separator: str = ";", decimal: str = ",") -> None:
    """As a spreadsheet saves a table under another locale."""
    with path.open(newline="") as file:
        rows = list(csv.reader(file))
    with path.open("w", newline="") as file:
        writer = csv.writer(file, delimiter=separator)
        writer.writerows([[text.replace(".", decimal) for text in row] for row in rows])


def test_a_table_with_semicolons_is_refused_by_name(folders, capsys):
    resaved(folders / "B/summary.csv")
    assert run("A", "B") == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("kvpeak compare: B/summary.csv: its fields are separated by semicolons")


def test_decimal_commas_are_refused_by_name(folders, capsys):
    resaved(folders / "B/summary.csv", separator=",")
    text = (folders / "B/summary.csv").read_text()
    (folders / "B/summary.csv").write_text(text.replace("mlx-0,32,4", "mlx-0.32.4"))
    assert run("A", "B") == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "B/summary.csv: line 2: " in line
    assert "expected a number with a decimal point" in line


def test_a_table_of_something_else_is_refused_by_name(folders, capsys):
    (folders / "B/summary.csv").write_text("name,value\na,1\n")
    assert run("A", "B") == 1
    assert "B/summary.csv: column commit is not there" in capsys.readouterr().err


def test_a_pipe_or_a_folder_for_a_table_is_refused(folders, capsys):
    (folders / "B/runs.csv").unlink()
    (folders / "B/runs.csv").mkdir()
    assert run("A", "B") == 1
    assert "B/runs.csv: expected a regular file" in capsys.readouterr().err


def test_a_spreadsheet_of_another_country_can_have_its_own_csv(folders):
    assert run("A", "B", "--out", "c.csv", "--csv-dialect", "excel-de") == 0
    text = (folders / "c.csv").read_text(encoding="utf-8")
    header, first, *_ = text.splitlines()
    assert header.startswith("\ufeffcommit;model;prompt;")
    assert ";0,5;" in first


def test_a_csv_of_the_comparison_holds_no_formula(folders):
    table = folders / "B/summary.csv"
    table.write_text(table.read_text().replace("on battery", "=1+1"))
    run("A", "B", "--out", "c.csv")
    with (folders / "c.csv").open(newline="") as file:
        flags = {row["flags"] for row in csv.DictReader(file)}
    assert not [text for text in flags if text.startswith(("=", "+", "-", "@"))]


def test_the_effect_over_all_cells_comes_before_the_table(folders, capsys):
    run("A", "B")
    text = capsys.readouterr().out
    pooled, _, rest = text.partition("\n| ")
    assert "\n- over 7 pairs of cells, " in pooled
    assert "| --- |" in rest
