"""A stranger's folder of results: every command that reads it reads it, nothing of it is executed,
nothing is written outside, and terminal and page show plain text.
"""

import copy
import csv
import json
import os
import re
import shlex
import shutil
import stat
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from xml.dom import minidom

import pytest
import stranger
import warm
import yaml
from conftest import TINY_MATRIX, Project
from stranger import EVIL, hidden

from kvpeak.analysis.aggregate import gather, read_plan
from kvpeak.analysis.results import read_results, read_table
from kvpeak.analysis.series import _read
from kvpeak.base.axes import AXES
from kvpeak.base.columns import REPLAY, RUNS
from kvpeak.base.errors import UserError
from kvpeak.base.files import check_contents, sha256_of, write_text
from kvpeak.base.layout import PLAN, environment_record, local_copy
from kvpeak.base.made import tried_again
from kvpeak.base.program import main
from kvpeak.base.roots import check_own, check_root
from kvpeak.base.untrusted import MOST_JSON, MOST_PARTS, open_root, read_text
from kvpeak.cli import start
from kvpeak.commands import page as page_command
from kvpeak.experiment.matrix import Matrix
from kvpeak.experiment.preparation import lacks_its_programs, to_be_tried_again
from kvpeak.experiment.requests import asked_otherwise
from kvpeak.report.markdown import escape
from kvpeak.report.page import page
from kvpeak.report.page_data import SHOWN, _timeline, name_of, read_tables
from kvpeak.report.page_links import Links
from kvpeak.report.page_text import to_html

KVPEAK = Path(sys.executable).with_name("kvpeak")
TABLES = ("plan.csv", "summary.csv", "processes.csv", "runs.csv")
TEXTS = (
    *("detail", "flags", "machine", "versions", "loop", "attention", "env", "blas", "gpu"),
    *("energy_source", "harness", "dirty", "peak_source", "weights", "started_at"),
)


class Home:
    """A home folder with a project in it, whose results are a stranger's."""

    def __init__(self, project: Project, folder: Path):
        self.folder, self.wire = folder, folder / "executed"
        self.project = Project(folder / "project")
        shutil.move(project.folder, self.project.folder)
        self.mine = folder / ".bashrc"
        self.mine.write_text("mine\n")
        self.results = self.project.folder / "results"

    def run(self, *command: object, code: int = 0) -> str:
        """What a program says on both streams, of which every character can be seen."""
        environment = self.project.environment | {"HOME": str(self.folder)}
        done = warm.run([*command], self.project.folder, environment)
        said = done.stdout + done.stderr
        assert done.returncode == code, said
        assert "Traceback" not in said
        assert not hidden(said), said
        return said

    def kvpeak(self, *arguments: object, code: int = 0) -> str:
        return self.run(KVPEAK, *arguments, code=code)

    def step(self, name: str, *arguments: object) -> str:
        return self.run(sys.executable, f"workflow/scripts/{name}.py", *arguments)

    def snakemake(self, *arguments: str, code: int = 0) -> str:
        return self.run(*self.project.command("--config", "partial=true", *arguments), code=code)

    def cells(self) -> list[Path]:
        return sorted(file.parent for file in self.results.glob("cells/**/cell.json"))

    def unharmed(self) -> None:
        """Nothing was executed, and nothing was written outside the project."""
        assert not self.wire.exists()
        assert self.mine.read_text() == "mine\n"
        found = {path.name for path in self.folder.iterdir()}
        assert found <= {"project", ".bashrc", ".cache", ".config"}  # of matplotlib


@pytest.fixture
def home(measured, tmp_path) -> Home:
    (tmp_path / "home").mkdir()
    return Home(measured, tmp_path / "home")


def shown(text: str) -> str:
    """What a page shows besides the scripts that make its charts and tables work."""
    return re.sub(r"<(script|style)[^>]*>.*?</\1>", "", text, flags=re.DOTALL)


def plain_documents(home: Home) -> None:
    """Every document and table that was made holds plain text, no link, no formula."""
    folder = home.project.folder
    made = [
        *folder.glob("*.md"),
        *folder.glob("*.csv"),
        *folder.glob("report/*.*"),
        *folder.glob("report/figures/*"),
        *(file for file in folder.glob("docs/**/*") if file.is_file()),
    ]
    assert len(made) > 10
    for file in made:
        if file.is_symlink():
            continue
        text = shown(file.read_text(encoding="utf-8"))
        assert not hidden(text), file
        if file.suffix == ".html":
            assert "<script" not in text and 'href="javascript' not in text
            assert not re.search(r"(href|src)=.http://evil", text)
        if file.suffix == ".csv":
            fields = [field for row in csv.reader(text.splitlines()) for field in row]
            assert not [field for field in fields if re.match(r"[=@]|[+-](?![\d.])", field)], file


def test_a_strangers_results_are_read_and_nothing_of_them_is_executed(home):
    """An interpreter, a mirror, links, surrogates, formulas, escapes, damage: all at once."""
    stranger.put_programs(home.results, "mlx-0.31.1", home.wire)
    stranger.put_links(home.project.folder, home.mine)
    first, *others = home.cells()
    stranger.put_text(first / "cell.json")
    stranger.put_damage(others)
    said = home.step("aggregate")
    assert "engine.method: ['live']: expected text; delete results/cells/" in said
    assert "cell.json: nested too deeply; delete results/cells/" in said
    for name in ("plot", "render", "page"):
        home.step(name)
    home.kvpeak("compare", "results", "results")
    home.kvpeak("compare", "results", "results", "--out", "comparison.csv")
    home.kvpeak("failed")
    assert "left out: " in home.kvpeak("publish", "a")
    home.kvpeak("compare", "docs/findings/a/results", "results", "--out", "comparison.md")
    assert "remove it" in home.snakemake("--report", "report.html", code=1)
    for folder in (home.results, home.results.with_name("report")):
        stranger.take_away_what_is_no_file(folder)
    home.snakemake("--report", "report.html")
    assert "evil.example/x)" not in shown(home.project.read("report.html"))
    plain_documents(home)
    home.unharmed()


def test_a_strangers_tables_are_plain_text_wherever_they_are_shown(home):
    """Without the records that they were made from: every text of theirs, and a column's name."""
    text = EVIL.replace("\ud800", "")
    for name in TABLES:
        with (home.results / name).open(newline="") as file:
            rows = list(csv.DictReader(file))
        rows = [row | dict.fromkeys(row.keys() & set(TEXTS), text) | {text: text} for row in rows]
        with (home.results / name).open("w", newline="") as file:
            writer = csv.DictWriter(file, rows[0])
            writer.writeheader()
            writer.writerows(rows)
    for name in ("plot", "render", "page"):
        home.step(name)
    home.kvpeak("compare", "results", "results")
    home.kvpeak("compare", "results", "results", "--out", "comparison.csv")
    home.kvpeak("publish", "a")
    shutil.rmtree(home.project.folder / "docs/findings/a/results")  # as the stranger wrote them
    plain_documents(home)


