"""kvpeak import of a stranger's folder: only what was measured comes, as new files of its own, and
what is here stays.
"""

import json
import os
import shutil
import stat
import time
from pathlib import Path

import pytest
import stranger
from conftest import ROOT
from stranger import hidden

from kvpeak.analysis import importing
from kvpeak.analysis.roof import roofs
from kvpeak.base import layout
from kvpeak.base.files import write_text
from kvpeak.cli import start
from kvpeak.environments.build import prepared
from kvpeak.experiment.matrix import Matrix
from kvpeak.experiment.preparation import to_be_tried_again
from kvpeak.experiment.status import outcome_of, to_be_skipped
from kvpeak.report.records import Reader, calibrations

PUBLISHED = ROOT / "docs/findings/cpu-2026-12-01/results"
CELL = Path("results/cells/mlx-0.32.4/qwen2-tiny/alice-128/cat/none/laboratory/r1")
OTHER = Path(str(CELL).replace("/cat/", "/prealloc/"))
ENVIRONMENT = Path("results/envs/mlx-0.32.4/environment.json")
CALIBRATION = Path("results/calibration/mlx-0.32.4.json")
COMMITS = ("mlx-0.32.4", "mine")
ALL = {
    *(path / name for path in (CELL, OTHER) for name in ("cell.json", "runs.csv", "memory.csv")),
    *(ENVIRONMENT, CALIBRATION),
}


class Door:
    """A project and a stranger's folder, both in a home folder with a file of mine."""

    def __init__(self, home: Path, capsys):
        self.home, self.capsys = home, capsys
        self.theirs, self.mine = home / "theirs", home / ".bashrc"
        self.mine.write_text("mine\n")

    def run(self, code: int = 0) -> str:
        """What the command says on both streams, of which every character can be seen."""
        assert start(["import", "../theirs"]) == code
        said = self.capsys.readouterr()
        assert not hidden(said.out + said.err)
        assert self.mine.read_text() == "mine\n"
        return said.out + said.err

    def brought(self) -> set[Path]:
        """What is in the project now: each a regular file, made now, that is one of its own."""
        noted = set(layout.IMPORTED.glob("*"))
        assert not any(path.stat().st_size for path in noted)
        found = {path for path in Path().rglob("*") if not path.is_dir() or path.is_symlink()}
        found -= noted
        for path in found - {Path("Snakefile")}:
            said = path.lstat()
            assert stat.S_ISREG(said.st_mode) and said.st_nlink == 1
            assert said.st_mode == self.mine.stat().st_mode
            assert abs(said.st_mtime - time.time()) < 600
            assert path.read_bytes() == (PUBLISHED.parent / path).read_bytes()
            assert all(not part.startswith(".") for part in path.parts)
        return found - {Path("Snakefile")}


