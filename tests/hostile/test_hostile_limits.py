"""Texts and tables whose reading would take hours or gigabytes, and values that no check foresaw:
each ends, in one line where it is refused. A reader that is quadratic does not end here.
"""

import csv
import ctypes
import io
import json
import logging
import os
import re
import shutil
import subprocess
import sys
import tracemalloc
from pathlib import Path

import pytest
from conftest import ROOT, html_of
from stranger import hidden

from kvpeak.analysis import claims
from kvpeak.analysis.claims import load_claims, planned_names, spell_absent
from kvpeak.analysis.comparisons import Comparison, Pair
from kvpeak.analysis.instruments import read_instruments
from kvpeak.analysis.judging import MOST_NAMES, evaluate
from kvpeak.analysis.plateaus import fit_growth_and_stop
from kvpeak.analysis.results import Results, read_results
from kvpeak.analysis.unavailable import unavailable_rows
from kvpeak.base import program, untrusted
from kvpeak.base.axes import AXES
from kvpeak.base.errors import UserError
from kvpeak.base.fields import split_texts
from kvpeak.base.numbers import MIB
from kvpeak.base.tables import csv_text
from kvpeak.base.text import shell_word
from kvpeak.base.untrusted import MOST_COLUMNS, MOST_DOCUMENT, MOST_RECORD, read_csv, read_json
from kvpeak.cli import start
from kvpeak.commands import bisect, fits, pools, predict, replay_recordings
from kvpeak.display.durations import CELL, Durations
from kvpeak.display.run import Run
from kvpeak.display.screen import Stream
from kvpeak.experiment.config_file import ConfigError
from kvpeak.report import page_text, publishing, records
from kvpeak.report.page import page
from kvpeak.report.page_data import PARTS
from kvpeak.report.page_links import Links, rows_of
from kvpeak.report.page_text import FOLD, MOST_PICTURE
from kvpeak.report.publishing import PICTURE, publish
from kvpeak.report.timelines import memory_over_time, timelines


def test_a_field_of_texts_is_split_in_one_pass():
    long = "a" * 300_000
    assert split_texts(long + "\\") == [long + "\\"]
    assert split_texts("\\;" * 300_000 + ";b") == [";" * 300_000, "b"]


CLAIM = "{{claim: c{0}, kind: {1}, source: s, of: {2}, {3}}}"
VALUE = ("value", "column: peak_mib, expected: 1, tolerance_pct: 5")


def planned(cells: int) -> dict:
    return {("c", "m", f"p{each}", "cat", "none", "v"): "" for each in range(cells)}


@pytest.mark.parametrize(
    ("number", "of", "kind", "lacks"),
    [
        (201, "{cap: none}", VALUE, "1,000,000 cells"),
        (11, "{cap: none}", ("growth-law", "column: peak_mib, leading: T2"), "50,000 cells of"),
        (11, "{}", ("equivalence", "to: {cap: x}, column: decode_tok_s, margin_pct: 5"), "50,000"),
        (1, "{}", ("value", "column: peak_mib, table: t.csv, tolerance_pct: 5"), "1,000,000 cells"),
    ],
)
def test_claims_about_millions_of_cells_are_refused_at_once(tmp_path, number, of, kind, lacks):
    """3,000 claims about 5,000 cells took 5 GiB, and more than 100 s."""
    plan = planned(5_000)
    file = tmp_path / "e.yaml"
    lines = [CLAIM.format(each, kind[0], of, kind[1]) for each in range(number)]
    file.write_text("claims: [" + ",\n".join(lines) + "]")
    (tmp_path / "t.csv").write_text("cap,peak_mib\n" + "none,1\n" * 201)
    with pytest.raises(ConfigError, match=rf"e\.yaml: claims: .*{lacks}.*name fewer cells in `of`"):
        load_claims(file, plan)