def test_names_that_are_formulas_for_a_figure_are_text(home):
    """Dollars begin a formula in the library that draws."""
    for name in TABLES:
        table = home.results / name
        table.write_text(table.read_text().replace(",tiny,", ",$\\frac{$,"))
    home.step("plot")
    for figure in home.project.folder.glob("report/figures/*.svg"):
        minidom.parse(str(figure))


@pytest.mark.parametrize("how", ["in the folder", "in the folder, a pipe", "in a variable"])
def test_figures_are_drawn_from_our_settings_alone(home, how):
    """matplotlib reads those of the current folder first, while it is imported."""
    figures = {file.name: file.read_bytes() for file in home.results.glob("../report/figures/*")}
    settings = home.project.folder / "matplotlibrc"
    if how.endswith("a pipe"):
        os.mkfifo(settings)
    else:
        settings.write_text("backend: module://evil\nlines.linewidth: 9\nsvg.hashsalt: x\n")
    environment = home.project.environment | {"HOME": str(home.folder)}
    if how == "in a variable":
        settings.rename(home.folder / "theirs")
        environment["MATPLOTLIBRC"] = str(home.folder / "theirs")
    done = subprocess.run(
        [sys.executable, "workflow/scripts/plot.py"],
        cwd=home.project.folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    drawn = {file.name: file.read_bytes() for file in home.results.glob("../report/figures/*")}
    assert drawn == figures and len(figures) > 2


@pytest.mark.parametrize("name", [name_of(table) for table in SHOWN])
def test_a_table_that_is_a_link_to_a_secret_is_in_no_page(tmp_path, name):
    """Any text without a comma is a table of one column."""
    key = tmp_path / "key"
    key.write_text("-----BEGIN PRIVATE KEY-----\nc2VjcmV0\n")
    table = tmp_path / "theirs/results" / name
    table.parent.mkdir(parents=True)
    table.symlink_to(key)
    with pytest.raises(UserError, match="leads out of "):
        tables_of(tmp_path / "theirs/results")
    with pytest.raises(UserError, match="leads out of "):
        read_table(table)


@pytest.mark.parametrize("linked", ["report", "results"])
def test_a_finding_or_results_that_are_a_link_are_in_no_page(tmp_path, monkeypatch, capsys, linked):
    for name in ("mine/report", "mine/results", "theirs/report", "theirs/results"):
        (tmp_path / name).mkdir(parents=True)
    for whose in ("mine", "theirs"):
        (tmp_path / whose / "report/finding.md").write_text(f"# {whose}\n")
    shutil.rmtree(tmp_path / "theirs" / linked)
    (tmp_path / "theirs" / linked).symlink_to(tmp_path / "mine" / linked)
    monkeypatch.chdir(tmp_path)
    paths = ["--finding", "theirs/report/finding.md", "--results", "theirs/results"]
    assert main(page_command, [*paths, "--out", "x.html"]) == 1
    assert f"theirs/{linked}: a link; expected a folder" in capsys.readouterr().err
    assert not Path("x.html").exists()


@pytest.mark.parametrize("name", ["memory.csv", "cell.json"])
def test_a_file_of_a_cell_that_is_a_link_is_in_no_page_and_no_prediction(home, monkeypatch, name):
    """It leads to what I measured in private: the samples of a page, and a machine's memory."""
    first, *_ = home.cells()
    private = home.folder / ".cache" / name
    private.parent.mkdir(exist_ok=True)
    (first / name).rename(private)
    monkeypatch.chdir(home.project.folder)
    results = read_results(*(f"results/{each}.csv" for each in ("plan", "summary", "runs")))
    row = results.summary[first.relative_to(home.results / "cells").parts[:-1]]
    (first / name).write_bytes(private.read_bytes())
    found = (samples_of(Path("results"), row), _read(Path("results/cells"), row))
    (first / name).unlink()
    (first / name).symlink_to(private)
    at = ("memory.csv", "cell.json").index(name)
    assert (
        found[at] and not (samples_of(Path("results"), row), _read(Path("results/cells"), row))[at]
    )


PAGE = {
    "a table": "results/fits.csv",
    "a folder of tables": "results/replay",
    "samples": "results/cells/a/b/c/d/e/f/r1/memory.csv",
    "a folder of samples": "results/cells/a/b",
    "a picture": "figures/one.svg",
    "a folder of pictures": "figures",
    "a picture of the results": "results/figures/two.svg",
    "the finding": "finding.md",
    "its details": "details.md",
    "the results": "results",
}


def _shown(theirs: Path) -> None:
    """Each reader of a page, of a folder in which every name of PAGE is there."""
    results, row = theirs / "results", dict(zip(AXES, "abcdef", strict=True))
    for name in ("finding.md", "details.md"):
        read_text(theirs / name, root=theirs)
    text = "![x](figures/one.svg) ![x](results/figures/two.svg)"
    with open_root(theirs) as folder, open_root(results) as root:
        shown = [to_html(text, folder, Links([], {}), results=root), str(read_tables(root))]
        samples = _timeline(root, row | {"accelerator": None})
    assert SECRET not in "".join(shown) + str(samples)
    if not samples:
        raise UserError("samples that are a link are left out")


@pytest.mark.parametrize("case", PAGE)
def test_what_becomes_a_link_meanwhile_is_in_no_page(tmp_path, monkeypatch, case):
    """Another user, who may write into the folder, waits until it was looked at."""
    for name in ("theirs", "mine"):
        _fill(tmp_path / name, "1" if name == "theirs" else SECRET)
    theirs, link = tmp_path / "theirs", tmp_path / "theirs" / PAGE[case]
    _shown(theirs)  # as long as nobody changes it
    opened = os.open

    def changed(path, flags, *given, **named):
        if not link.is_symlink() and Path(path).name == Path(PAGE[case]).parts[-1]:
            link.rename(tmp_path / "away")
            link.symlink_to(tmp_path / "mine" / PAGE[case])
        return opened(path, flags, *given, **named)

    monkeypatch.setattr(os, "open", changed)
    with pytest.raises(UserError, match="link"):
        _shown(theirs)
    assert link.is_symlink()


def test_a_link_that_comes_and_goes_is_in_no_page(tmp_path):
    """A file and a link to a secret take turns under one name while pages are made."""
    for name in ("theirs", "mine"):
        _fill(tmp_path / name, "1" if name == "theirs" else SECRET)
    name, ended = tmp_path / "theirs/results/fits.csv", threading.Event()

    def take_turns():
        name.rename(tmp_path / "file")
        (tmp_path / "link").symlink_to(tmp_path / "mine/results/fits.csv")
        while not ended.is_set():
            for other in ("link", "file"):
                (tmp_path / other).rename(name)
                name.rename(tmp_path / other)

    thread = threading.Thread(target=take_turns)
    thread.start()
    try:
        for _ in range(2_000):
            with suppress(UserError):
                assert SECRET not in str(tables_of(tmp_path / "theirs/results"))
    finally:
        ended.set()
        thread.join()


@pytest.mark.parametrize("above", ["results", ""], ids=["results", "the folder above"])
def test_a_folder_that_is_renamed_meanwhile_is_read_on_or_refused(tmp_path, above):
    """A link to mine takes its place after it was opened: what is read is theirs, or nothing."""
    for name in ("theirs", "mine"):
        _fill(tmp_path / name, "1" if name == "theirs" else SECRET)
    theirs, row = tmp_path / "theirs", dict(zip(AXES, "abcdef", strict=True))
    table = theirs / "results/fits.csv"
    with open_root(theirs) as folder, open_root(theirs / "results") as root:
        (theirs / above).rename(tmp_path / "away")
        (theirs / above).symlink_to(tmp_path / "mine" / above)
        found = [read_table(table, root=root).to_csv(), _timeline(root, row | {"accelerator": ""})]
        for read in (
            lambda: to_html("![x](results/figures/two.svg)", folder, Links([], {}), results=root),
            lambda: read_tables(root),
        ):
            with suppress(UserError):
                found.append(read())
    assert "1" in found[0] and SECRET not in str(found)


def tables_of(results: Path) -> dict:
    with open_root(results) as root:
        return read_tables(root)


def samples_of(results: Path, row: dict) -> list:
    with open_root(results) as root:
        return _timeline(root, row)


SECRET = "987654"


def _fill(folder: Path, number: str) -> None:
    for name in PAGE.values():
        file = folder / name
        if file.suffix:
            file.parent.mkdir(parents=True, exist_ok=True)
            table = f"t_s,footprint_mib\n0,{number}\n"
            file.write_text(table if file.suffix == ".csv" else number)
    (folder / "results/replay").mkdir()
    for table in REPLAY:
        (folder / "results" / name_of(table)).write_text(f"x\n{number}\n")


def test_a_folder_of_all_cells_that_is_a_link_is_in_no_page_and_no_prediction(home, monkeypatch):
    monkeypatch.chdir(home.project.folder)
    results = read_results(*(f"results/{each}.csv" for each in ("plan", "summary", "runs")))
    row = results.summary[home.cells()[0].relative_to(home.results / "cells").parts[:-1]]
    assert samples_of(Path("results"), row) and _read(Path("results/cells"), row)
    (home.folder / ".cache").mkdir(exist_ok=True)
    (home.results / "cells").rename(home.folder / ".cache/cells")
    (home.results / "cells").symlink_to(home.folder / ".cache/cells")
    assert not samples_of(Path("results"), row) and not _read(Path("results/cells"), row)


def test_a_plan_that_names_records_of_elsewhere_is_refused(home):
    """Such as those of another project, as if they were of these cells."""
    plan, other = home.results / "plan.csv", home.folder / ".config"
    shutil.copytree(home.results, other / "results")
    rows = plan.read_text()
    for path in (f"{other}/results/cells", "results/../../.config/results/cells", "results/logs"):
        plan.write_text(rows.replace("results/cells", path, 1))
        said = home.run(sys.executable, "workflow/scripts/aggregate.py", code=1)
        assert said.startswith(f"aggregate: results/plan.csv: path: {path}/")
        assert "expected results/cells/" in said
    plan.write_text(rows)
    moved = home.cells()[0]
    shutil.move(moved, other / "r1")
    moved.symlink_to(other / "r1")
    assert "leads out of" in home.run(sys.executable, "workflow/scripts/aggregate.py", code=1)


@pytest.mark.parametrize(
    ("table", "column", "said"),
    [
        ("processes.csv", "round", "processes.csv: line 2: round: expected a value"),
        ("summary.csv", "outcome", "summary.csv: line 2: outcome: expected a value"),
        ("summary.csv", "method", ""),
        ("summary.csv", "rounds", " default: rounds: empty"),
        ("summary.csv", "runs", " default: runs: empty"),
        ("summary.csv", "prompt_tokens", " default: prompt_tokens: empty"),
        ("summary.csv", "generated_tokens", " default: generated_tokens: empty"),
    ],
)
def test_an_empty_field_is_named_or_does_without(home, table, column, said, monkeypatch, capsys):
    change(home.results / table, column, "")
    monkeypatch.chdir(home.project.folder)
    assert start(["compare", "results", "results"]) == bool(said)
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("column", "value"),
    [
        *(("prompt_tokens", value) for value in ("1e24", "1e5", "0.5", "-1", "x")),
        *(("peak_footprint_mib", value) for value in ("-1", "1e25")),
        ("decode_tok_s", "-1"),
    ],
)
def test_a_figure_that_none_can_be_is_named_with_its_file(home, column, value, monkeypatch):
    """A count of 10^24 is a number, and would be counted to."""
    monkeypatch.chdir(home.project.folder)
    change(home.results / "summary.csv", column, value)
    with pytest.raises(UserError, match=f"results/summary.csv: line 2: {column}: {value}: expect"):
        page(Path("report/finding.md"), Path("results"))