@pytest.fixture
def door(tmp_path, monkeypatch, capsys) -> Door:
    for path in ALL:
        (tmp_path / "theirs" / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(PUBLISHED.parent / path, tmp_path / "theirs" / path)
    (tmp_path / "project").mkdir()
    (tmp_path / "project/Snakefile").touch()
    monkeypatch.chdir(tmp_path / "project")
    return Door(tmp_path, capsys)


def test_what_was_measured_comes_byte_for_byte_and_nothing_else(door):
    """Programs, hidden folders, tables, a matrix, models, modes and times stay where they are."""
    wire = door.home / "executed"
    stranger.put_programs(door.theirs / "results", "mlx-0.32.4", wire)
    (door.theirs / ENVIRONMENT).write_bytes((PUBLISHED.parent / ENVIRONMENT).read_bytes())
    for name in (".snakemake/kvpeak.lock", ".kvpeak/made/x", ".venv/bin/python", "config/x.yaml"):
        stranger.tripwire(door.theirs / name, wire)
    for name in ("models/m/model.json", "prompts/m/p.json", "results/summary.csv"):
        stranger.tripwire(door.theirs / name, wire)
    stranger.tripwire(door.theirs / CELL / ".hidden", wire)
    stranger.tripwire(door.theirs / CELL / "sitecustomize.py", wire)
    for path in door.theirs.rglob("*"):
        os.utime(path, (4e9, 4e9))
        path.chmod(0o6777 if path.is_file() else 0o1777)
    said = door.run()
    assert "left out" not in said
    assert said.startswith("cells: 2 imported\nenvironments: 1 imported\ncalibrations: 1 imported")
    assert "  snakemake --cores 1 --config partial=true matrix=THEIRS\n" in said
    assert door.brought() == ALL
    assert not wire.exists()


def test_what_was_imported_is_made_anew_before_a_cell_is_measured_here(door):
    """It is another machine's, whatever it says. It may be what is made here, to the byte."""
    record = Path("results/engines/x/engine.json")
    write_text(door.theirs / record, "{}")
    door.run()
    assert all(to_be_tried_again(path) for path in (ENVIRONMENT, CALIBRATION, record))
    honest = ENVIRONMENT.read_bytes()
    prepared("mlx-0.32.4", json.loads(honest)["packages"])
    assert ENVIRONMENT.read_bytes() != honest  # its own: another machine had other packages
    made = ENVIRONMENT.read_bytes()
    for path in (ENVIRONMENT, door.theirs / ENVIRONMENT):
        path.unlink()
    write_text(door.theirs / ENVIRONMENT, made.decode())
    door.run()
    assert to_be_tried_again(ENVIRONMENT)
    prepared("mlx-0.32.4", json.loads(honest)["packages"])
    assert ENVIRONMENT.read_bytes() == made and not to_be_tried_again(ENVIRONMENT)


@pytest.mark.parametrize("same_name", [True, False])
def test_a_roof_that_was_imported_is_not_that_of_this_machine(door, same_name):
    """Thousands of rented machines have one name; of a machine without a calibration here it is
    the roof of its own cells.
    """
    door.run()
    theirs = json.loads(CALIBRATION.read_text())
    assert roofs(calibrations(Path("results"), COMMITS, Reader()))[theirs["machine"]].flops
    machine = theirs["machine"] if same_name else "another"
    mine = theirs | {"machine": machine, "dtypes": {"float32": {"flops": 5e9, "sgemv": 1e9}}}
    write_text(CALIBRATION.with_name("mine.json"), json.dumps(mine))
    found = roofs(calibrations(Path("results"), COMMITS, Reader()))
    assert found[machine].flops == {"float32": 5e9}
    assert found.keys() == {machine, theirs["machine"]}


def test_an_imported_cell_that_did_not_fit_elsewhere_skips_nothing_here(door):
    """The same record, where it was measured here, does."""
    for name in ("config/models/qwen2-tiny.json", "prompts/alice.txt"):
        write_text(Path(name), (ROOT / name).read_text())
    prompts = {"alice-128": {"tokens": 129}, "alice-256": {"tokens": 257}}
    axes = {"kv_caches": ["cat"], "caps": ["none"], "variants": {"laboratory": {}}}
    model = {"kind": "random", "config": "config/models/qwen2-tiny.json"}
    written = {"commits": {"mlx-0.32.4": {"engine": "mlx"}}, "models": {"qwen2-tiny": model}}
    matrix = Matrix(written | {"prompts": prompts} | axes, "matrix.yaml")
    cell = matrix.cell(str(CELL.relative_to("results/cells")))
    file = door.theirs / CELL / "cell.json"
    said = json.loads(file.read_text()) | {"outcome": "oom", "request": matrix.request(cell)}
    file.write_text(json.dumps(said))
    door.run()
    assert outcome_of(cell) == "oom" and not to_be_skipped(matrix)
    shutil.rmtree(layout.IMPORTED)
    assert len(to_be_skipped(matrix)) == 1


def test_what_is_here_stays(door):
    """Also half a result, and a record of another machine."""
    shutil.copytree(door.theirs / "results", "results")
    Path(CALIBRATION).write_text("{}")
    Path(CELL, "runs.csv").unlink()
    before = stranger.everything(Path("results"))
    said = door.run()
    assert "cells: 0 imported; 2 of their names were here already and stay, 1 of them not" in said
    assert "environments: 0 imported; 1 of their names were here already and stay\n" in said
    assert "calibrations: 0 imported; 1 of their names were here already and stay, 1 of" in said
    assert stranger.everything(Path("results")) == before


LINKS = {
    "the folder of results": "results",
    "the cells": "results/cells",
    "a name on an axis": CELL.parents[4],
    "a round": CELL,
    "a record": CELL / "cell.json",
    "a table": CELL / "runs.csv",
    "a timeline": CELL / "memory.csv",
    "an environment": ENVIRONMENT,
    "a calibration": CALIBRATION,
}


@pytest.mark.parametrize("case", LINKS)
def test_nothing_is_read_through_a_link(door, case):
    """It leads to an honest result of mine, which would come into a folder that is passed on."""
    link = door.theirs / LINKS[case]
    link.rename(door.home / "private")
    link.symlink_to(door.home / "private")
    said = door.run(code=1 if case == "the folder of results" else 0)
    alone = CELL if CELL in Path(LINKS[case]).parents else Path(LINKS[case])  # a process is whole
    assert door.brought() == {path for path in ALL if not path.is_relative_to(alone)}
    assert case == "the folder of results" or "leads out of" in said


CHANGED = {"a file": CELL / "memory.csv", "a folder": CELL, "a record": CALIBRATION}


@pytest.mark.parametrize("case", CHANGED)
@pytest.mark.parametrize("when", ["before it is read", "while it is looked at"])
def test_what_becomes_a_link_meanwhile_is_not_followed(door, monkeypatch, case, when):
    """Somebody else may write into the folder, and sees what is read there."""
    secret = door.home / "private"
    shutil.copytree(door.theirs / "results", secret / "results")
    for file in (secret / CELL / "memory.csv", secret / CALIBRATION):
        file.write_text(file.read_text().replace("1", "2"))
    place = "unlinked" if when == "before it is read" else "read_bytes"
    known, link = getattr(importing, place), door.theirs / CHANGED[case]

    def changed(*given):
        found = known(*given)
        parts = [part for part in given if isinstance(part, Path)]
        if CHANGED[case].parts[-1] in parts[-1].parts and not link.is_symlink():
            link.rename(door.home / "away")
            link.symlink_to(secret / CHANGED[case])
        return found

    monkeypatch.setattr(importing, place, changed)
    said = door.run()
    alone = CELL if case != "a record" else CALIBRATION
    refused = place == "unlinked" or case == "a folder"  # of which only one file was read by then
    gone = {path for path in ALL if path.is_relative_to(alone)} if refused else set()
    assert (said.count("left out: ") == 1) == bool(gone)
    assert door.brought() == ALL - gone  # each as it was before


def test_nothing_is_written_through_a_link(door):
    """One that is in the project already."""
    (door.home / "elsewhere").mkdir()
    Path("results/cells").mkdir(parents=True)
    Path("results/cells/mlx-0.32.4").symlink_to(door.home / "elsewhere")
    assert "results/cells/mlx-0.32.4: a link that leads out of results" in door.run(code=1)
    shutil.rmtree("results")
    (door.home / "elsewhere/yours").touch()
    Path("results").symlink_to(door.home / "elsewhere")
    assert "results: a link to " in door.run(code=1)
    assert [path.name for path in (door.home / "elsewhere").iterdir()] == ["yours"]


def test_a_hard_link_becomes_a_file_of_its_own(door):
    for path in (CELL / "runs.csv", CALIBRATION):
        (door.home / path.name).hardlink_to(door.theirs / path)
    (door.theirs / OTHER / "cell.json").unlink()
    (door.theirs / OTHER / "cell.json").hardlink_to(door.mine)
    assert "cell.json: expected JSON" in door.run()
    assert door.brought() == {path for path in ALL if OTHER not in path.parents}


DAMAGE = {
    "a pipe": (os.mkfifo, "expected a regular file"),
    "a folder": (os.mkdir, "expected a regular file"),
    "a hole of a tebibyte": (lambda path: (path.touch(), os.truncate(path, 1 << 40)), "larger"),
    "no text": (lambda path: path.write_bytes(b"\xff"), "is not UTF-8"),
    "escapes": (lambda path: path.write_text("\x1b]0;owned\x07\u202e"), ": "),
    "a field without end": (lambda path: path.write_text("a\n" + "b" * (2 << 20)), ": "),
}


@pytest.mark.parametrize("name", ["cell.json", "runs.csv", "memory.csv"])
@pytest.mark.parametrize("case", DAMAGE)
def test_what_is_damaged_is_left_out_and_the_others_come(door, case, name):
    put, said = DAMAGE[case]
    (door.theirs / CELL / name).unlink()
    put(door.theirs / CELL / name)
    (line,) = [line for line in door.run().splitlines() if line.startswith("left out: ")]
    assert said in line and f"{CELL}/{name}" in line
    assert door.brought() == {path for path in ALL if CELL not in path.parents}


@pytest.mark.parametrize("record", [ENVIRONMENT, CALIBRATION])
@pytest.mark.parametrize("case", DAMAGE)
def test_a_damaged_record_is_left_out_and_the_others_come(door, case, record):
    put, said = DAMAGE[case]
    (door.theirs / record).unlink()
    put(door.theirs / record)
    (line,) = [line for line in door.run().splitlines() if line.startswith("left out: ")]
    assert said in line and str(record) in line
    assert door.brought() == ALL - {record}


NAMES = {
    "hidden": (CELL, ".r1", "expected a round, such as r1"),
    "another spelling of a round": (CELL, "r01", "expected a round, such as r1"),
    "escapes": (CELL.parents[1], "\x1b]0;owned\x07", "expected a name on an axis"),
    "a direction": (CELL.parents[2], "a\u202eb", "expected a name on an axis"),
    "an option": (CELL.parents[3], "-n", "expected a name on an axis"),
    "a full letter": (CELL.parents[5], "ｍlx", "expected a name on an axis"),
    "one too long to be written": (CALIBRATION, "x" * 250 + ".json", "expected a name on an axis"),
    "a hidden record": (CALIBRATION, ".x.json", "expected a name on an axis"),
    "a record of another kind": (CALIBRATION, "x.pkl", "expected a name on an axis"),
}


@pytest.mark.parametrize("case", NAMES)
def test_what_has_no_name_of_an_axis_is_left_out(door, case):
    path, name, said = NAMES[case]
    (door.theirs / path).rename((door.theirs / path).with_name(name))
    (line,) = [line for line in door.run().splitlines() if line.startswith("left out: ")]
    assert line.endswith(said)
    assert door.brought() == {each for each in ALL if not each.is_relative_to(path)} - {path}


@pytest.mark.parametrize("how", ["another cell's", "another round's", "another spelling"])
def test_a_record_in_another_cells_folder_is_left_out(door, how):
    """On a disk that knows no capitals two spellings are one folder."""
    there = {
        "another cell's": str(CELL).replace("/none/", "/default/"),
        "another round's": CELL.with_name("r2"),
        "another spelling": str(CELL).replace("/cat/", "/CAT/"),
    }[how]
    shutil.copytree(door.theirs / CELL, door.theirs / there)
    (line,) = [line for line in door.run().splitlines() if line.startswith("left out: ")]
    assert "whose folder it is" in line
    assert door.brought() == ALL


def test_a_folder_that_may_not_be_listed_is_left_out(door, monkeypatch):
    """What is in it cannot be found; what somebody knows in it is not looked for."""
    closed, listed = door.theirs / CELL.parents[2], os.scandir

    def scandir(folder):
        if not isinstance(folder, int) and Path(folder).resolve() == closed:  # one may be root
            raise PermissionError(13, "Permission denied", str(folder))
        return listed(folder)

    monkeypatch.setattr(os, "scandir", scandir)
    (line,) = [line for line in door.run().splitlines() if line.startswith("left out: ")]
    assert "Permission denied; expected a folder that can be listed" in line
    assert door.brought() == {path for path in ALL if CELL not in path.parents}


@pytest.mark.parametrize("what", ["nothing", "an empty folder", "tables"])
def test_a_folder_with_nothing_in_it_is_one_line(door, what):
    shutil.rmtree(door.theirs / "results")
    if what != "nothing":
        (door.theirs / "results").mkdir()
    if what == "tables":
        (door.theirs / "results/summary.csv").write_text("commit\n")
    said = door.run(code=1)
    assert said.count("\n") == 1 and said.startswith("kvpeak import: ../theirs")


def test_outside_a_project_nothing_is_made(door):
    Path("Snakefile").unlink()
    assert door.run(code=1).startswith("kvpeak import: Snakefile: not here; expected to be started")
    assert not any(Path().iterdir())


def test_a_record_that_names_no_cell_is_left_out(door):
    said = json.loads((door.theirs / CELL / "cell.json").read_text())
    (door.theirs / CELL / "cell.json").write_text(json.dumps(said | {"cell": {}}))
    assert "cell.json: commit: None: expected mlx-0.32.4" in door.run()
    assert door.brought() == {path for path in ALL if CELL not in path.parents}
