"""What results/ tells of cells: how they ended, which are missing and why, which would not fit."""

import copy
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from kvpeak.base.errors import UserError
from kvpeak.experiment.matrix import Matrix
from kvpeak.experiment.preparation import needs
from kvpeak.experiment.status import (
    forget,
    keep_results,
    missing_cells,
    outcome_of,
    starts_of,
    to_be_skipped,
    would_exceed,
)

ROOT = Path(__file__).parents[1]
MATRIX = {
    "commits": {"mlx-a": {"engine": "mlx"}},
    "models": {"tiny": {"kind": "random", "config": "config/models/qwen2-tiny.json"}},
    "prompts": {name: {"tokens": tokens} for name, tokens in (("m", 33), ("s", 9), ("l", 65))},
    "kv_caches": ["cat"],
    "caps": ["none"],
    "variants": {"default": {}},
}


@pytest.fixture(autouse=True)
def in_a_project(tmp_path, monkeypatch):
    shutil.copytree(ROOT / "config/models", tmp_path / "config/models")
    for name in ("workflow", "prompts"):
        (tmp_path / name).symlink_to(ROOT / name)
    monkeypatch.chdir(tmp_path)


def matrix(**protocol) -> Matrix:
    return Matrix(copy.deepcopy(MATRIX) | {"protocol": protocol}, "matrix.yaml")


def cell(prompt: str, number: int = 1):
    return matrix(processes=2).cell(f"mlx-a/tiny/{prompt}/cat/none/default/r{number}")


def end(prompt: str, outcome: str, number: int = 1, request: dict | None = None) -> Path:
    """Write what the runner writes when a cell ends so."""
    ended = cell(prompt, number)
    folder = Path("results/cells", ended.path)
    folder.mkdir(parents=True)
    request = request or matrix().request(ended)
    record = {"cell": ended.as_dict(), "outcome": outcome, "request": request}
    (folder / "cell.json").write_text(json.dumps(record, indent=1))
    (folder / "runs.csv").write_text("commit\n")
    return folder


def test_an_outcome_is_read_from_whole_results_only():
    folder = end("s", "timeout")
    assert outcome_of(cell("s")) == "timeout"
    (folder / "runs.csv").unlink()
    assert outcome_of(cell("s")) is None
    assert outcome_of(cell("m")) is None


def test_an_outcome_is_that_of_the_record_however_it_is_written():
    """A published one is on one line; in another one the line is a part of something else."""
    file = end("s", "oom") / "cell.json"
    said = json.loads(file.read_text())
    file.write_text(json.dumps(said) + "\n")
    assert outcome_of(cell("s")) == "oom"
    file.write_text('{"a": {\n "outcome": "ok"\n},\n "outcome": "failed"}')
    assert outcome_of(cell("s")) == "failed"
    file.write_text('{"a": {\n "outcome": "ok"\n},\n "outcome": ["failed"]}')
    assert outcome_of(cell("s")) is None


@pytest.mark.parametrize("outcome", ["oom", "guard"])
def test_longer_prompts_of_what_did_not_fit_would_exceed_the_memory_in_every_round(outcome):
    end("m", outcome, number=2)
    twice = matrix(processes=2)
    reasons = {(c.prompt, c.round): would_exceed(twice, c) for c in twice.cells_here}
    expected = f"would exceed the memory: m ended with {outcome} in r2"
    assert {key for key, why in reasons.items() if why == expected} == {("l", 1), ("l", 2)}
    assert set(reasons.values()) == {expected, ""}
    assert {c: why for c in twice.cells_here if (why := would_exceed(twice, c))} == to_be_skipped(
        twice
    )


@pytest.mark.parametrize("outcome", ["ok", "timeout", "unsupported", "skipped"])
def test_other_outcomes_skip_nothing(outcome):
    end("s", outcome)
    assert not any(would_exceed(matrix(), c) for c in matrix().cells_here)


def test_what_was_asked_otherwise_skips_nothing_and_neither_does_skip_longer_false():
    end("s", "guard")
    assert would_exceed(matrix(), cell("l"))
    assert not would_exceed(matrix(guard=0.9), cell("l"))
    assert not would_exceed(matrix(skip_longer=False), cell("l"))


def run(program: str, *arguments: str) -> subprocess.CompletedProcess:
    command = [sys.executable, str(ROOT / "workflow/scripts" / program), *arguments]
    environment = os.environ | {"TMPDIR": str(Path.cwd())}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_the_runner_writes_a_skipped_cell_without_starting_an_engine_and_the_plan_says_so_before():
    Path("matrix.yaml").write_text(yaml.safe_dump(MATRIX))
    end("m", "oom")
    why = "would exceed the memory: m ended with oom in r1"
    assert f"\n  1 skipped: {why}\n" in run("plan.py", "--matrix", "matrix.yaml").stdout
    done = run("run_cell.py", f"results/cells/{cell('l').path}", "--matrix", "matrix.yaml")
    assert done.returncode == 0
    assert done.stderr == f"cell 3 of 3: skipped: {why}\n"
    record = json.loads(Path("results/cells", cell("l").path, "cell.json").read_text())
    assert (record["outcome"], record["detail"], record["log"]) == ("skipped", why, None)
    assert outcome_of(cell("l")) == "skipped"
    assert not starts_of(cell("l"))
    assert "skipped" not in run("plan.py", "--matrix", "matrix.yaml").stdout


LOGS = Path("results/logs")


