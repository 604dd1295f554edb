"""The tables of results/ as plain values: what is there, what is missing and why, what is text."""

import csv
import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from kvpeak.analysis.results import (
    far_off_runs,
    headline,
    live_peaks,
    read_results,
    read_table,
    repeats,
    rows,
    spell_generated,
    spell_outputs,
)
from kvpeak.base.axes import AXES
from kvpeak.base.columns import RUNS, SUMMARY, TURNS
from kvpeak.base.errors import UserError

SMALL = Path(__file__).parent / "data/small"
CAT = ("mlx-0.32.4", "tiny", "alice-512", "cat", "none", "default")
LONG = ("mlx-0.32.4", "tiny", "alice-2048", "cat", "none", "default")
LARGE = ("mlx-0.32.4", "large", "alice-512", "cat", "none", "default")


@pytest.fixture
def folder(tmp_path):
    """A copy of the small result set."""
    for file in SMALL.iterdir():
        shutil.copy(file, tmp_path)
    return tmp_path


def results_in(folder: Path):
    return read_results(*(folder / f"{name}.csv" for name in ("plan", "summary", "runs")))


@pytest.fixture(scope="module")
def small():
    return results_in(SMALL)


def test_why_a_cell_has_no_value(small):
    assert small.missing(CAT, "peak_mib") == ""
    assert small.missing(CAT, "kv_bytes_per_token") == ""
    assert small.missing(CAT, "peak_device_mib") == "has no peak_device_mib"
    assert small.missing(CAT, "made_up") == "has no made_up"
    assert small.missing(LONG, "peak_mib") == "ended with oom"
    assert small.missing(LARGE, "peak_mib") == "needs a GPU (Metal or CUDA): this machine has none"
    assert small.missing(("a", "b", "c", "d", "e", "f"), "peak_mib") == "not planned"
    without = {cell: row for cell, row in small.summary.items() if cell != CAT}
    assert replace(small, summary=without).missing(CAT, "peak_mib") == "not run yet"


@pytest.mark.parametrize("outcome", ["guard", "oom", "timeout", "unsupported", "skipped", "failed"])
def test_only_a_cell_that_ended_well_has_values_and_peaks(small, outcome):
    row = small.summary[CAT] | {"outcome": outcome}
    ended = replace(small, summary={CAT: row})
    assert ended.missing(CAT, "peak_mib") == f"ended with {outcome}"
    assert ended.peaks(CAT).size == 0


def test_peaks_are_those_of_each_process_or_else_the_cell_s_own(small):
    assert small.peaks(CAT).tolist() == [998, 1000, 1000, 1001]
    alone = replace(small, each={})
    assert alone.peaks(CAT).tolist() == [1000]
    unknown = [each | {"peak_footprint_mib": None} for each in small.each[CAT]]
    assert replace(small, each={CAT: unknown}).peaks(CAT).tolist() == [1000]
    unknown[2] |= {"peak_footprint_mib": 7.0}
    assert replace(small, each={CAT: unknown}).peaks(CAT).tolist() == [7]
    row = small.summary[CAT] | {"peak_mib": None}
    assert replace(small, each={}, summary={CAT: row}).peaks(CAT).size == 0
    assert small.peaks(LARGE).size == small.peaks(LONG).size == 0


def test_speeds_are_the_means_of_the_processes(small):
    assert small.speeds(CAT, "decode_tok_s").tolist() == [100, 101, 99, 100]
    assert small.speeds(LARGE, "decode_tok_s").size == 0


def test_processes_come_in_the_order_of_their_rounds(folder):
    lines = (folder / "processes.csv").read_text().splitlines()
    (folder / "processes.csv").write_text("\n".join([lines[0], *reversed(lines[1:])]) + "\n")
    found = results_in(folder)
    assert [each["round"] for each in found.each[CAT]] == [1, 2, 3, 4]
    assert found.peaks(CAT).tolist() == [998, 1000, 1000, 1001]


def test_a_process_that_was_refused_is_not_the_one_that_is_shown(folder):
    found = results_in(folder)
    assert {row["shown_round"] for row in found.summary.values()} == {1}
    assert found.refused == frozenset()
    table = folder / "processes.csv"
    first, second, *lines = table.read_text().splitlines()
    names = ",".join(CAT)
    assert second.startswith(f"{names},1,ok,")
    refused = second.replace(f"{names},1,ok,", f"{names},1,unreadable,")
    table.write_text("\n".join([first, refused, *lines]) + "\n")
    found = results_in(folder)
    assert found.summary[CAT]["shown_round"] == 2
    assert found.refused == {(*CAT, 1)}


