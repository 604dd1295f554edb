"""What a new user does with a finding of somebody else: import it, and render it here."""

import shutil
import sys
from pathlib import Path

import pytest
import warm
from conftest import ROOT, Project

KVPEAK = Path(sys.executable).with_name("kvpeak")
FINDINGS = "docs/findings"
CPU = f"{FINDINGS}/cpu-2026-12-01"
GPU = f"{FINDINGS}/2026-12-h200"  # rendered again since it was measured: its summary has fewer


ANALYSIS = {"planned", "aggregate", "checks", "fits", "figures", "render", "page", "finding"}


def rendered(finding: str) -> tuple[str, ...]:
    return ("--config", "partial=true", f"matrix={finding}/config/matrix.yaml")


@pytest.fixture
def clone(project) -> Project:
    """A project with the configs and the findings of a checkout, in which nothing was measured."""
    shutil.copytree(ROOT / "config", project.folder / "config", dirs_exist_ok=True)
    for finding in (CPU, GPU):
        shutil.copytree(ROOT / finding, project.folder / finding)
    return project


def imported(project: Project, finding: str = CPU) -> str:
    done = warm.run([KVPEAK, "import", finding], project.folder, project.environment)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.mark.parametrize(
    ("finding", "cells", "tables"),
    [(CPU, 37, ("plan", "runs", "processes", "summary", "checks")), (GPU, 114, ("plan", "runs"))],
)
def test_an_imported_finding_has_the_tables_that_were_published(clone, finding, cells, tables):
    """Without its models, of which only the shapes are needed, and without its GPU. Nothing is
    measured or made.
    """
    said = imported(clone, finding).splitlines()
    assert said[0] == f"cells: {cells} imported"
    assert said[-1].split()[1:] == ["--cores", "1", *rendered(finding)]
    names = [f"results/{name}.csv" for name in tables]
    done = clone.snakemake(*rendered(finding), "--", *names)
    assert done.returncode == 0, done.stdout
    for name in names:
        assert clone.read(name) == clone.read(f"{finding}/{name}"), name
    assert not (clone.folder / "models").exists()
    assert not any(clone.folder.glob("results/logs/**/runs.csv"))  # a copy of what nothing removes
    assert clone.planned(*rendered(finding), "--", *names) == {}


@pytest.mark.slow
def test_an_imported_finding_is_rendered_as_it_was_published(clone):
    imported(clone)
    done = clone.snakemake(*rendered(CPU))
    assert done.returncode == 0, done.stdout
    found = clone.read("report/finding.md").replace(f" MATRIX={CPU}/config/matrix.yaml", "")
    assert found == clone.read(f"{CPU}/finding.md")
    assert (clone.folder / "report/finding.html").exists()


def test_an_import_is_gone_on_with_and_replaces_nothing(clone):
    """It was interrupted after a few cells."""
    imported(clone)
    cells = sorted(file.parent for file in clone.folder.glob("results/cells/**/runs.csv"))
    for cell in cells[:3]:
        shutil.rmtree(cell)
    assert "cells: 3 imported; 34 of their names were here already and stay\n" in imported(clone)


def test_what_another_machine_ran_in_is_made_here_before_anything_is_measured(measured):
    """An environment's record that is the same to the byte has no cell measured again."""
    results = measured.folder / "results"
    theirs = measured.folder / "theirs/results"
    for name in ("cells", "envs", "calibration", "instruments"):
        shutil.copytree(results / name, theirs / name)
        shutil.rmtree(results / name)
    imported(measured, "theirs")
    made = {"environment", "calibration", "instruments"}
    assert made <= measured.planned().keys()
    environment = "results/envs/mlx-0.32.4/environment.json"
    done = measured.snakemake("--", environment)
    assert done.returncode == 0, done.stdout
    assert measured.read(environment) == measured.read(f"theirs/{environment}")
    assert made - {"environment"} <= measured.planned().keys()
    assert not {"environment", "cell"} & measured.planned().keys()


def test_what_measures_nothing_has_no_rule_that_measures_or_makes(measured):
    """Not even where everything is to be made again, or what cells need is gone."""
    assert {"cell", "model"} < measured.planned("--forceall").keys()
    assert measured.planned("--forceall", "--config", "partial=true").keys() == ANALYSIS
    shutil.rmtree(measured.folder / ".snakemake")
    for name in ("models", "results/envs", "results/calibration", "results/instruments"):
        shutil.rmtree(measured.folder / name)
    assert {"cell", "calibration", "environment"} < measured.planned().keys()
    assert measured.planned("--config", "partial=true").keys() <= ANALYSIS
    done = measured.snakemake("-n", "--config", "partial=true", "--", "models/tiny/model.json")
    assert "MissingRule" in done.stdout or "No rule to produce" in done.stdout