def test_a_peak_of_nothing_is_no_peak(home):
    change(home.results / "summary.csv", "peak_footprint_mib", "0")
    home.kvpeak("compare", "results", "results")


def change(file: Path, column: str, value: str) -> None:
    """Give the first row of a table another value in a column."""
    rows = list(csv.DictReader(file.read_text().splitlines()))
    rows[0][column] = value
    with file.open("w", newline="") as out:
        writer = csv.DictWriter(out, rows[0])
        writer.writeheader()
        writer.writerows(rows)


@pytest.mark.parametrize("name", ["", "..", "../../.config", "/etc"])
def test_a_name_that_is_a_path_or_nothing_is_refused_with_its_line(home, name):
    """Below it the records of the cell would be looked for."""
    table = home.results / "summary.csv"
    table.write_text(table.read_text().replace("\nmlx-0.32.4,", f"\n{name},", 1))
    where = f"results/summary.csv: line 2: commit: {name or 'empty'}: expected a name"
    for words in (["fits"], ["compare", "results", "results"]):
        assert where in home.kvpeak(*words, code=1)
    for step in ("page", "render", "plot"):
        assert where in home.run(sys.executable, f"workflow/scripts/{step}.py", code=1)


# Programs in results/ (2)


def test_a_foreign_environment_is_made_again_and_not_taken(home, monkeypatch):
    stranger.put_programs(home.results, "mlx-0.31.1", home.wire)
    monkeypatch.chdir(home.project.folder)
    record = environment_record("mlx-0.31.1")
    assert lacks_its_programs(record)
    assert not lacks_its_programs(environment_record("mlx-0.32.4"))  # it is that of this process
    write_text(local_copy(record), record.read_text().replace("0.31.1", "0.31.2"))
    assert lacks_its_programs(record)
    write_text(local_copy(record), record.read_text())
    assert not lacks_its_programs(record)


@pytest.mark.parametrize("record", [{"own": False}, {"own": False, "packages": {}}, [], {}])
def test_a_record_that_says_this_python_has_the_versions_is_not_believed(home, record):
    """It may be honest, and of a machine that has them. Every cell would fail, for ever."""
    file = home.results / "envs/mlx-0.32.4/environment.json"
    file.write_text(json.dumps(record))
    matrix = copy.deepcopy(TINY_MATRIX)
    matrix["commits"]["mlx-0.32.4"]["packages"] = {"mlx": "0.31.1", "mlx-lm": "0.31.1"}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(home.project.folder)
        path = file.relative_to(home.project.folder)
        assert to_be_tried_again(path, matrix["commits"]["mlx-0.32.4"]["packages"])
        assert not to_be_tried_again(path, TINY_MATRIX["commits"]["mlx-0.32.4"]["packages"])