def test_a_folder_without_processes_or_turns_is_read(folder):
    (folder / "processes.csv").unlink()
    found = results_in(folder)
    assert (found.each, found.turns) == ({}, {})
    assert found.peaks(CAT).tolist() == [1000]


def test_turns_belong_to_their_cell(folder):
    names = ",".join(TURNS.names)
    values = dict(zip(AXES, CAT, strict=True))
    line = ",".join(values.get(name, "1") for name in TURNS.names)
    (folder / "turns.csv").write_text(f"{names}\n{line}\n")
    (cell,) = results_in(folder).turns
    assert cell == CAT


def test_what_cannot_apply_is_in_no_table_and_what_was_unavailable_not_in_the_summary(folder):
    plan = (folder / "plan.csv").read_text()
    cells = [",".join((*CAT[:4], cap, *CAT[5:])) for cap in ("4x", "8x")]
    (folder / "plan.csv").write_text(
        f"{plan}{cells[0]},1,no,not applicable: no cap 4x,path\n{cells[1]},1,no,no network,path\n"
    )
    summary = (folder / "summary.csv").read_text().replace(",ok,", ",unavailable,", 1)
    (folder / "summary.csv").write_text(summary)
    found = results_in(folder)
    assert {cell[4] for cell in found.plan} == {"none", "32MiB", "8x"}
    assert found.plan[(*CAT[:4], "8x", *CAT[5:])] == "no network"
    assert found.plan[CAT] == ""
    assert CAT not in found.summary
    assert len(found.summary) == len(results_in(SMALL).summary) - 1


@pytest.mark.parametrize("outcome", ["unsupported", "unreadable", "timeout", "failed"])
def test_what_ended_otherwise_is_in_the_summary(folder, outcome):
    summary = (folder / "summary.csv").read_text().replace(",ok,", f",{outcome},", 1)
    (folder / "summary.csv").write_text(summary)
    assert results_in(folder).summary[CAT]["outcome"] == outcome


def test_a_summary_of_an_older_version_lacks_nothing(folder):
    row = results_in(folder).summary[CAT]
    assert set(SUMMARY.names) <= set(row)
    assert row["idle_w"] is None
    assert (row["peak_mib"], row["peak_min_mib"], row["peak_max_mib"]) == (1000, 998, 1001)
    assert "parts" in row


def test_a_range_that_is_not_known_is_the_peak_itself():
    row = {"method": "live", "accelerator": "cpu", "peak_footprint_mib": 50.0}
    assert headline(row) == {"peak_mib": 50, "peak_min_mib": 50, "peak_max_mib": 50}
    ends = {"peak_footprint_min_mib": 0.0, "peak_footprint_max_mib": 60.0}
    assert headline(row | ends) == {"peak_mib": 50, "peak_min_mib": 0, "peak_max_mib": 60}


def test_a_cell_repeats_unless_its_answers_differ():
    assert repeats({"tokens_sha256": "ab" * 32}) and repeats({"tokens_sha256": "ff" * 32})
    assert repeats({"tokens_sha256": None}) and repeats({})
    assert not repeats({"tokens_sha256": "differs"})
    assert spell_outputs({"outputs": 3.0, "runs": 18.0}) == ("3 different answers in 18 runs")
    assert spell_outputs({"runs": 18.0}) == "other answers in 18 runs"


def written(tmp_path, text: str) -> Path:
    file = tmp_path / "table.csv"
    file.write_text(text)
    return file


def test_names_stay_text_and_only_empty_fields_are_missing(tmp_path):
    text = 'model,cap,detail,decode_tok_s,round\n7,none,nan,1.5,2\n1e3,,"a, b",,10\n'
    assert rows(read_table(written(tmp_path, text))) == [
        {"model": "7", "cap": "none", "detail": "nan", "decode_tok_s": 1.5, "round": 2},
        {"model": "1e3", "cap": None, "detail": "a, b", "decode_tok_s": None, "round": 10},
    ]


def test_the_mark_before_a_formula_is_taken_away_and_no_other_apostrophe(tmp_path):
    texts = {"'=1+1": "=1+1", "'-x": "-x", "'tis": "'tis", "'": "'", "''=1": "''=1", "=1": "=1"}
    text = "detail\n" + "\n".join(texts) + "\n"
    found = [row["detail"] for row in rows(read_table(written(tmp_path, text)))]
    assert found == list(texts.values())


