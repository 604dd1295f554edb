"""kvpeak publish as it is called: a folder that reads well on its own."""

import json
import shutil
from pathlib import Path

import pytest

from kvpeak.base.files import sha256_of
from kvpeak.cli import start

SMALL = Path(__file__).parent / "data/small"
CELL = "results/cells/mlx-0.32.4/tiny/alice-512/cat/none/default/r1"
OTHER = CELL.replace("none", "32MiB")  # in no figure over time
SECOND = CELL.replace("/r1", "/r2")
FINDING = r"""# A finding

![Peak \[MiB\], (RSS) 1 → 2.](figures/peak.svg)

![Predicted.](../results/replay/curve.svg)

See [below](#below).
"""


@pytest.fixture
def project(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(SMALL, "results")
    for name in ("report/figures/peak.svg", "results/replay/curve.svg"):
        Path(name).parent.mkdir(parents=True)
        Path(name).write_text(f"<svg>{name}</svg>")
    Path("report/finding.md").write_text(FINDING)
    Path("results/checks.csv").write_text("claim\n")
    Path("results/processes.csv").write_text("commit\n")
    Path("results/replay/cells.csv").write_text("a\n")
    Path(CELL).mkdir(parents=True)
    Path(CELL, "cell.json").write_text(json.dumps({"outcome": "ok"}, indent=1))
    Path(CELL, "runs.csv").write_text("run\n")
    for cell in (CELL, OTHER, SECOND):
        Path(cell).mkdir(parents=True, exist_ok=True)
        Path(cell, "memory.csv").write_text("t_s\n")
    drawn = [{"file": "peak.svg"}, {"file": "time.svg", "sources": [f"{CELL[8:]}/memory.csv"]}]
    Path("report/figures/figures.json").write_text(json.dumps(drawn))
    Path("config").mkdir()
    for name in ("matrix", "expected"):
        Path("config", f"{name}.yaml").write_text(f"{name}: small\n")
    return tmp_path


def run(*arguments):
    return start(["publish", *arguments])


def test_the_document_and_all_that_it_rests_on_are_copied(project):
    assert run("a") == 0
    target = project / "docs/findings/a"
    found = {path.relative_to(target).as_posix() for path in target.rglob("*") if path.is_file()}
    names = ("plan", "runs", "processes", "summary", "checks")
    tables = {f"results/{name}.csv" for name in names}
    assert found == tables | {
        "finding.md",
        "figures/peak.svg",
        "figures/curve.svg",
        "results/replay/cells.csv",
        f"{CELL}/cell.json",
        f"{CELL}/runs.csv",
        f"{CELL}/memory.csv",
        f"{OTHER}/memory.csv",
        "config/matrix.yaml",
        "config/expected.yaml",
        "SHA256SUMS",
    }
    lines = [line.split("  ") for line in (target / "SHA256SUMS").read_text().splitlines()]
    assert {name: sha256_of(target / name) for _, name in lines} == {n: sum for sum, n in lines}
    assert {name for _, name in lines} == found - {"SHA256SUMS"}
    assert json.loads((target / CELL / "cell.json").read_text()) == {"outcome": "ok"}


def test_another_matrix_brings_its_own_claims(project):
    Path("config").rename("cuda")
    assert run("a", "--matrix", "cuda/matrix.yaml") == 0
    target = project / "docs/findings/a/config"
    assert (target / "expected.yaml").read_text() == "expected: small\n"


def test_only_the_links_to_figures_change(project):
    run("a")
    text = (project / "docs/findings/a/finding.md").read_text()
    assert text == FINDING.replace("../results/replay/curve.svg", "figures/curve.svg")


def test_a_second_time_leaves_nothing_of_the_first(project):
    """A cell that is no longer in the plan, a figure that is no longer shown."""
    run("a")
    gone = [Path("docs/findings/a", name) for name in ("figures/peak.svg", CELL, OTHER)]
    assert all(path.exists() for path in gone)
    Path("report/finding.md").write_text("# None\n")
    Path("report/figures/figures.json").write_text("[]")
    plan = Path("results/plan.csv")
    plan.write_text(plan.read_text().split("\n")[0] + "\n")
    run("a")
    assert not any(path.exists() for path in gone)


def test_what_was_written_by_hand_stays(project):
    run("a")
    Path("docs/findings/a/README.md").write_text("by hand")
    Path("docs/findings/a/earlier").mkdir()
    Path("docs/findings/a/earlier/cells.tar.xz").write_bytes(b"\xfd7z")
    Path("docs/findings/a/link").symlink_to("/etc/hostname")
    run("a")
    assert Path("docs/findings/a/README.md").read_text() == "by hand"
    assert Path("docs/findings/a/earlier/cells.tar.xz").read_bytes() == b"\xfd7z"
    assert Path("docs/findings/a/link").is_symlink()


def test_without_a_finding_it_is_one_line(project, capsys):
    Path("report/finding.md").unlink()
    assert run("a") == 1
    assert capsys.readouterr().err == (
        "kvpeak publish: report/finding.md: no such file; make it: make finding\n"
    )
    assert not Path("docs").exists()


@pytest.mark.parametrize("name", ["../a", "a/b", "", ".a"])
def test_a_name_stays_below_the_folder(project, name, capsys):
    assert run(name) == 2
    assert "expected letters, digits" in capsys.readouterr().err
