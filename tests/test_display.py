"""What a person sees while Snakemake runs: a plan, a line for each cell, a bar, the finding."""

import io
import json
import re
from pathlib import Path

import pytest
from rich.console import Console

from kvpeak.base.layout import CELLS
from kvpeak.display import results
from kvpeak.display.durations import Durations, about, spelled
from kvpeak.display.run import Run
from kvpeak.display.screen import Stream, Terminal, wrapped

CELL = "mlx-0.32.4/tiny/alice-{}/{}/none/default/r1"
PLANNED = {"plan": 1, "model": 1, "cell": 3, "render": 1, "total": 6}


class Clock:
    """A clock that a test moves."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A project with three cells to be measured, in its folder."""
    monkeypatch.chdir(tmp_path)
    cells = [CELL.format(16, "cat"), CELL.format(16, "prealloc"), CELL.format(512, "cat")]
    Path(".snakemake").mkdir()
    lines = ["0", *(f"results/cells/{cell}/runs.csv" for cell in cells)]
    Path(".snakemake/kvpeak.missing").write_text("\n".join(lines) + "\n")
    return cells


class Told:
    """A run whose events a test tells."""

    def __init__(self, screen, durations=None):
        self.clock = Clock()
        self.run = Run(screen, durations or Durations(), self.clock)

    def event(self, event: str, **values) -> None:
        values.setdefault("msg", "")
        self.run.take(event, values, self.clock.now)

    def step(self, number: int, seconds: float, rule: str, made: str, cell: str = "", fails=False):
        log = f"{number}.log"
        wildcards = {"cell": cell} if cell else {}
        self.event(
            "job_info",
            jobid=number,
            rule_name=rule,
            rule_msg=f"Making {made}",
            wildcards=wildcards,
            output=[made],
            log=[log],
        )
        self.clock.now += seconds
        if fails:
            self.event("job_error", jobid=number)
        else:
            self.event("job_finished", job_id=number)

    def cell(self, number: int, cell: str, seconds: float, **record) -> None:
        folder = CELLS / cell
        folder.mkdir(parents=True)
        whole = {"outcome": "ok", "memory": {"peak_footprint_mib": 412.4}} | record
        (folder / "cell.json").write_text(json.dumps(whole))
        (folder / "runs.csv").write_text("")
        self.step(number, seconds, "cell", f"results/cells/{cell}/runs.csv", cell)


def lines_of(told: Told, stream: io.StringIO) -> list[str]:
    told.run.close()
    return stream.getvalue().splitlines()


def test_without_a_terminal_each_cell_is_one_line_and_the_finding_ends_it(project):
    stream = io.StringIO()
    told = Told(Stream(stream))
    told.event("run_info", stats=PLANNED)
    told.step(1, 0.5, "plan", "results/plan.csv")
    told.step(2, 12, "model", "models/tiny/model.json")
    for number, cell in enumerate(project, 3):
        told.cell(number, cell, 4)
    Path("results/checks.csv").write_text("claim,verdict\na,holds\nb,holds\nc,fails\n")
    Path("report").mkdir()
    Path("report/finding.md").write_text("# A cap of 1\\_MiB halves the peak\n\nMore.\n")
    told.step(6, 1, "render", "report/finding.md")
    assert lines_of(told, stream) == [
        "3 cells to measure, how long they take is not known before the first",
        "Making models/tiny/model.json: 12 s",
        "1/3 alice-16 cat: 412 MiB, 4.0 s",
        "2/3 alice-16 prealloc: 412 MiB, 4.0 s",
        "3/3 alice-512 cat: 412 MiB, 4.0 s",
        "A cap of 1_MiB halves the peak",
        "claims: 2 holds, 1 fails",
        "report/finding.md (3 cells measured in 26 s)",
    ]


def test_the_second_run_is_estimated_within_30_percent(project):
    told = Told(Stream(io.StringIO()))
    told.event("run_info", stats=PLANNED)
    told.step(2, 12, "model", "models/tiny/model.json")
    for number, (cell, seconds) in enumerate(zip(project, (4, 6, 20), strict=True), 3):
        told.cell(number, cell, seconds)
    told.clock.now += 3  # Snakemake's own
    told.run.close()
    again = Durations.read()
    assert again.of_run(PLANNED, project) == pytest.approx(45, rel=0.01)
    assert again.of_run({"cell": 1}, project[2:]) == pytest.approx(20 * 45 / 42, rel=0.01)


def test_a_cell_that_was_never_measured_takes_as_long_as_those_like_it():
    known = Durations({"cell": {"a/x/p/c/n/d/r1": 2.0, "a/y/p/c/n/d/r1": 4.0}})
    assert known.of_cell("a/x/q/c/n/d/r1") == 2
    assert known.of_cell("a/z/q/c/n/d/r1") == 3
    assert known.of_cell("b/z/q/c/n/d/r1") == 3
    assert known.of_run({"cell": 2, "model": 1}, []) == 6
    assert Durations().of_run({"cell": 1}, ["a/x/q/c/n/d/r1"]) is None


def test_earlier_results_tell_how_long_cells_take(project):
    folder = CELLS / project[0]
    folder.mkdir(parents=True)
    (folder / "cell.json").write_text('{\n "outcome": "ok",\n "elapsed_s": 6.5\n}\n')
    known = Durations()
    known.learn_from()
    assert known.of_cell(project[1]) == pytest.approx(7.5)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"steps": {"cell": {"a": "x"}}}', "\xff"])