def test_claims_that_select_nothing_look_so_often_at_most(tmp_path, monkeypatch):
    monkeypatch.setattr(claims, "MOST_LOOKS", 200)
    file = tmp_path / "e.yaml"
    lines = [CLAIM.format(each, VALUE[0], "{cap: 1MiB}", VALUE[1]) for each in range(2)]
    file.write_text("claims: [" + ",\n".join(lines) + "]")
    assert [claim.groups for claim in load_claims(file, planned(100))] == [[], []]
    with pytest.raises(ConfigError, match="claims: more than 200 looks at a cell"):
        load_claims(file, planned(101))


def test_names_that_no_matrix_has_are_named_up_to_a_number(tmp_path):
    """Each was compared with all names of the matrix, to find the nearest; one row named them."""
    plan = planned(100)
    of = f"{{prompt: [{', '.join(f'q{each}' for each in range(100_000))}]}}"
    file = tmp_path / "e.yaml"
    file.write_text(f"claims: [{CLAIM.format(0, VALUE[0], of, VALUE[1])}]")
    (claim,) = load_claims(file, plan)
    lines = spell_absent(file, [claim], planned_names(plan))
    assert len(lines) == claims.MOST_ABSENT + 1
    assert lines[-1].endswith("claims: and 99,900 more names that are not in this matrix")
    (check,) = evaluate(claim, Results(plan, {}, {}))
    assert check.detail.count("prompt q") == MOST_NAMES
    assert check.detail.endswith(", prompt q19, and 99980 more")


@pytest.mark.parametrize("text", ["![", "![](", "![\\[", "![\\", "![a](b"])
def test_pictures_are_found_in_one_pass(text):
    assert not PICTURE.search(text * 300_000)


def test_folds_are_found_in_one_pass():
    text = "<div>" + " " * 300_000 + "x"
    assert FOLD.split(text) == [text]


