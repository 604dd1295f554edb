"""Publishing a stranger's results: nothing is read from or written to outside the folders that the
command names.
"""

import json
import os
import shutil
from pathlib import Path

import pytest

from kvpeak.base.errors import UserError
from kvpeak.base.layout import cell_folder
from kvpeak.base.untrusted import read_csv
from kvpeak.report.publishing import publish

SMALL = Path(__file__).parents[1] / "data/small"


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A project that can be published, with a key in the home folder beside it."""
    home = tmp_path / "home"
    (home / "project").mkdir(parents=True)
    (home / "key").write_text("secret")
    monkeypatch.chdir(home / "project")
    shutil.copytree(SMALL, "results")
    Path("results/checks.csv").write_text("claim\n")
    Path("report/figures").mkdir(parents=True)
    Path("report/figures/peak.svg").write_text("<svg/>")
    Path("report/figures/figures.json").write_text("[]")
    Path("report/finding.md").write_text("![Peak](figures/peak.svg)\n")
    Path("config").mkdir()
    for name in ("matrix", "expected"):
        Path("config", f"{name}.yaml").write_text("a: 1\n")
    return home / "project"


def published(target: str = "docs/findings/a") -> list[str]:
    return publish(
        Path("config/matrix.yaml"), Path("report/finding.md"), Path("results"), Path(target)
    )


def everything(folder: Path) -> str:
    return "".join(path.read_text() for path in sorted(folder.rglob("*")) if path.is_file())


def refused_and_kept(project: Path) -> str:
    """Publishing is refused in one line, and what was published before is as it was."""
    before = everything(project / "docs/findings/a")
    with pytest.raises(UserError) as raised:
        published()
    assert everything(project / "docs/findings/a") == before
    assert [path.name for path in (project / "docs/findings").iterdir()] == ["a"]
    return str(raised.value)


@pytest.mark.parametrize("path", ["../key", "../../home/key", "/etc/hostname"])
def test_a_figure_from_elsewhere_is_not_copied(project, path):
    published()
    (project / "report/finding.md").write_text(f"![Peak]({path})\n")
    assert "leads out of" in refused_and_kept(project)


def test_a_missing_figure_leaves_what_was_published(project):
    published()
    (project / "report/figures/peak.svg").unlink()
    assert "peak.svg: no such file" in refused_and_kept(project)


@pytest.mark.parametrize(
    "link",
    [
        "report/figures/peak.svg",
        "report/details.md",
        "report/finding.html",
        "config/expected.yaml",
        "results/summary.csv",
        "results/checks.csv",
    ],
)
def test_a_link_out_of_the_folder_is_not_followed(project, link):
    published()
    (project / link).unlink(missing_ok=True)
    (project / link).symlink_to(project.parent / "key")
    assert "leads out of" in refused_and_kept(project)


def test_a_plan_that_names_other_folders_is_refused(project):
    published()
    plan = project / "results/plan.csv"
    rows = plan.read_text()
    plan.write_text(rows.replace("\n", "\n../..", 1))
    assert "leads out of" in refused_and_kept(project)


def test_a_source_of_a_figure_stays_inside(project):
    published()
    described = [{"file": "peak.svg", "sources": ["../../key"]}]
    (project / "report/figures/figures.json").write_text(json.dumps(described))
    assert "leads out of" in refused_and_kept(project)


def test_a_source_behind_a_link_is_copied_to_where_it_lies(project):
    (project / "results/a/b/c/d").mkdir(parents=True)
    (project / "results/deep").symlink_to("a/b/c/d")
    (project / "results/workflow").mkdir()
    (project / "results/workflow/dropped.csv").write_text("a\n")
    described = [{"file": "peak.svg", "sources": ["deep/../../../../workflow/dropped.csv"]}]
    (project / "report/figures/figures.json").write_text(json.dumps(described))
    published()
    assert not (project / "workflow").exists()
    copied = [path for path in project.rglob("dropped.csv") if "docs" in path.parts]
    assert copied == [project / "docs/findings/a/results/workflow/dropped.csv"]


def test_nothing_of_a_persons_is_deleted(project):
    """Beside what is written, in its folders too: what is new there, and what was changed."""
    hands = ("results/notes.txt", "config/my.md", "figures/a/b.svg", "results/pools/mine.csv")
    published()
    target = Path("docs/findings/a")
    for name in hands:
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        (target / name).write_text("mine")
    (target / "figures/peak.svg").write_text("changed by hand")
    (target / "results/key").symlink_to("../../../../key")
    Path("report/finding.md").write_text("no picture\n")
    for _ in range(2):
        kept = {line.removeprefix("kept: ") for line in published()}
        assert kept == {*hands, "figures/peak.svg", "results/key"}
    assert {(target / name).read_text() for name in hands} == {"mine"}
    assert (target / "figures/peak.svg").read_text() == "changed by hand"
    assert (target / "results/key").is_symlink()


def test_a_folder_without_a_list_loses_nothing(project):
    published()
    target = Path("docs/findings/a")
    (target / "SHA256SUMS").unlink()
    Path("report/finding.md").write_text("no picture\n")
    assert published() == ["kept: figures/peak.svg"]
    assert (target / "figures/peak.svg").exists()


@pytest.mark.parametrize("name", ["figures", "results/runs.csv/mine"])
def test_a_file_for_which_there_is_no_place_is_named(project, name):
    target = Path("docs/findings/a")
    (target / name).parent.mkdir(parents=True)
    (target / name).write_text("mine")
    with pytest.raises(UserError, match=f"{name}: something else has its name now"):
        published()
    assert (target / name).read_text() == "mine"


def test_what_is_no_table_and_no_record_is_not_copied(project):
    published()
    (project / "results/run.sh").write_text("true\n")
    described = [{"file": "peak.svg", "sources": ["run.sh"]}]
    (project / "report/figures/figures.json").write_text(json.dumps(described))
    assert "run.sh: expected a table or a record" in refused_and_kept(project)


def test_tables_and_records_are_as_harmless_as_in_the_page(project):
    """Formulas, escape sequences and what turns the direction of text; figures stay as they are."""
    nasty = {"=1+1": "'=1+1", "\x1b[31mred": "\\x1b[31mred", "a\u202eb": "a\\u202eb"}
    figures = ["-1.5", "-2e-05", "0.30000000000000004", ""]
    table = ["=a,b,c,d"]
    table += [f"{text},{text},{figure},1" for text in nasty for figure in figures]
    expected = ["'=a,b,c,d"]
    expected += [f"{text},{text},{figure},1" for text in nasty.values() for figure in figures]
    for name in ("results/replay/curve.csv", "results/pools/a.csv", "results/fits.csv"):
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_text("\n".join(table) + "\n")
    Path("results/calibration").mkdir()
    Path("results/calibration/a.json").write_text('{"a": "\\u001b[31m", "b": "\u202e", "c": -1.5}')
    published()
    target = project / "docs/findings/a/results"
    for name in ("replay/curve.csv", "pools/a.csv", "fits.csv"):
        assert (target / name).read_text() == "\n".join(expected) + "\n"
    found = json.loads((target / "calibration/a.json").read_text())
    assert found == {"a": "\\x1b[31m", "b": "\\u202e", "c": -1.5}


def test_a_table_that_is_none_costs_its_process(project):
    row = read_csv(Path("results/plan.csv"))[0]
    folder = cell_folder(Path("results/cells"), row, row["round"])
    folder.mkdir(parents=True)
    (folder / "cell.json").write_text("{}")
    (folder / "runs.csv").write_text("run\n1,2\n")
    assert [line.split(": ", 2)[2] for line in published()] == [
        "line 2: expected 1 fields separated by commas"
    ]
    copied = [path.name for path in Path("docs/findings/a/results/cells").rglob("*.*")]
    assert "cell.json" in copied and "runs.csv" not in copied


def test_a_pipe_in_the_results_is_refused_and_not_waited_for(project):
    published()
    (project / "results/runs.csv").unlink()
    os.mkfifo(project / "results/runs.csv")
    assert "runs.csv: expected a regular file" in refused_and_kept(project)


def test_a_target_that_is_a_link_is_refused(project):
    (project / "docs/findings").mkdir(parents=True)
    (project / "docs/findings/a").symlink_to(project.parent)
    with pytest.raises(UserError, match="is a link"):
        published()
    assert (project.parent / "key").read_text() == "secret"