@pytest.mark.parametrize("value", ["inf", "1e400", "9" * 400, "-inf"])
def test_a_boundless_number_is_named(tmp_path, value):
    with pytest.raises(UserError, match="prompt_tokens"):
        read_table(written(tmp_path, f"prompt_tokens\n{value}\n"), RUNS)


def test_a_warm_up_is_said_in_either_spelling(tmp_path):
    spelled = ["true", "True", "TRUE", "false", "False", "yes", "zebra", "a"]
    found = read_table(written(tmp_path, "warmup\n" + "\n".join(spelled) + "\n"))
    assert found["warmup"].tolist() == [True] * 3 + [False] * 5


def test_the_first_field_that_is_no_number_is_named_with_its_line(tmp_path):
    lines = (SMALL / "runs.csv").read_text().splitlines()
    for number in (3, 5):
        fields = lines[number].split(",")
        fields[RUNS_COLUMNS.index("ttft_ms")] = f"1 {number}"
        lines[number] = ",".join(fields)
    file = written(tmp_path, "\n".join(lines) + "\n")
    with pytest.raises(UserError) as error:
        read_table(file, RUNS)
    assert str(error.value).startswith(f"{file}: line 4: ttft_ms: 1 3: expected a number with a ")
    found = read_table(file)  # a table of somebody else may have any text there
    assert found["ttft_ms"].iloc[2] == "1 3"


RUNS_COLUMNS = (SMALL / "runs.csv").read_text().splitlines()[0].split(",")


def test_a_column_of_another_program_may_be_text_in_our_tables(tmp_path):
    text = (SMALL / "runs.csv").read_text().splitlines()
    text = [f"{line},{'mood' if not number else 'good'}" for number, line in enumerate(text)]
    assert read_table(written(tmp_path, "\n".join(text) + "\n"), RUNS)["mood"].iloc[0] == "good"


@pytest.mark.parametrize("column", ["round", "run", "decode_tok_s"])
def test_counts_and_figures_have_to_be_numbers(tmp_path, column):
    lines = [line.split(",") for line in (SMALL / "runs.csv").read_text().splitlines()]
    lines[1][lines[0].index(column)] = "many"
    file = written(tmp_path, "\n".join(map(",".join, lines)) + "\n")
    with pytest.raises(UserError, match=f"line 2: {column}: many: expected a number"):
        read_table(file, RUNS)


def test_a_table_without_rows_has_its_columns(tmp_path):
    found = read_table(written(tmp_path, "model,round\n"))
    assert (list(found.columns), len(found)) == (["model", "round"], 0)


def test_a_table_that_is_not_there_says_how_to_make_it(tmp_path):
    with pytest.raises(UserError, match="No such file or directory; make it: snakemake --cores 1"):
        read_table(tmp_path / "none.csv")


def test_far_off_runs_are_those_of_their_own_cell_and_no_warm_up(folder):
    """Ten runs of 100 and one of 40, beside a warm-up of 1 and another cell of 40 throughout."""
    header = (*AXES, "round", "run")
    other = (*CAT[:4], "4x", CAT[5])
    lines = [",".join((*header, "warmup", "prefill_tok_s", "ttft_ms", "decode_tok_s"))]
    for cell, speeds in ((CAT, [1, *[100, 101] * 5, 40]), (other, [40, 41] * 6)):
        for run, speed in enumerate(speeds):
            fields = (*cell, "2", str(run), str(run == 0), "5", "5", str(speed))
            lines.append(",".join(fields))
    found = far_off_runs(read_table(written(folder, "\n".join(lines) + "\n")))
    assert found == {CAT: ["run 11 of r2 is far off: decode_tok_s 40.0, median 100.0"]}
    assert np.median([*[100, 101] * 5, 40]) == 100


def test_the_live_peak_of_a_first_run_is_held_against_the_later_ones(folder):
    """Two processes; of another cell only the first run is known."""
    other = (*CAT[:4], "4x", CAT[5])
    lines = [",".join((*AXES, "round", "run", "warmup", "peak_active_mib"))]
    for cell, round_, peaks in ((CAT, 1, "100 300 200"), (CAT, 2, "120 500 "), (other, 1, "7")):
        for run, peak in enumerate(peaks.split(" ")):
            lines.append(",".join((*cell, str(round_), str(run), str(run == 0), peak)))
    found = live_peaks(read_table(written(folder, "\n".join(lines) + "\n")))
    assert found == {CAT: (110, 400)}