@pytest.mark.parametrize("reader", ["page", "publish"])
def test_a_document_of_many_mebibytes_is_refused(tmp_path, reader, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("finding.md").write_text("x" * (MOST_DOCUMENT + 1))
    Path("results").mkdir()
    for name in ("plan", "runs", "processes", "summary", "checks"):
        Path(f"results/{name}.csv").write_text("commit\n")
    with pytest.raises(UserError, match=r"finding\.md: larger than 4 MiB"):
        if reader == "page":
            monkeypatch.setattr("kvpeak.report.page.read_tables", lambda results: {})
            monkeypatch.setattr("kvpeak.report.page.links_of", lambda tables: None)
            page(Path("finding.md"), Path("results"))
        else:
            publish(Path("m.yaml"), Path("finding.md"), Path("results"), Path("new"))


def test_a_reference_is_text_and_repeats_no_address(tmp_path):
    """A few characters each could repeat an address of megabytes."""
    text = f"[a]: /{'u' * 100_000}\n\n" + "[a]\n" * 100_000
    assert len(html_of(text, tmp_path, Links([]))) < 2 * len(text)


def test_a_heading_takes_no_anchor_that_is_the_pages(tmp_path):
    """Else the page's script would find the heading instead of what it draws into."""
    template = Path(page_text.__file__).parents[4] / "report/templates/page.html.j2"
    parts = re.findall(r' id="([^"{]+)"', template.read_text())
    assert sorted(parts) == sorted(PARTS)
    words = [*parts, "summary", "summary-2", "replay-fit-3", "findingmd", "detailsmd-claims"]
    words += ["a", "a-1", "a", "fine"]
    documents = ("finding.md", "details.md")
    text = "".join(f"# {each}\n\n" for each in words)
    shown = html_of(text, tmp_path, Links([]), "finding.md", documents)
    anchors = re.findall(r'<h1 id="([^"]+)"', shown)
    assert len(anchors) == len(words) == len({*anchors})
    assert anchors[-4:] == ["a", "a-1", "a-2", "fine"]
    assert all(each.startswith("heading:") for each in anchors[:-4])


@pytest.mark.parametrize("reader", ["page", "publish"])
def test_a_picture_that_is_shown_without_end(tmp_path, reader, monkeypatch):
    """The page refuses what grows with it; publish copies it once."""
    picture = tmp_path / "a.svg"
    picture.write_text("<svg/>" + " " * 100_000)
    text = "![a](a.svg)\n" * 1_000
    if reader == "page":
        monkeypatch.setattr(page_text, "MOST_PICTURES", MIB)
        with pytest.raises(UserError, match=r"f\.md: its pictures take more than 1 MiB"):
            html_of(text, tmp_path, Links([]), "f.md")
        return
    document, written = tmp_path / "f.md", []
    document.write_text(text)
    monkeypatch.setattr(publishing, "_write", lambda path, content: written.append(path.name))
    publishing._copy_document(document, tmp_path / "results", tmp_path / "new")
    assert written == ["a.svg", "f.md"]


@pytest.mark.parametrize("reader", ["page", "publish"])
def test_a_picture_is_no_larger_than_a_page_and_is_not_decoded(tmp_path, reader):
    """One wide sign in a text makes four bytes of each of its characters."""
    document, picture = tmp_path / "f.md", tmp_path / "a.svg"
    document.write_text("![a](a.svg)\n")

    def read():
        if reader == "page":
            html_of(document.read_text(), tmp_path, Links([]), "f.md")
        else:
            publishing._copy_document(document, tmp_path / "results", tmp_path / "new")

    picture.write_bytes(b"<svg>\xff</svg>")
    read()
    with picture.open("wb") as file:
        file.truncate(MOST_PICTURE + 1)
    tracemalloc.start()
    try:
        with pytest.raises(UserError, match=r"a\.svg: larger than 48 MiB"):
            read()
        assert tracemalloc.get_traced_memory()[1] < 2 * MOST_PICTURE
    finally:
        tracemalloc.stop()


def test_two_figures_of_one_name_are_not_published_as_one(tmp_path):
    for folder in ("report", "results"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "a.svg").write_text("<svg/>")
    document = tmp_path / "report/f.md"
    document.write_text("![a](a.svg) ![a](../results/a.svg)\n")
    with pytest.raises(UserError, match=r"two of its figures are called a\.svg"):
        publishing._copy_document(document, tmp_path / "results", tmp_path / "new")


@pytest.mark.parametrize("text", ["123.4 " * 100_000, "x 1." + "0" * 1_000_000])
def test_numbers_without_end_are_looked_for_once(tmp_path, text):
    """Each against every figure of a thousand rows would take hours."""
    cell = dict.fromkeys(AXES, "x")
    rows = [cell | {f"c{n}": str(123.4 + n / 1e6) for n in range(100)}] * 1_000
    assert html_of(text, tmp_path, Links(rows_of("summary", rows))).startswith("<p>")


def test_a_table_of_too_many_columns_or_fields_is_refused(tmp_path, monkeypatch):
    table = tmp_path / "plan.csv"
    table.write_text(",".join(f"c{n}" for n in range(MOST_COLUMNS + 1)) + "\n")
    with pytest.raises(UserError, match=r"plan\.csv: 201 columns; expected at most 200"):
        read_csv(table)
    table.write_text("a,b,a\n1,2,3\n")
    with pytest.raises(UserError, match="column a is there twice"):
        read_csv(table)
    monkeypatch.setattr(untrusted, "MOST_FIELDS", 6)
    table.write_text("a,b\n" + "1,2\n" * 3)
    assert len(read_csv(table)) == 3
    table.write_text("a,b\n" + "1,2\n" * 4)
    with pytest.raises(UserError, match="more than 3 rows of 2 columns"):
        read_csv(table)


@pytest.mark.parametrize("seconds", ["9" * 400, "1e7", "10000001"])
def test_a_cell_that_took_for_ever_is_no_duration(tmp_path, seconds):
    record = tmp_path / "c/m/p/k/n/v/r1/cell.json"
    record.parent.mkdir(parents=True)
    record.write_text(f'{{\n "elapsed_s": {seconds}\n}}\n')
    durations = Durations()
    durations.learn_from(tmp_path)
    assert all(known < 1e7 for known in durations.steps.get(CELL, {}).values())
    remembered = tmp_path / "durations.json"
    remembered.write_text(json.dumps({"overhead": 1.0, "steps": {CELL: {"a": 1e9, "b": 2.0}}}))
    assert Durations.read(remembered).steps == {CELL: {"b": 2.0}}
    Durations(overhead=float("inf")).write(remembered)  # costs the next estimate and nothing else


PHASE = {"phase": "prefill-0", "start_s": 0, "end_s": 0.1}
PHASES = {
    "no list": "x",
    "no object": [1],
    "a name that is none": [PHASE | {"phase": 5}],
    "no end": [{"phase": "load", "start_s": 0}],
    "a time that is none": [PHASE | {"start_s": "x"}],
    "a boundless time": [PHASE | {"end_s": 1e299}],
    "a turn that is none": [PHASE | {"turn": "x"}],
    "a run in other digits": [PHASE | {"phase": "prefill-²"}],
    "a run of 9,000 digits": [PHASE | {"phase": "prefill-" + "9" * 9000}],
    "50,000 runs": [PHASE | {"phase": f"prefill-{run}"} for run in range(50_000)],
    "50,000 turns": [PHASE | {"turn": turn} for turn in range(50_000)],
}


@pytest.mark.parametrize("case", PHASES)
def test_phases_that_are_none_or_without_end_cost_their_figure_at_most(tmp_path, case):
    cells = tmp_path / "cells"
    pair = Pair(dict.fromkeys(AXES, "x"), None, None)
    folder = cells / "/".join("x" * len(AXES)) / "r1"
    folder.mkdir(parents=True)
    (folder / "memory.csv").write_text("t_s,footprint_mib\n0.1,5\n0.2,6\n")
    record = {"engine": {}, "phases": PHASES[case], "request": {"protocol": {"warmup": 1}}}
    (folder / "cell.json").write_text(json.dumps(record))
    comparison = Comparison("cap", "x", "x", [pair])
    figure = memory_over_time(timelines(comparison, pair, cells))
    assert figure is None or len(figure.svg) < 2 * MIB


def test_a_timeline_of_a_million_samples_is_thinned_before_it_is_fitted():
    """A line is tried at every sample."""
    points = [(number / 50_000, float(min(number, 25_000))) for number in range(50_000)]
    rate, stop = fit_growth_and_stop(points, 0.0, 1.0, 1000)
    assert (round(rate), stop) == (50, 500)


def test_an_event_that_cannot_be_shown_costs_one_line(capsys, monkeypatch):
    from snakemake_logger_plugin_kvpeak import LogHandler

    handler = LogHandler.__new__(LogHandler)
    handler.run = Run(Stream(sys.stdout), Durations())
    record = logging.LogRecord("x", logging.INFO, "", 0, "", (), None)
    record.event = "run_info"
    monkeypatch.setattr(Run, "take", lambda *given: 1 // 0)
    handler.emit(record)
    (line,) = capsys.readouterr().out.splitlines()
    assert "not shown: ZeroDivisionError" in line


@pytest.mark.parametrize(
    "error",
    [
        *(ZeroDivisionError, OverflowError, ValueError, RecursionError, TypeError, IndexError),
        ctypes.ArgumentError,
    ],
)
def test_what_no_check_foresaw_is_one_line_and_more_where_it_is_asked_for(
    error, capsys, monkeypatch
):
    def run():
        raise error("it\nis so")

    monkeypatch.delenv("V", raising=False)
    assert program.ended("x", run) == program.FAILED
    said = capsys.readouterr().err
    assert said.startswith(f"x: {error.__name__}: it is so; ")
    assert said.count("\n") == 1
    monkeypatch.setenv("V", "1")
    with pytest.raises(error):
        program.ended("x", run)


def test_a_cell_that_was_asked_nothing_is_named(tmp_path):
    """Its speeds would be divided by it."""
    stored = Path(__file__).parents[2] / "docs/findings/cpu-2026-12-01/results"
    for table in ("plan.csv", "summary.csv", "processes.csv", "runs.csv"):
        shutil.copyfile(stored / table, tmp_path / table)
    with (tmp_path / "summary.csv").open(newline="") as file:
        rows = [*csv.DictReader(file)]
    none = [row | {"prompt_tokens": "0"} for row in rows]
    (tmp_path / "summary.csv").write_text(csv_text(tuple(rows[0]), none))
    with pytest.raises(UserError, match=r"summary\.csv: .*: prompt_tokens: 0; expected at least 1"):
        read_results(*(tmp_path / f"{each}.csv" for each in ("plan", "summary", "runs")))


@pytest.mark.parametrize("name", ["plan.csv", "summary.csv", "processes.csv", "runs.csv"])
def test_a_row_that_is_there_twice_is_named(tmp_path, name):
    """Only one of them would count."""
    stored = Path(__file__).parents[2] / "docs/findings/cpu-2026-12-01/results"
    for table in ("plan.csv", "summary.csv", "processes.csv", "runs.csv"):
        shutil.copyfile(stored / table, tmp_path / table)
    lines = (tmp_path / name).read_text().splitlines()
    (tmp_path / name).write_text("\n".join([*lines, lines[1], ""]))
    with pytest.raises(UserError, match=rf"{name}: line {len(lines) + 1}: .* is there twice"):
        read_results(*(tmp_path / f"{each}.csv" for each in ("plan", "summary", "runs")))


def test_no_writer_of_tables_writes_a_formula():
    """test_architecture.py holds that there is one writer."""
    planned = dict.fromkeys(AXES, "=1+1") | {"reason": "unavailable: =HYPERLINK(1)"}
    (summary,) = csv.reader([unavailable_rows([planned])])
    assert {*summary} == {"'=1+1", "0", "unavailable", "'=HYPERLINK(1)", ""}
    for as_csv in (replay_recordings.as_csv, fits.as_csv):
        text = as_csv([{"workload": "@x", "commit": "@x", "model": -1.5}])
        assert text.count("@x,") == text.count("'@x,") > 0
    row = {"a": -1.5, "b": "-1+1", "c": "-1e-05", "=d": "-１"}  # a figure is no formula
    assert csv_text(row, [row]) == "a,b,c,'=d\n-1.5,'-1+1,-1e-05,'-１\n"


def test_a_sign_that_a_terminal_cannot_show_is_spelled(monkeypatch):
    """It is no error: what was read is not damaged."""
    shown = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(shown, "ascii"))
    assert program.ended("x", lambda: print("\u2691 2 \xd7")) == 0
    assert shown.getvalue() == b"\\u2691 2 \\xd7\n"


def test_the_settings_of_snakemake_are_read_under_every_locale():
    for file in (Path(__file__).parents[2] / "profiles").rglob("*.yaml"):
        assert file.read_bytes().isascii(), file


CASE = ("--model", "qwen2-0.5b", "--kv-cache", "cat", "--slack", "2")
ENDS = ("--good", "a", "--bad", "b", "--cell", "m/p/cat/none/v")
SIZES = (
    (fits, ["--memory", "99999999999GiB"]),
    (pools, ["t.csv", "--memory", "17179869184.0009GiB"]),
    (pools, ["t.csv", "--memory", "0"]),
    (predict, [*CASE, "--longest", "99999999999GiB"]),
    (predict, [*CASE, "--prompt-tokens", "9" * 5000]),
    (bisect, [*ENDS, "--above", "nan"]),
    (bisect, [*ENDS, "--above", "1e300"]),
)


@pytest.mark.parametrize(("command", "given"), SIZES)
def test_a_size_on_a_command_line_has_a_bound(command, given, tmp_path, monkeypatch, capsys):
    """Beyond 2^64 it would be another one, and its end another message."""
    monkeypatch.chdir(tmp_path)
    Path("t.csv").write_text("op,id,bytes\nalloc,a,1000000\n")
    assert program.main(command, given) in (program.FAILED, program.USAGE)
    line = capsys.readouterr().err.splitlines()[-1]
    assert "expected " in line and len(line) < 300


@pytest.mark.parametrize("name", ["a b", "a'b\\", "x\x1b[31mred\u202e'\\", "\udc80é"])
def test_a_name_in_a_command_to_be_copied_is_seen_and_is_the_same(name):
    word = shell_word(name)
    assert word.isprintable()
    printed = subprocess.run(["bash", "-c", f"printf %s {word}"], capture_output=True, check=True)
    assert printed.stdout == os.fsencode(name)


def test_a_folders_name_reaches_no_terminal(tmp_path, monkeypatch, capsys):
    """It is an archive's own. Of import, and of plan."""
    theirs = tmp_path / "x\x1b[31mred\u202e"
    shutil.copytree(ROOT / "docs/findings/cpu-2026-12-01/config", theirs / "config")
    cell = "results/cells/mlx-0.32.4/qwen2-tiny/alice-128/cat/none/laboratory/r1"
    shutil.copytree(ROOT / "docs/findings/cpu-2026-12-01" / cell, theirs / cell)
    (tmp_path / "project").mkdir()
    monkeypatch.chdir(tmp_path / "project")
    shutil.copytree(ROOT / "config", "config")
    Path("prompts").mkdir()
    shutil.copyfile(ROOT / "prompts/alice.txt", "prompts/alice.txt")
    Path("Snakefile").touch()
    assert start(["import", str(theirs)]) == 0
    assert start(["plan", "--matrix", str(theirs / "config/matrix.yaml")]) == 0
    said = capsys.readouterr()
    assert "\\x1b[31mred" in said.out and not hidden(said.out + said.err)


def test_a_table_takes_what_is_kept_of_it(tmp_path):
    """Its other columns nobody reads."""
    names = [f"x{number}" for number in range(12)]
    lines = [
        ",".join(f"{line + number}.{number:012d}" for number in range(12)) for line in range(20_000)
    ]
    file = tmp_path / "memory.csv"
    file.write_text("\n".join([",".join(names), *lines, ""]))
    size = file.stat().st_size
    del lines
    tracemalloc.start()
    rows = read_csv(file, most=2 * size, only=("x1", "x3"))
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert rows[-1] == {"x1": "20000.000000000001", "x3": "20002.000000000003"}
    assert most < 6 * size


@pytest.mark.parametrize("part", ["[]", "{}"])
def test_json_of_lists_and_objects_without_end_is_refused(tmp_path, part):
    file = tmp_path / "a.json"
    file.write_text("[" + ",".join([part] * 1_000_000) + "]")
    with pytest.raises(UserError, match=r"a\.json: more than 1,000,000 lists and objects"):
        read_json(file)


@pytest.mark.parametrize("size", [MOST_RECORD // 4, 5_000_000])
def test_a_long_text_in_a_record_does_not_fill_the_finding(tmp_path, size):
    """It is cut, or its record is named."""
    said = {"readings": [], "problems": ["x" * size], "machine": "x" * size}
    for name in ("instruments/c.json", "calibration/c.json"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text(json.dumps(said))
    found, problems = read_instruments(tmp_path, {"c"})
    reader = records.Reader()
    calibrations = records.calibrations(tmp_path, ["c"], reader)
    assert len(str(found) + str(calibrations) + str(problems + reader.problems)) < 10_000
    whole = size < MOST_RECORD
    assert (len(found), len(calibrations)) == (whole, whole)
    for line in problems + reader.problems:
        assert line.endswith("/c.json: larger than 256 KiB")
