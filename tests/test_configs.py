"""Which config is that of the model that was measured, of those that are here now."""

import json
import os
from pathlib import Path

import pytest
from cells import CONFIG, measured_with

from kvpeak.analysis.configs import config_of, configs_of
from kvpeak.base.files import sha256_of

OWN, NAMED = "models/tiny/config.json", "config/models/tiny.json"
OTHER = CONFIG | {"num_hidden_layers": 24}


@pytest.fixture(autouse=True)
def project(tmp_path, monkeypatch) -> None:
    """A model's folder as a step makes it, and the config that the matrix names."""
    monkeypatch.chdir(tmp_path)
    measured_with(Path("models/tiny"), CONFIG)
    write(NAMED, CONFIG | {"named": True})
    files = {"config.json": {"bytes": 1, "sha256": sha256_of(Path(OWN))}}
    write("models/tiny/model.json", {"config_sha256": sha256_of(Path(NAMED)), "files": files})


def write(path: str, value) -> None:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text(json.dumps(value))


def newer(**model) -> dict:
    """The record of a cell that is measured now."""
    inputs = {"shapes_sha256": sha256_of(Path(OWN)), "config_sha256": sha256_of(Path(NAMED))}
    return older(**model) | {"inputs": inputs}


def older(**model) -> dict:
    """The record of a cell that was measured before the hashes of configs were recorded."""
    entry = {"folder": "models/tiny", "config": NAMED} | model
    inputs = {"model_sha256": sha256_of(Path("models/tiny/model.json"))}
    return {"request": {"model": entry}, "inputs": inputs}


EITHER = pytest.mark.parametrize("record_of", [newer, older])


def told(record: dict) -> tuple[list[dict], list[str]]:
    found = configs_of(record)
    return found.found, found.left_out


@EITHER
def test_what_is_as_it_was_measured_is_taken_the_models_own_first(record_of):
    assert told(record_of()) == ([CONFIG, CONFIG | {"named": True}], [])
    assert config_of(record_of()) == CONFIG


@EITHER
def test_a_config_that_was_changed_is_left_out_for_the_one_that_the_matrix_names(record_of):
    record = record_of(quantize={"bits": 4})
    write(OWN, OTHER)
    named = CONFIG | {"named": True, "quantization": {"how": {"bits": 4}}}
    assert told(record) == ([named], [OWN])


@EITHER
def test_a_config_that_was_changed_and_has_no_other_is_named(record_of):
    record = record_of(config=None)
    write(OWN, OTHER)
    assert told(record) == ([], [OWN])
    assert config_of(record) is None


@EITHER
def test_a_changed_config_of_the_matrix_is_not_missed_beside_the_models_own(record_of):
    record = record_of()
    write(NAMED, OTHER)
    assert told(record) == ([CONFIG], [])


@EITHER
def test_two_configs_that_were_changed_are_both_named(record_of):
    record = record_of()
    write(NAMED, OTHER)
    write(OWN, OTHER)
    assert told(record) == ([], [OWN, NAMED])


@EITHER
@pytest.mark.parametrize("content", ["[1]", "{", '{"a": NaN}'])
def test_a_damaged_config_is_none_and_is_named(record_of, content):
    record = record_of(config=None)
    Path(OWN).write_text(content)
    assert told(record) == ([], [OWN])


def test_a_pipe_in_the_place_of_a_config_is_not_waited_for():
    record = newer(config=None)
    Path(OWN).unlink()
    os.mkfifo(OWN)
    assert told(record) == ([], [OWN])


def test_a_config_that_was_damaged_when_it_was_measured_is_not_named():
    Path(OWN).write_text("[1]")
    assert told(newer(config=None)) == ([], [])


def test_another_record_of_the_same_files_costs_nothing_but_what_older_cells_knew_by_it():
    """A later kvpeak may write one more key into model.json."""
    records = newer(config=None), older(config=None)
    write(
        "models/tiny/model.json", json.loads(Path("models/tiny/model.json").read_text()) | {"x": 1}
    )
    assert [told(record) for record in records] == [([CONFIG], []), ([], [OWN])]


def test_an_older_record_believes_no_model_json_that_was_handed_over_with_its_config():
    record = older(config=None)
    write(OWN, OTHER)
    files = {"config.json": {"bytes": 1, "sha256": sha256_of(Path(OWN))}}
    write("models/tiny/model.json", {"config_sha256": None, "files": files})
    assert told(record) == ([], [OWN])


@EITHER
def test_where_the_model_is_not_here_the_config_that_the_matrix_names_is_taken(record_of):
    record = record_of(folder="models/gone")
    assert told(record) == ([CONFIG | {"named": True}], [])


def test_where_the_model_is_not_here_a_newer_record_tells_a_changed_config():
    """An older one cannot."""
    records = newer(folder="models/gone"), older(folder="models/gone")
    write(NAMED, OTHER)
    assert [told(record) for record in records] == [([], [NAMED]), ([OTHER], [])]


@pytest.mark.parametrize(
    "model",
    [
        {"folder": "elsewhere", "config": "../named.json"},
        {"folder": "models/../elsewhere", "config": None},
        {"folder": "models/tiny/../../elsewhere", "config": "/dev/zero"},
    ],
)
def test_nothing_outside_the_project_is_read(model):
    write("elsewhere/config.json", CONFIG)
    write("../named.json", CONFIG)
    assert told(older(**model)) == ([], [])


@pytest.mark.parametrize(
    "record",
    [
        {},
        {"request": []},
        {"request": {"model": {"folder": []}}},
        {"request": {"model": {"folder": "models/tiny"}}, "inputs": [1]},
    ],
)
def test_a_record_of_another_kind_says_nothing(record):
    assert told(record) == ([], [])


def test_model_json_that_says_why_nothing_was_made_knows_no_config():
    write("models/tiny/model.json", {"not_made": {"outcome": "failed", "reason": "no"}})
    assert told(older(config=None)) == ([], [OWN])
