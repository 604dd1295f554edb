"""What a new user does with a finding of somebody else: import it, and render it here."""

import shutil
import sys
from pathlib import Path

import pytest
import warm
from conftest import ROOT, Project

KVPEAK = Path(sys.executable).with_name("kvpeak")
FINDING = "docs/findings/cpu-2026-12-01"
RENDERED = ("--config", "partial=true", f"matrix={FINDING}/config/matrix.yaml", "--")


@pytest.fixture
def clone(project) -> Project:
    """A project with the configs and the finding of a checkout, in which nothing was measured."""
    shutil.copytree(ROOT / "config", project.folder / "config", dirs_exist_ok=True)
    shutil.copytree(ROOT / FINDING, project.folder / FINDING)
    return project


def imported(project: Project) -> str:
    done = warm.run([KVPEAK, "import", FINDING], project.folder, project.environment)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_an_imported_finding_has_the_tables_that_were_published(clone):
    """Without its models, of which only the shapes are needed. Nothing is measured or made."""
    said = imported(clone).splitlines()
    assert said[0] == "cells: 37 imported"
    assert said[-1].split()[1:] == ["--cores", "1", *RENDERED[:-1]]
    names = [f"results/{name}.csv" for name in ("plan", "runs", "processes", "summary", "checks")]
    done = clone.snakemake(*RENDERED, *names)
    assert done.returncode == 0, done.stdout
    for name in names:
        assert clone.read(name) == clone.read(f"{FINDING}/{name}"), name
    assert not (clone.folder / "models").exists()
    assert clone.planned(*RENDERED, *names) == {}


@pytest.mark.slow
def test_an_imported_finding_is_rendered_as_it_was_published(clone):
    imported(clone)
    done = clone.snakemake(*RENDERED[:-1])
    assert done.returncode == 0, done.stdout
    found = clone.read("report/finding.md").replace(f" MATRIX={FINDING}/config/matrix.yaml", "")
    assert found == clone.read(f"{FINDING}/finding.md")
    assert (clone.folder / "report/finding.html").exists()


def test_an_import_is_gone_on_with_and_replaces_nothing(clone):
    """It was interrupted after a few cells."""
    imported(clone)
    cells = sorted(file.parent for file in clone.folder.glob("results/cells/**/runs.csv"))
    for cell in cells[:3]:
        shutil.rmtree(cell)
    assert "cells: 3 imported; 34 of their names were here already and stay\n" in imported(clone)