def test_a_record_of_a_build_that_says_nothing_is_no_build(home, monkeypatch):
    monkeypatch.chdir(home.project.folder)
    record = home.results / "engines/x/engine.json"
    write_text(record, "{}\n")
    record = record.relative_to(home.project.folder)
    assert to_be_tried_again(record)
    write_text(local_copy(record), "{}\n")
    assert not to_be_tried_again(record)


def test_a_foreign_resolution_is_not_read(home, monkeypatch):
    """What is installed is decided by .kvpeak/resolutions, which is made here."""
    from kvpeak.environments.resolve import known

    stranger.put_programs(home.results, "mlx-0.31.1", home.wire)
    monkeypatch.chdir(home.project.folder)
    assert known("mlx-0.31.1", {"mlx": "0.31.1"}) is None


@pytest.mark.parametrize("setting", ["core.fsmonitor", "core.hooksPath", "protocol.ext.allow"])
def test_git_runs_nothing_that_a_mirror_names(home, setting, monkeypatch):
    from kvpeak.system.git import git, git_or_nothing

    folder = home.folder / "repository"
    git("init", "--quiet", str(folder))
    hooks = folder / ".git/hooks"
    stranger.tripwire(hooks / "post-checkout", home.wire)
    stranger.tripwire(folder / "monitor", home.wire)
    value = {"core.fsmonitor": folder / "monitor", "core.hooksPath": hooks}.get(setting, "always")
    git("config", setting, str(value), folder=folder)
    git("config", "remote.origin.url", f"ext::{folder}/monitor", folder=folder)
    identity = ("-c", "user.name=x", "-c", "user.email=x@example.org")
    git("status", folder=folder)
    git(*identity, "commit", "--quiet", "--allow-empty", "--message", "x", folder=folder)
    git("checkout", "--quiet", "--detach", "HEAD", folder=folder)
    git_or_nothing("remote", "update", folder=folder)
    assert not home.wire.exists()


# Writing through links (3)


@pytest.mark.parametrize("name", ["summary.csv", ".summary.csv.tmp"])
def test_a_link_in_place_of_a_table_is_replaced_and_not_followed(home, name):
    table = home.results / name
    table.unlink(missing_ok=True)
    table.symlink_to(home.mine)
    home.step("aggregate")
    assert not (home.results / "summary.csv").is_symlink()
    home.unharmed()


def test_a_link_in_place_of_a_log_is_not_followed(home):
    log = home.results / "logs/aggregate.log"
    log.unlink()
    log.symlink_to(home.mine)
    said = home.snakemake("--force", "results/summary.csv", code=1)
    assert "results/logs/aggregate.log: a link that leads out of results" in said
    home.unharmed()


def test_a_folder_of_results_that_is_a_link_elsewhere_is_refused(home):
    outside = home.folder / ".config"
    outside.mkdir()
    shutil.rmtree(home.results / "logs")
    (home.results / "logs").symlink_to(outside)
    assert "results/logs: a link that leads out of results" in home.snakemake(code=1)
    assert list(outside.iterdir()) == []


@pytest.mark.parametrize("folder", ["results", "models", "prompts", "report"])
def test_a_folder_that_was_handed_over_holds_files_and_folders_only(home, folder):
    """Snakemake says so before it reads anything of it."""
    deep = home.project.folder / folder / "a/b/r1"
    deep.mkdir(parents=True)
    os.mkfifo(deep / "pipe")
    assert f"{folder}/a/b/r1/pipe: a pipe, a socket or a device" in home.snakemake("-n", code=1)


def test_a_figure_that_is_a_link_is_not_put_into_the_report(home):
    figure = next(home.project.folder.glob("report/figures/*.svg"))
    figure.unlink()
    figure.symlink_to(home.mine)
    said = home.snakemake("--report", "report.html", code=1)
    assert f"{figure.name}: a link that leads out of report" in said
    assert not (home.project.folder / "report.html").exists()


CONTENTS = {
    "a link to a file elsewhere": (lambda path: path.symlink_to("/etc/hostname"), "leads out of"),
    "a link to a folder elsewhere": (lambda path: path.symlink_to("/"), "leads out of"),
    "a link to a device": (lambda path: path.symlink_to("/dev/zero"), "leads out of"),
    "a link to a folder inside": (lambda path: path.symlink_to(".."), "a link to a folder"),
    "a link that goes up": (lambda path: path.symlink_to("../../.."), "leads out of"),
    "a circle": (lambda path: path.symlink_to(path.name), "a link to nothing"),
    "a link to what is not there": (lambda path: path.symlink_to("new"), "a link to nothing"),
    "a pipe": (os.mkfifo, "a pipe, a socket or a device"),
    "a socket": (lambda path: os.mknod(path, 0o600 | stat.S_IFSOCK), "a pipe, a socket"),
}


@pytest.mark.parametrize("case", CONTENTS)
def test_what_is_no_file_and_no_folder_is_refused_in_one_line(tmp_path, case):
    put, said = CONTENTS[case]
    root = tmp_path / "results"
    (root / "a/r1").mkdir(parents=True)
    (root / "a/file").write_text("x")
    (root / "a/linked").symlink_to(root / "a/file")
    check_contents(root)
    put(root / "a/r1/\x1b]0;owned")
    with pytest.raises(UserError, match=said) as error:
        check_contents(root)
    assert str(error.value).isprintable()


def test_a_folder_that_may_be_entered_and_not_listed_is_refused(tmp_path, monkeypatch):
    """A log in it can be opened by its name, through a link too."""
    closed, listed = tmp_path / "results/logs", os.scandir
    closed.mkdir(parents=True)

    def scandir(folder):
        if Path(folder) == closed:  # whoever runs this may be root
            raise PermissionError(13, "Permission denied", str(folder))
        return listed(folder)

    monkeypatch.setattr(os, "scandir", scandir)
    with pytest.raises(UserError, match="results/logs: Permission denied; expected a folder that"):
        check_contents(tmp_path / "results")


def test_a_result_without_a_copy_gets_one_before_it_is_measured_again(home):
    """Published results have no logs. A newer model.json has them measured again, and Snakemake
    removes what is there first.
    """
    first, *_ = home.cells()
    path = first.relative_to(home.results / "cells")
    before = [(first / name).read_text() for name in ("runs.csv", "cell.json", "memory.csv")]
    shutil.rmtree(home.results / "logs")
    home.run(*home.project.command("--force", f"results/cells/{path}/runs.csv"))
    kept = [file.parent for file in (home.results / "logs" / path).glob("*/runs.csv")]
    copies = [
        [(folder / name).read_text() for name in ("runs.csv", "cell.json", "memory.csv")]
        for folder in kept
    ]
    assert len(copies) == 2 and before in copies