def test_a_table_without_a_live_peak_has_none(folder):
    header = ",".join((*AXES, "round", "run", "warmup", "peak_active_mib"))
    assert live_peaks(read_table(written(folder, f"{header}\n"))) == {}


def changed(folder, table, line, column, text):
    """Put a text into one field of a table; lines are counted as an editor counts them."""
    path = folder / f"{table}.csv"
    with path.open(newline="") as file:
        rows = list(csv.reader(file))
    rows[line - 1][rows[0].index(column)] = text
    with path.open("w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows(rows)


@pytest.mark.parametrize(
    ("table", "line", "column", "text", "said"),
    [
        ("summary", 4, "outcome", "", "summary.csv: line 4: outcome: expected a value"),
        ("processes", 5, "round", "", "processes.csv: line 5: round: expected a value"),
        ("summary", 5, "cap", "a/b", "summary.csv: line 5: cap: a/b: expected a name"),
        ("summary", 3, "cap", "", "summary.csv: line 3: cap: empty: expected a name"),
        ("summary", 2, "decode_tok_s", "-1", "summary.csv: line 2: decode_tok_s: -1: expected"),
        ("summary", 2, "decode_tok_s", "-0.5", "summary.csv: line 2: decode_tok_s: -0.5: expec"),
        ("summary", 2, "rounds", "1.5", "summary.csv: line 2: rounds: 1.5: expected"),
        ("summary", 2, "generated_tokens", "", "generated_tokens: empty; expected a number"),
    ],
)
def test_a_field_that_cannot_be_is_named_with_its_line(folder, table, line, column, text, said):
    changed(folder, table, line, column, text)
    with pytest.raises(UserError, match=re.escape(said)):
        results_in(folder)


@pytest.mark.parametrize("outcome", ["oom", "timeout", "failed", "unsupported"])
def test_a_cell_that_did_not_end_well_may_lack_its_tokens(folder, outcome):
    changed(folder, "summary", 2, "outcome", outcome)
    changed(folder, "summary", 2, "generated_tokens", "")
    assert results_in(folder).summary[CAT]["generated_tokens"] is None


def test_a_row_that_is_there_twice_is_named_with_its_line(folder):
    path = folder / "summary.csv"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join([*lines, lines[3]]))
    with pytest.raises(UserError, match=f"summary.csv: line {len(lines) + 1}: .*: is there twice"):
        results_in(folder)


def test_a_speed_of_nothing_is_a_number(folder):
    changed(folder, "summary", 2, "decode_tok_s", "0")
    assert results_in(folder).summary[CAT]["decode_tok_s"] == 0


def test_a_cell_without_a_method_ran_live(folder):
    changed(folder, "summary", 2, "method", "")
    changed(folder, "summary", 3, "method", "replayed: real")
    methods = [row["method"] for row in results_in(folder).summary.values()]
    assert methods[:2] == ["live", "replayed: real"]


def test_the_numbers_of_generated_tokens_are_spelled_from_the_least_to_the_most():
    assert spell_generated([{"generated_tokens": 1024}]) == "1,024 tokens"
    some = [{"generated_tokens": n} for n in (8, None, 128)]
    assert spell_generated(some) == "0 to 128 tokens"


def test_the_first_token_of_prompts_one_after_the_other_is_no_speed_of_the_cell(small):
    columns = ("prefill_tok_s", "ttft_ms", "decode_tok_s")
    assert all(small.speeds(CAT, column).size for column in columns)
    for workload, told in (("turns 4", False), ("batch 4", True)):
        row = small.summary[CAT] | {"workload": workload}
        found = replace(small, summary=small.summary | {CAT: row})
        assert bool(found.speeds(CAT, "ttft_ms").size) is told
        assert found.speeds(CAT, "prefill_tok_s").size and found.speeds(CAT, "decode_tok_s").size


def test_a_live_peak_of_less_than_a_mib_is_one(folder):
    lines = [",".join((*AXES, "round", "run", "warmup", "peak_active_mib"))]
    lines += [
        ",".join((*CAT, "1", str(run), "False", peak)) for run, peak in enumerate(["0.5", "0.7"])
    ]
    found = live_peaks(read_table(written(folder, "\n".join(lines) + "\n")))
    assert found == {CAT: (0.5, 0.7)}