def measured(**files: str) -> tuple[Path, dict[str, bytes]]:
    """A result with every file, some of them with other content."""
    folder = end("s", "oom")
    whole = {"memory": "t_s\n0.1\n", "runs": "commit\nmlx-a\n"} | files
    for name, text in whole.items():
        file = folder / ("cell.json" if name == "cell" else f"{name}.csv")
        file.write_text(text)
    return folder, {file.name: file.read_bytes() for file in folder.iterdir()}


def copies() -> list[dict[str, bytes]]:
    kept = [one for one in (LOGS / cell("s").path).glob("*/runs.csv") if one.exists()]
    return [{file.name: file.read_bytes() for file in one.parent.iterdir()} for one in kept]


@pytest.mark.parametrize("record", ['{"outcome": "ok", "log": null}', "[", '{"outcome": "failed"}'])
def test_a_result_is_copied_once_whatever_its_record_says(record):
    folder, files = measured(cell=record)
    keep_results([cell("s")])
    keep_results([cell("s"), cell("m")])
    assert copies() == [files]
    forget(cell("s"))
    assert list(folder.iterdir()) == []
    assert copies() == [files]


def test_a_copy_with_another_content_is_none():
    """It may be an earlier result's, or somebody else's."""
    other = LOGS / cell("s").path / "20261130T000000.000000Z-1"
    _, files = measured()
    for changed in files:
        shutil.rmtree(LOGS, ignore_errors=True)
        other.mkdir(parents=True)
        theirs = files | {changed: files[changed][:-2] + b"9\n"}
        for name, content in theirs.items():
            (other / name).write_bytes(content)
        keep_results([cell("s")])
        assert sorted(map(str, copies())) == sorted(map(str, [theirs, files]))


def test_a_link_to_a_result_is_no_copy_of_it():
    folder, files = measured()
    own = LOGS / cell("s").path / "20261130T000000.000000Z-1"
    own.mkdir(parents=True)
    for name in files:
        (own / name).symlink_to((folder / name).resolve())
    forget(cell("s"))
    assert files in copies()


def test_what_a_start_of_the_cell_holds_is_not_copied_again():
    _, files = measured()
    own = LOGS / cell("s").path / "20261130T000000.000000Z-1"
    shutil.copytree(Path("results/cells", cell("s").path), own)
    keep_results([cell("s")])
    assert copies() == [files]


def test_a_result_without_a_figure_leaves_no_copy():
    """Such as that of a cell that could not be had, which is tried again each time."""
    measured(memory="t_s\n", runs="commit\n")
    keep_results([cell("s")])
    assert not LOGS.exists()


def test_a_copy_that_cannot_be_written_is_one_line_and_the_result_stays():
    folder, files = measured()
    LOGS.parent.mkdir(exist_ok=True)
    LOGS.write_text("")
    with pytest.raises(UserError, match="no result is lost"):
        forget(cell("s"))
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == files


def start(prompt: str, name: str, **files: str) -> Path:
    folder = Path("results/logs", cell(prompt).path, name)
    folder.mkdir(parents=True)
    for file, text in files.items():
        (folder / file.replace("_", ".")).write_text(text)
    return folder


def test_a_missing_cell_has_the_cause_and_the_log_of_its_last_start():
    end("m", "ok")
    start("s", "20261130T000000.000000Z-1", failure_txt="the old cause\n")
    last = start("s", "20261130T000001.000000Z-2", failure_txt="engine crashed\n")
    need = next(need for need in needs(matrix(), cell("s")) if not need.made.exists())
    need.log.parent.mkdir(parents=True, exist_ok=True)
    need.log.touch()  # made elsewhere, without a word
    told = {m.cell.prompt: (m.cause, m.log) for m in missing_cells(matrix())}
    assert told == {"s": ("engine crashed", last), "l": ("not run yet", None)}


def test_a_cell_that_failed_before_its_engine_says_what_its_record_says():
    """A start of an earlier time has nothing to do with it."""
    file = end("s", "failed") / "cell.json"
    start("s", "20261130T000000.000000Z-1", runs_csv="")
    record = json.loads(file.read_text()) | {"detail": "the prompt is another one", "log": None}
    file.write_text(json.dumps(record, indent=1))
    told = {m.cell.prompt: (m.cause, m.log) for m in missing_cells(matrix())}
    assert told["s"] == ("the prompt is another one", file)
    step = Path("results/logs", file.parent.relative_to("results/cells"), "cell.log")
    step.write_text("the prompt is another one")
    assert next(missing_cells(matrix())).log == step
    file.write_text(file.read_text()[:-2])
    assert "cell.json: expected JSON: " in next(missing_cells(matrix())).cause


def test_a_start_that_was_killed_or_whose_result_was_deleted_says_so():
    start("s", "20261130T000000.000000Z-1")
    start("m", "20261130T000000.000000Z-1", runs_csv="")
    told = {m.cell.prompt: m.cause for m in missing_cells(matrix())}
    assert told["s"] == "stopped before its end"
    assert told["m"] == "not run again since it was deleted"


def test_a_cell_whose_model_could_not_be_made_is_missing_for_that_reason():
    log = Path("results/logs/models/tiny.log")
    log.parent.mkdir(parents=True)
    log.write_text("model tiny: some/model: out of reach\n")
    told = next(missing_cells(matrix()))
    assert told.cause == "models/tiny/model.json was not made: model tiny: some/model: out of reach"
    assert told.log == log