def test_another_record_of_an_honest_model_has_nothing_measured_again(home):
    """It is newer than the results, and would be remade with a time of now."""
    record = home.project.folder / "models/tiny/model.json"
    before = record.read_bytes()
    none = {"not_made": {"outcome": "failed", "reason": "no"}}
    more = json.loads(before) | {"x": 1}
    for forged in (json.dumps(more).encode(), json.dumps(none).encode(), b"[", b"{}"):
        record.write_bytes(forged)
        assert "Measuring" not in home.run(*home.project.command("-n"))
        assert record.read_bytes() == before


def test_another_record_of_a_model_that_was_changed_is_not_put_back(home):
    record = home.project.folder / "models/tiny/model.json"
    record.write_text(forged := json.dumps(json.loads(record.read_text()) | {"x": 1}))
    matrix = yaml.safe_load(home.project.read("config/matrix.yaml"))
    matrix["models"]["tiny"]["quantize"] = {"bits": 8, "group_size": 32}
    home.project.set_matrix(matrix)
    assert "Measuring" in home.run(*home.project.command("-n"))
    assert record.read_text() == forged


@pytest.mark.parametrize("older", [False, True])
def test_a_config_that_was_handed_over_changes_no_figure_of_what_was_measured(home, older):
    """24 layers would be six times the work, and its share of the roof; the record knows better.

    A model.json that names it comes with it. older: the records have the hash of that alone.
    """
    said = ("kv_bytes_per_token", "kv_bytes_from_shapes", "kv_difference", "prefill_flops")
    if older:
        for cell in home.cells():
            record = json.loads((cell / "cell.json").read_text())
            del record["inputs"]["shapes_sha256"], record["inputs"]["config_sha256"]
            (cell / "cell.json").write_text(json.dumps(record))
    before = figures_of_shapes(home, said)
    assert all(row["prefill_flops"] for row in before)
    own, named = (home.project.folder / path for path in CONFIGS)
    hand_over(own, num_hidden_layers=24)
    assert figures_of_shapes(home, said) == before
    home.step("render")
    line = f"Of `{CONFIGS[0]}` the records do not say that this is what was measured: what follows"
    assert home.project.read("report/details.md").count(line) == 1
    if not older:
        hand_over(named, num_hidden_layers=24)
        rows = figures_of_shapes(home, ("kv_bytes_from_shapes", "prefill_flops"))
        assert {value for row in rows for value in row.values()} == {""}


CONFIGS = ("models/tiny/config.json", "config/models/tiny.json")


def hand_over(config: Path, **changes) -> None:
    """Change a config, and let the model.json beside it name it."""
    config.write_text(json.dumps(json.loads(config.read_text()) | changes))
    if (made := config.with_name("model.json")).exists():
        record = json.loads(made.read_text())
        record["files"]["config.json"]["sha256"] = sha256_of(config)
        made.write_text(json.dumps(record))


def figures_of_shapes(home: Home, columns: tuple[str, ...]) -> list[dict]:
    """The columns of the summary, which is made anew."""
    home.step("aggregate")
    with (home.results / "summary.csv").open(newline="") as file:
        return [{name: row[name] for name in columns} for row in csv.DictReader(file)]


@pytest.mark.parametrize("name", ["prompts/tiny/alice-16.json", "config/matrix.yaml"])
def test_a_file_of_the_future_ends_nothing_and_takes_nothing_away(home, name):
    """All that is made of it would be older, and thrown away; before, what was measured."""
    before = {file: file.read_bytes() for file in home.results.glob("cells/**/*.csv")}
    file = home.project.folder / name
    os.utime(file, (4e9, 4e9))
    assert f"{name}: was changed " in home.snakemake(code=1)
    assert {file: file.read_bytes() for file in home.results.glob("cells/**/*.csv")} == before
    os.utime(file, (1e9, 1e9))
    home.snakemake("-n")


@pytest.mark.parametrize("name", ["prompts/tiny/alice-16.json", "prompts/alice.txt"])
def test_a_link_of_the_future_is_one_although_its_file_is_of_today(home, name):
    """Snakemake takes the later time of both."""
    file = home.project.folder / name
    file.rename(file.with_name("today"))
    file.symlink_to("today")
    os.utime(file, (4e9, 4e9), follow_symlinks=False)
    assert f"{name}: was changed " in (said := home.snakemake("-n", code=1))
    assert "; touch -h it, or set the clock" in said


def test_a_corpus_of_the_future_anywhere_in_the_project_is_named(home):
    """It may be a link in a folder that nothing else looks into."""
    folder = home.project.folder
    (folder / "texts").mkdir()
    (folder / "texts/a.txt").symlink_to("../prompts/alice.txt")
    os.utime(folder / "texts/a.txt", (4e9, 4e9), follow_symlinks=False)
    prompts = {"alice-16": {"tokens": 17, "corpus": "texts/a.txt"}}
    home.project.set_matrix(TINY_MATRIX | {"prompts": prompts})
    assert "texts/a.txt: was changed " in home.snakemake("-n", code=1)


def test_what_kvpeak_keeps_in_snakemakes_folder_leads_nowhere(home):
    """What the steps say is appended to one of these files. A hard link is none that one sees."""
    messages = home.project.folder / ".snakemake/kvpeak.messages"
    for link in (messages.symlink_to, messages.hardlink_to):
        messages.unlink(missing_ok=True)
        link(home.mine)
        said = home.snakemake(code=1)
        assert ".snakemake/kvpeak.messages: a link, or no file of its own; delete .snake" in said
        home.unharmed()
    messages.unlink()
    messages.write_text("of an earlier run")
    home.snakemake("-n")
    assert messages.read_text() == ""


@pytest.mark.parametrize("name", ["kvpeak.lock", "kvpeak.missing", "kvpeak/again/x"])
def test_whatever_kvpeak_keeps_has_one_name_and_leads_nowhere(tmp_path, name):
    """The lock is emptied, and marks are touched."""
    own, mine = tmp_path / ".snakemake", tmp_path / "mine"
    mine.write_text("mine")
    (own / name).parent.mkdir(parents=True)
    (own / name).symlink_to(mine)
    with pytest.raises(UserError, match="a link"):
        check_own(own)
    (own / name).unlink()
    os.mkfifo(own / name)
    with pytest.raises(UserError, match=r"no file of its own|a pipe"):
        check_own(own)
    (own / name).unlink()
    (own / name).hardlink_to(mine)
    os.utime(mine, (1e9, 1e9))
    if "again" in name:  # it is no file that is written: it is made anew
        check_own(own)
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(tmp_path)
            assert tried_again(Path("x"), True) == [".snakemake/kvpeak/again/x"]
        assert mine.stat().st_mtime == 1e9
    else:
        with pytest.raises(UserError, match="no file of its own; delete "):
            check_own(own)


def test_snakemakes_folder_is_a_folder_that_can_be_listed(tmp_path, monkeypatch):
    own = tmp_path / ".snakemake"
    check_own(own)
    (tmp_path / "yours").mkdir()
    own.symlink_to("yours")
    with pytest.raises(UserError, match="snakemake: a link; expected a folder; remove it"):
        check_own(own)
    own.unlink()
    own.mkdir()

    def scandir(folder):  # whoever runs this may be root
        raise PermissionError(13, "Permission denied", str(folder))

    monkeypatch.setattr(os, "scandir", scandir)
    with pytest.raises(UserError, match="Permission denied; expected a folder that can be listed"):
        check_own(own)


