"""kvpeak check as it is called: the table it writes, what it prints, and its exit code."""

import csv
import sys
from pathlib import Path

import pytest
import warm
import yaml

from kvpeak.base.program import main
from kvpeak.commands import check as program
from kvpeak.report.claims import claim_line

ROOT = Path(__file__).parents[1]
SMALL = ROOT / "tests/data/small"
FAILING = {
    "claim": "the peak of cat is one MiB",
    "kind": "value",
    "of": {"model": "tiny", "prompt": "alice-512", "kv_cache": "cat"},
    "column": "peak_footprint_mib",
    "expected": 1.0,
    "tolerance_pct": 5,
    "source": "this test",
}


@pytest.fixture
def run(capsys):
    """Call the program in this process: (exit code, standard output, standard error)."""

    def run(*arguments):
        return main(program, [*map(str, arguments)]), *capsys.readouterr()

    return run


@pytest.fixture
def check(run, tmp_path):
    """Judge claims by the small result set."""

    def check(*entries):
        expected = tmp_path / "expected.yaml"
        expected.write_text(yaml.safe_dump({"claims": list(entries)}), encoding="utf-8")
        tables = [f"--{name}={SMALL / name}.csv" for name in ("plan", "summary", "runs")]
        return run(*tables, f"--expected={expected}", f"--out={tmp_path / 'checks.csv'}")

    return check


def test_every_verdict_is_a_row(check, tmp_path):
    check(FAILING)
    with (tmp_path / "checks.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert rows[0] == {
        "claim": "the peak of cat is one MiB",
        "cells": "none",
        "verdict": "fails",
        "detail": "1,000.0 (998.0 to 1,001.0 in 4 processes), expected 1 (+99,900.0 %); ± 5 %",
        "source": "this test",
        "kind": "value",
        "groups": "1",
        "held": "1",
    }
    assert [row["cells"] for row in rows] == ["none", "32MiB"]


def test_a_failing_claim_is_printed_and_fails_only_the_reading(check, run, tmp_path):
    code, *_ = check(FAILING)
    assert code == 0
    code, printed, errors = run("--read", tmp_path / "checks.csv")
    assert (code, errors) == (1, "")
    assert printed.splitlines()[:2] == [
        "2 fails, 0 does not repeat, 0 not testable, 0 holds, 0 not measured here",
        "fails: the peak of cat is one MiB (none): 1,000.0 "
        "(998.0 to 1,001.0 in 4 processes), expected 1 (+99,900.0 %); ± 5 %",
    ]


def test_reading_checks_without_a_failure_succeeds(check, run, tmp_path):
    check(FAILING | {"expected": 700, "tolerance_pct": 50})
    assert run("--read", tmp_path / "checks.csv")[0] == 0


def test_no_claims_make_an_empty_table(check, tmp_path):
    assert check()[0] == 0
    assert (
        tmp_path / "checks.csv"
    ).read_text() == "claim,cells,verdict,detail,source,kind,groups,held\n"


def test_a_mistake_is_one_line_and_nothing_is_written(check, tmp_path):
    code, _, errors = check(FAILING | {"of": {"kv_cash": "cat"}})
    assert code == 1
    (line,) = errors.splitlines()
    assert "expected.yaml: claims[0].of.kv_cash: unknown key (did you mean kv_cache?)" in line
    assert not (tmp_path / "checks.csv").exists()


def test_a_name_that_is_not_in_the_matrix_is_said_and_the_rest_is_judged(check, tmp_path):
    other = FAILING | {"claim": "of a name that is gone", "of": {"kv_cache": "kat"}}
    code, printed, errors = check(FAILING, other)
    assert code == 0
    assert errors.endswith(
        'claims[1].of.kv_cache: "kat" is not in this matrix (did you mean cat?): '
        "not measured here (1 claim)\n"
    )
    assert printed.startswith(
        "2 fails, 0 does not repeat, 0 not testable, 0 holds, 0 not measured here"
    )
    assert "not in this matrix: kv_cache kat" in (tmp_path / "checks.csv").read_text()


def test_the_program_names_a_table_that_is_not_there():
    command = [sys.executable, ROOT / "workflow/scripts/check.py", "--plan", "nowhere/plan.csv"]
    done = warm.run(command)
    assert done.returncode == 1
    assert done.stderr.startswith("check: nowhere/plan.csv: No such file or directory; make it")
    assert len(done.stderr.splitlines()) == 1


def test_a_table_that_a_spreadsheet_saved_is_refused_by_name(run, tmp_path):
    for name in ("plan", "summary", "runs"):
        text = (SMALL / f"{name}.csv").read_text()
        (tmp_path / f"{name}.csv").write_text(text.replace(",", ";"))
    expected = tmp_path / "expected.yaml"
    expected.write_text(yaml.safe_dump({"claims": [FAILING]}))
    tables = [f"--{name}={tmp_path / name}.csv" for name in ("plan", "summary", "runs")]
    code, _, errors = run(*tables, f"--expected={expected}", f"--out={tmp_path / 'checks.csv'}")
    assert code == 1
    assert "plan.csv: its fields are separated by semicolons" in errors
    assert not (tmp_path / "checks.csv").exists()


def test_a_claim_that_a_spreadsheet_would_calculate_is_marked(check, tmp_path):
    check(FAILING | {"claim": "=1+1"})
    with (tmp_path / "checks.csv").open(newline="") as file:
        assert next(csv.DictReader(file))["claim"] == "'=1+1"


def test_a_claim_names_the_one_model_of_several_that_it_was_held_against():
    row = {"claim": "no cap changes tokens", "verdict": "holds", "cells": "tiny, a-512; tiny, a-9"}
    rows = [row | {"groups": "2", "held": "4"}, row | {"groups": "1", "held": "1"}]
    several = ["tiny", "tiny", "large"]
    assert claim_line(rows, several).endswith("(3 of 3): no cap changes tokens (5/3 cells, tiny)")
    assert claim_line(rows, ["tiny"] * 9).endswith("tokens (5/9 cells)")
    both = [*rows, rows[0] | {"cells": "large, a-512"}]
    assert claim_line(both, several).endswith("tokens (9/3 cells)")
    named = [each | {"claim": "tiny's tokens stay"} for each in rows]
    assert claim_line(named, several).endswith("tiny's tokens stay (5/3 cells)")