def test_what_is_remembered_may_be_damaged(tmp_path, text):
    file = tmp_path / "durations.json"
    file.write_text(text, encoding="latin-1")
    assert Durations.read(file) == Durations()


def test_a_failure_is_red_and_says_why_and_where(project):
    stream = io.StringIO()
    told = Told(Terminal(terminal(stream)))
    told.event("run_info", stats=PLANNED)
    Path("3.log").write_text(f"run_cell: {project[0]}: engine crashed; log: results/logs/a\n")
    told.step(3, 1, "cell", f"results/cells/{project[0]}/runs.csv", project[0], fails=True)
    told.run.close()
    shown = stream.getvalue()
    assert "\x1b[1;31malice-16 cat failed: engine crashed; log: results/logs/a" in shown
    assert "1 step failed; with cause and log: kvpeak failed" in shown


def terminal(stream: io.StringIO) -> Console:
    return Console(file=stream, force_terminal=True, color_system="standard", width=80)


def test_the_bar_shows_what_is_done_the_time_and_the_cell_at_work(project):
    known = Durations({"cell": dict.fromkeys(project, 10.0)})
    told = Told(Stream(io.StringIO()), known)
    told.event("run_info", stats={"cell": 3, "total": 3})
    told.cell(1, project[0], 10)
    told.event(
        "job_info",
        jobid=2,
        rule_name="cell",
        rule_msg="",
        wildcards={"cell": project[1]},
        output=[f"results/cells/{project[1]}/runs.csv"],
        log=["2.log"],
    )
    told.clock.now += 4
    now = Path("results/logs", project[1], "now.txt")
    now.parent.mkdir(parents=True)
    now.write_text("decode-2 1234\n")
    assert told.run.bar(80) == [
        f"{'━' * 8}{'─' * 16} 1 of 3 cells, 14 s gone, about 16 s left",
        "alice-16 prealloc: run 2: decode, 1,234 MiB",
    ]
    now.write_text("prefill-0/17 1234\n")
    assert told.run.bar(80)[1] == "alice-16 prealloc: run 0, turn 17: prefill, 1,234 MiB"
    now.unlink()
    Path("2.log").write_text("cell 2 of 3: waiting for process 7\n")
    assert told.run.bar(80)[1] == "alice-16 prealloc: cell 2 of 3: waiting for process 7"


def test_lines_are_drawn_in_a_terminal_while_the_bar_is(project):
    """rich draws in a thread of its own; neither waits for the other."""
    stream = io.StringIO()
    told = Told(Terminal(terminal(stream)))
    told.event("run_info", stats=PLANNED)
    for number, cell in enumerate(project, 3):
        told.cell(number, cell, 4)
    told.run.close()
    assert re.search(r"3/3 alice-512 cat: 412 MiB, 4\.0 s\n", stream.getvalue())


def test_an_outcome_that_is_not_ok_is_named_with_its_reason(project):
    stream = io.StringIO()
    told = Told(Stream(stream))
    told.event("run_info", stats=PLANNED)
    told.cell(3, project[0], 4, outcome="guard", detail="in phase prefill-0: held 900 MiB")
    line = "1/3 alice-16 cat: guard: in phase prefill-0: held 900 MiB"
    assert line in lines_of(told, stream)


def test_what_others_wrote_cannot_steer_the_terminal(project):
    Path("report").mkdir()
    Path("report/finding.md").write_text("# A \x1b[31mred\x07 finding\n")
    assert results.sentence() == "A \\x1b[31mred\\x07 finding"
    Path("results").mkdir()
    Path("results/checks.csv").write_text("verdict\n\x1b]0;x\x07\n")
    assert "\x1b" not in results.verdicts()


def test_a_run_with_nothing_to_do_shows_the_finding(project):
    stream = io.StringIO()
    told = Told(Stream(stream))
    Path("report").mkdir()
    Path("report/finding.md").write_text("# Nothing changes\n")
    told.run.message("Building DAG of jobs...", 20)
    told.run.message("Nothing to be done (all requested files are present and up to date).", 20)
    assert lines_of(told, stream) == [
        "Nothing changes",
        "report/finding.md (nothing to do: all is measured and up to date)",
    ]


def test_what_another_command_of_snakemakes_says_is_shown(project):
    stream = io.StringIO()
    told = Told(Stream(stream))
    told.run.message("Congratulations, your workflow is in a good condition!", 20)
    assert lines_of(told, stream) == ["Congratulations, your workflow is in a good condition!"]


def test_lines_are_wrapped_and_paths_are_whole():
    path = "results/logs/" + "x" * 90
    text = f"a cell failed: engine crashed in phase load; log: {path}"
    assert wrapped(text, 40) == [
        "a cell failed: engine crashed in phase",
        "  load; log:",
        f"  {path}",
    ]


def test_times_are_spelled_as_a_person_says_them():
    shown = [spelled(s) for s in (4.21, 35.4, 60, 320, 7500, 7200)]
    assert shown == ["4.2 s", "35 s", "1 min", "5 min 20 s", "2 h 5 min", "2 h"]
    assert [about(s) for s in (0.2, 47, 100, 331, 4000)] == [
        "1 s",
        "47 s",
        "1½ min",
        "5½ min",
        "1 h 7 min",
    ]