def test_marks_of_the_future_are_of_now_when_a_run_starts(home):
    """The clock was wrong for a day, or an archive brought them along."""
    own = home.project.folder / ".snakemake"
    marks = [own / "kvpeak.missing", own / "kvpeak/again/results/envs/x/environment.json"]
    marks[1].parent.mkdir(parents=True)
    marks[1].touch()
    for mark in marks:
        os.utime(mark, (4e9, 4e9))
    home.run(*home.project.command("--forcerun", "aggregate", "--config", "partial=true"))
    assert (home.results / "summary.csv").exists()
    assert all(mark.stat().st_mtime < time.time() + 1 for mark in marks)


def test_a_root_that_is_a_link_leads_to_what_was_empty_or_was_noted(tmp_path, monkeypatch):
    """An archive may bring a link to a folder of yours along, in which everything would be
    replaced.
    """
    monkeypatch.chdir(tmp_path)
    (tmp_path / "disk").mkdir()
    report = Path("report")
    report.symlink_to("disk")
    check_root(report)  # empty: it is remembered
    (tmp_path / "disk/finding.md").write_text("mine")
    check_root(report)
    shutil.rmtree(".kvpeak")
    with pytest.raises(UserError, match=f"report: a link to {tmp_path}/disk, where something is"):
        check_root(report)
    Path(".kvpeak/links").mkdir(parents=True)
    Path(".kvpeak/links/report").write_text(f"{tmp_path}/disk\n")  # as the message says
    check_root(report)
    report.unlink()
    report.symlink_to("nothing")
    with pytest.raises(UserError, match="report: a link to "):
        check_root(report)


def test_a_root_may_be_a_link_or_not_be_there(tmp_path):
    (tmp_path / "disk").mkdir()
    (tmp_path / "models").symlink_to("disk")
    check_contents(tmp_path / "models")
    check_contents(tmp_path / "prompts")


def test_the_hash_of_a_pipe_or_a_device_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero")):
        with pytest.raises(UserError, match="expected a regular file"):
            sha256_of(path)


def test_taking_a_result_away_writes_through_no_link(home):
    """The folder of its start keeps a copy, under a name that the stranger's record says."""
    first, *_ = home.cells()
    record = first / "cell.json"
    record.write_text(record.read_text().replace('"outcome": "ok"', '"outcome": "oom"', 1))
    kept = home.results / json.loads(record.read_text())["log"].removeprefix("results/")
    key = home.folder / "authorized_keys"
    for name in ("cell.json", "runs.csv", "memory.csv"):
        (kept / name).unlink()
        (kept / name).symlink_to(key)
    home.kvpeak("failed", "--rerun", "oom")
    assert not key.exists()
    assert not first.joinpath("runs.csv").exists()


# One bad record (11)

DAMAGE = {
    "a method that is a list": lambda said: said["engine"].update(method=["live"]),
    "a lone surrogate": lambda said: said.update(detail="\ud800"),
    "flags that are no list": lambda said: said.update(flags={"a": 1}),
    "events that are numbers": lambda said: said.update(events=[1, 2]),
    "a peak that is a word": lambda said: said["memory"].update(peak_footprint_mib="large"),
    "no request": lambda said: said.pop("request"),
    "the names of another cell": lambda said: said["cell"].update(kv_cache="other"),
    "versions that are a list": lambda said: said["engine"].update(versions=["mlx"]),
}
HARMLESS = ("a lone surrogate", "no request")  # text that is spelled, and what is optional


@pytest.mark.parametrize("case", DAMAGE)
def test_a_bad_record_costs_its_own_row_and_is_named(home, case, monkeypatch):
    monkeypatch.chdir(home.project.folder)
    record = home.cells()[0] / "cell.json"
    said = json.loads(record.read_text())
    DAMAGE[case](said)
    record.write_text(json.dumps(said, indent=1))
    tables, measured, problems = gather(read_plan(PLAN))
    assert measured == 4
    assert [
        line for line in problems if str(record.relative_to(home.project.folder)) not in line
    ] == []
    assert (len(problems) == 1) == (case not in HARMLESS)
    assert tables["summary.csv"].count("unreadable,") == len(problems)
    for line in problems:
        assert line.isprintable()


def test_a_run_that_is_there_twice_costs_its_own_cell(home, monkeypatch):
    monkeypatch.chdir(home.project.folder)
    table = home.cells()[0] / "runs.csv"
    lines = table.read_text().splitlines()
    table.write_text("\n".join([*lines, lines[-1], ""]))
    tables, _, problems = gather(read_plan(PLAN))
    (line,) = problems
    assert "runs.csv: run: one of them is there twice" in line
    assert tables["summary.csv"].count("unreadable,") == 1


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        (lambda run: [run | {"run": at} for at in range(5_000)], "5,000 runs: expected "),
        (lambda run: [run | {"started_at": "x" * 2_001}], "line 2: started_at: longer than 2,000"),
    ],
)
def test_runs_that_would_fill_the_table_of_all_cost_their_own_cell(
    home, monkeypatch, changed, said
):
    """480,000 of one cell were as many as a table may hold."""
    monkeypatch.chdir(home.project.folder)
    table = home.cells()[0] / "runs.csv"
    with table.open(newline="") as file:
        run = [*csv.DictReader(file)][-1]
    with table.open("w", newline="") as file:
        writer = csv.DictWriter(file, run)
        writer.writeheader()
        writer.writerows(changed(run))
    tables, measured, problems = gather(read_plan(PLAN))
    (line,) = problems
    assert said in line and str(table.parent.relative_to(home.project.folder)) in line
    assert tables["summary.csv"].count("unreadable,") == 1
    assert measured == len(home.cells())
    assert "x" * 2_001 not in tables["runs.csv"] and tables["runs.csv"].count("\n") < 100


FIELDS = ("nan", "inf", "1e30", "1_000", "１２", "x", "-5", " 5", "0x1")


@pytest.mark.parametrize("column", RUNS.numbers)
def test_a_field_that_is_no_number_costs_its_own_cell(home, column, monkeypatch):
    """Each of them in its place, in one cell after the other."""
    monkeypatch.chdir(home.project.folder)
    table = home.cells()[0] / "runs.csv"
    with table.open(newline="") as file:
        rows = list(csv.DictReader(file))
    optional = column in ("prefill_j", "decode_j", "temperature_c")
    for field in FIELDS:
        rows[-1] |= {column: field}
        with table.open("w", newline="") as file:
            writer = csv.DictWriter(file, rows[0])
            writer.writeheader()
            writer.writerows(rows)
        tables, _, problems = gather(read_plan(PLAN))
        if field == "-5" and optional:
            assert problems == [] and ",-5," in tables["runs.csv"]
            continue
        (line,) = problems
        assert f"runs.csv: line {len(rows) + 1}: {column}: {field.strip()}: expected" in line
        assert tables["summary.csv"].count("unreadable,") == 1
        write_text(Path("results/runs.csv"), tables["runs.csv"])
        read_table("results/runs.csv", RUNS)


@pytest.mark.parametrize("how", ["rows", "a copy", "a link"])
def test_records_that_name_another_cell_give_it_nothing(home, how, monkeypatch):
    """Neither runs, nor a row that is the other cell's."""
    monkeypatch.chdir(home.project.folder)
    first, second, *_ = home.cells()
    if how == "rows":
        names = first.parts[-7:]
        rows = (second / "runs.csv").read_text()
        theirs = ",".join((*names[:-1], names[-1].removeprefix("r")))
        own = ",".join((*second.parts[-7:-1], "1"))
        assert own in rows
        (second / "runs.csv").write_text(rows.replace(own, theirs))
    else:
        shutil.rmtree(second)
        shutil.copytree(first, second) if how == "a copy" else second.symlink_to(first)
    if how == "a link":
        with pytest.raises(UserError, match="a link is in this path"):
            read_plan(PLAN)
        assert "a link to a folder; expected the folder itself" in home.snakemake(code=1)
        return
    before = gather([row for row in read_plan(PLAN) if not str(second).endswith(row["path"])])[0]
    tables, _, problems = gather(read_plan(PLAN))
    (line,) = problems
    assert str(second.relative_to(home.project.folder)) in line and "whose folder it is" in line
    assert {*before["runs.csv"].splitlines()} == {*tables["runs.csv"].splitlines()}


def test_results_of_another_matrix_are_not_taken_for_what_this_one_asks(home):
    """The names on the axes are the same, and mean something else. Nothing remembers what was
    asked but the records, where the results were handed over.
    """
    matrix = home.project.folder / "config/matrix.yaml"
    said = yaml.safe_load(matrix.read_text())
    shutil.rmtree(home.project.folder / ".snakemake")
    said["protocol"]["generate"] = 64
    matrix.write_text(yaml.safe_dump(said))
    home.snakemake()
    log = (home.results / "logs/aggregate.log").read_text()
    named = "cell.json: request: protocol.generate: asked 8, and the matrix 64; delete results/"
    assert log.count(named) == len(home.cells())
    with (home.results / "summary.csv").open(newline="") as file:
        rows = [*csv.DictReader(file)]
    assert {(row["outcome"], row["peak_footprint_mib"]) for row in rows} == {("unreadable", "")}


@pytest.mark.parametrize("unforeseen", [False, True])
def test_a_record_that_was_refused_says_nothing_of_the_cells_beside_it(home, unforeseen):
    """Of the first cell of a model and a prompt the finding takes what they are."""
    first = next(csv.DictReader((home.results / "plan.csv").read_text().splitlines()))
    record = home.project.folder / first["path"] / "cell.json"
    said = json.loads(record.read_text())
    said["request"]["model"] |= {"weights": "real", "kind": "hub", "repository": "evil/model"}
    said["request"]["model"] |= {"revision": "f" * 40}
    said["request"]["prompt"]["tokens"] = 99_999
    if unforeseen:
        said["request"]["protocol"]["repeat_window"] = [1]
    said["engine"]["dtype"] = "bfloat16"
    said["inputs"]["model_sha256"] = "e" * 64
    record.write_text(json.dumps(said, indent=1))
    home.snakemake()
    text = "".join(
        (home.project.folder / "report" / name).read_text() for name in ("finding.md", "details.md")
    )
    assert "unreadable" in text
    assert "`tiny` | random weights, float32" in text
    for forged in ("evil/model", "f" * 12, "e" * 12, "99,999", "bfloat16"):
        assert forged not in text


@pytest.mark.parametrize(
    ("section", "changed", "named"),
    [
        ("variants", {"repeat_penalty": 1.5}, "protocol.repeat_penalty: asked 1.1, and the"),
        ("variants", {"prefill_chunk": 8}, "options.prefill_chunk: asked whole, and the matrix 8"),
        ("variants", {"pool": "exact"}, "options.pool: asked nothing, and the matrix exact"),
        ("variants", {"env": {"MLX_X": 1}}, "env.MLX_X: asked nothing, and the matrix 1"),
        ("models", {"dtype": "float16"}, "model.dtype: asked float32, and the matrix float16"),
        ("models", {"seed": 3}, "model.seed: asked 0, and the matrix 3"),
        ("prompts", {"batch": 2}, "prompt.tokens: asked 17, and the matrix 34"),
    ],
)
def test_every_part_of_what_was_asked_is_compared(section, changed, named):
    theirs, ours = other_matrix(), other_matrix(section, changed)
    assert asked_otherwise(theirs, ours).startswith(named)
    assert asked_otherwise(ours, theirs)


def other_matrix(section: str = "models", changed: dict | None = None) -> dict:
    """What a matrix asks of its first cell, after a change of each entry in a section."""
    said = copy.deepcopy(TINY_MATRIX)
    said["models"]["tiny"]["config"] = "config/models/qwen2-tiny.json"
    for entry in said[section].values():
        entry |= changed or {}
    matrix = Matrix(said, "m.yaml")
    return matrix.request(matrix.combinations[0])


def test_what_an_older_record_does_not_say_was_the_default():
    """Nor does it count on which GPU, with which interpreter, and within which time."""
    asked = other_matrix()
    older = copy.deepcopy(asked)
    del older["options"]["attention"], older["protocol"]["repeat_window"]
    older |= {"gpu": 1, "python": "results/envs/x/python", "limits": {"timeout_s": 1}}
    assert asked_otherwise(older, asked) == ""
    older["options"]["attention"] = "naive"
    assert asked_otherwise(older, asked) == "options.attention: asked naive, and the matrix fused"
    del older["model"]["dtype"]
    assert asked_otherwise(older, asked).startswith("model.dtype: asked nothing")
    assert asked_otherwise({"options": 3, "protocol": []}, asked)


@pytest.mark.parametrize("how", ["more", "others", "none"])
def test_a_prompt_that_was_handed_over_has_the_ids_that_the_matrix_asks_for(home, how):
    """It is there, and as old as its cells, so that no step makes it again."""
    prompt = home.project.folder / "prompts/tiny/alice-16.json"
    cell = home.cells()[0].relative_to(home.project.folder)
    ask = (sys.executable, "workflow/scripts/plan.py", "--request", cell)
    assert json.loads(home.run(*ask))["not_made"] is None
    said = json.loads(prompt.read_text())
    ids = {"more": said["tokens"] * 50, "others": said["tokens"][::-1], "none": None}[how]
    prompt.write_text(json.dumps(said | {"tokens": ids}))
    why = "prompts/tiny/alice-16.json: its token ids are not the first 17 of prompts/alice.txt"
    assert json.loads(home.run(*ask))["not_made"][1].startswith(why)
    said = home.step("run_cell", cell, "--record-failure")
    assert f"failed: {why}" in said and "delete it, and snakemake makes it again" in said
    assert json.loads((home.project.folder / cell / "cell.json").read_text())["outcome"] == "failed"


@pytest.mark.parametrize("how", ["other ids", "another spelling"])
def test_a_prompt_that_was_handed_over_has_nothing_measured_again(home, how):
    prompt = home.project.folder / "prompts/tiny/alice-16.json"
    before = prompt.read_bytes()
    said = json.loads(before)
    other = said | ({"tokens": said["tokens"][::-1]} if how == "other ids" else {"x": 1})
    prompt.write_text(json.dumps(other))
    assert "rule cell" not in home.run(*home.project.command("-n"))
    assert prompt.read_bytes() == before


def test_a_search_measures_no_prompt_that_was_handed_over(home):
    prompt = home.project.folder / "prompts/tiny/alice-16.json"
    prompt.write_text(json.dumps({"tokens": [7] * 2000}))
    matrix = copy.deepcopy(TINY_MATRIX)
    later = {"mlx": "0.32.4", "mlx-lm": "0.32.2"}
    matrix["commits"]["mlx-0.32.2"] = {"engine": "mlx", "packages": later | {"mlx": "0.32.2"}}
    home.project.set_matrix(matrix)
    ends = ("--good", "mlx-0.32.2", "--bad", "mlx-0.32.4")
    cell = "tiny/alice-16/cat/none/default"
    said = home.kvpeak("bisect", *ends, "--cell", cell, code=1)
    assert "alice-16.json: its token ids are not the first 17 of prompts/alice.txt" in said
    assert not (home.project.folder / "results/bisect").exists()


@pytest.mark.parametrize("name", ["cell.json", "runs.csv", "memory.csv"])
def test_a_pipe_in_the_place_of_a_record_is_not_waited_for(home, name):
    cell = home.cells()[0]
    (cell / name).unlink()
    os.mkfifo(cell / name)
    said = home.step("aggregate")
    assert (f"{name}: expected a regular file" in said) == (name != "memory.csv")
    home.kvpeak("failed")


@pytest.mark.parametrize("name", ["plan.csv", "summary.csv", "runs.csv"])
def test_a_pipe_or_a_broken_table_given_to_compare_is_one_line(home, name, monkeypatch, capsys):
    monkeypatch.chdir(home.project.folder)
    table = home.results / name
    table.unlink()
    os.mkfifo(table)
    assert start(["compare", "results", "results"]) == 1
    assert "expected a regular file" in capsys.readouterr().err
    table.unlink()
    table.write_text('commit\n"\x1b[31m')
    assert start(["compare", "results", "results"]) == 1
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and not hidden(said) and f"results/{name}: " in said


LARGE = {
    "lists": "[],",
    "objects": "{},",
    "hidden characters": '"\u202e",',
    "keys": "",
}
WITHIN = """
import resource, sys
from pathlib import Path
from kvpeak.analysis.processes import read_process
most = 1 << 30
resource.setrlimit(resource.RLIMIT_DATA, (most, most))
found, runs = read_process(Path(sys.argv[1]))
assert len(found["flags"]) <= 100 and len(found["detail"]) <= 2000
"""


@pytest.mark.slow
@pytest.mark.parametrize("case", LARGE)
def test_the_largest_record_is_read_within_a_gibibyte(home, case):
    cell = home.cells()[0]
    said = json.loads((cell / "cell.json").read_text())
    said |= {"detail": "d" * 10_000, "flags": ["f"] * 10_000}
    parts = MOST_PARTS - 1000  # the record has some of its own
    keys = ",".join(f'"{number:x}":{{}}' for number in range(min(MOST_JSON // 13, parts)))
    each = max(1, len(LARGE[case].encode()))
    rest = LARGE[case] * min((MOST_JSON - (1 << 20)) // each, parts if each == 3 else MOST_JSON)
    more = f"[{rest}0]" if rest else f"{{{keys}}}"
    pad = "x" * (MOST_JSON - (1 << 20) - len(more.encode()))
    (cell / "cell.json").write_text(f'{{"more": {more}, "pad": "{pad}", {json.dumps(said)[1:]}')
    command = [sys.executable, "-c", WITHIN, cell]
    environment = os.environ | {"PYTHONPATH": str(home.project.folder / "workflow/scripts")}
    subprocess.run(command, env=environment, check=True)


def test_a_record_of_256_mebibytes_costs_its_row_at_once(home):
    """It is sparse, and is not read any further than the limit."""
    record = home.cells()[0] / "cell.json"
    os.truncate(record, 256 << 20)
    assert "cell.json: larger than 16 MiB; delete results/cells/" in home.step("aggregate")
    assert "left out: " in home.kvpeak("publish", "a")


# Commands to be copied, addresses, formulas (12)


def test_reproduce_quotes_what_a_shell_would_read(home):
    matrix = "config/m;touch executed.yaml"
    shutil.copy(home.project.folder / "config/matrix.yaml", home.project.folder / matrix)
    home.step("render", "--matrix", matrix)
    lines = home.project.read("report/details.md").splitlines()
    (made,) = [line for line in lines if line.startswith("    make finding")]
    assert shlex.split(made)[-1] == f"MATRIX={matrix}"


def test_an_address_in_a_text_is_no_link():
    """Viewers make a link of a bare address."""
    shown = escape("http://evil.example HTTPS://evil.example www.evil.example me@evil.example")
    assert shown == (
        r"http\://evil.example HTTPS\://evil.example www\.evil.example me\@evil.example"
    )


def test_what_a_stranger_wrote_is_no_command_line_in_failed(home):
    """Cause and log are printed as they are recorded."""
    first, *_ = home.cells()
    said = json.loads((first / "cell.json").read_text())
    said = {key: said[key] for key in said if key not in ("detail", "log")} | {
        "outcome": "oom",
        "detail": EVIL,
        "log": EVIL,
    }
    ordered = {"cell": said.pop("cell"), "outcome": said.pop("outcome")} | said
    (first / "cell.json").write_text(json.dumps(ordered, indent=1))
    assert "\\x1b]0;owned" in home.kvpeak("failed")


def test_a_cell_that_did_not_fit_and_says_no_text_costs_its_own_row(home):
    """Longer prompts of the matrix are decided by it."""
    matrix = copy.deepcopy(TINY_MATRIX)
    matrix["prompts"] |= {"alice-32": {"tokens": 33}}
    (home.project.folder / "config/matrix.yaml").write_text(yaml.safe_dump(matrix))
    *others, last = home.cells()
    damage = {"oom": {"log": 5}, "guard": {"detail": ["5"]}, "failed": {"detail": 5}}
    for folder, outcome in zip(others, damage, strict=True):
        said = json.loads((folder / "cell.json").read_text())
        said |= {"outcome": outcome} | damage[outcome]
        (folder / "cell.json").write_text(json.dumps(said))
    assert "skipped" not in home.kvpeak("plan")
    listed = home.kvpeak("failed")
    for folder, (said,) in zip(others, damage.values(), strict=True):
        path = folder.relative_to(home.project.folder)
        assert f"{path}/cell.json: {said}: expected text" in listed
    home.snakemake("--", "results/summary.csv")
    with (home.results / "summary.csv").open() as table:
        measured = [row for row in csv.DictReader(table) if row["outcome"] == "ok"]
    assert [(row["kv_cache"], row["cap"]) for row in measured] == [last.parts[-4:-2]]
    home.kvpeak("failed", "--rerun", "oom,guard")
