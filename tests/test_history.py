"""The history of an engine's releases: which step counts, and what the finding says of it."""

import numpy as np
import pytest

from kvpeak.analysis.history import Point, Step, histories, is_step
from kvpeak.analysis.results import Results
from kvpeak.base.columns import SPEEDS
from kvpeak.report.history import history_figure, history_section, spell_step

HOW = {"accelerator": "cpu", "method": "live"}
ENGINES = {f"mlx-{n}": "mlx" for n in range(6)} | {"replay": "candle-replay"}


@pytest.mark.parametrize(
    ("before", "after", "step"),
    [
        ((100, 101), (130, 131), True),
        ((130, 131), (100, 101), True),
        # above the threshold, but the processes overlap
        ((100, 140), (130, 150), False),
        # apart, but by less than a twentieth
        ((100, 100), (104, 104), False),
        ((100,), (130,), True),
    ],
)
def test_a_step_is_larger_than_the_threshold_and_than_the_processes_differ(before, after, step):
    assert is_step(before, after) == step


@pytest.mark.parametrize(("processes", "chance"), [(2, 1 / 3), (3, 1 / 10), (5, 1 / 126)])
def test_how_often_the_order_of_processes_comes_about_by_chance(processes, chance):
    step = Step(Point("a", (1.0,) * processes), Point("b", (2.0,) * processes))
    assert step.chance == pytest.approx(chance)


@pytest.mark.parametrize(("loop", "said"), [(15.0, True), (9.0, False), (None, False)])
def test_a_step_that_is_mostly_what_importing_the_loop_takes_says_so(loop, said):
    step = Step(Point("a", (100.0,), loop=40.0), Point("b", (120.0,), loop=loop and 40 + loop))
    assert step.imports == said
    assert ("+15.0 MiB are importing the loop" in spell_step(step)) == said


def results(peaks: dict[str, list[float]]) -> Results:
    """Results of one cell for each release; a release without peaks ended with oom."""
    cells = {commit: (commit, "m", "p", "cat", "none", "lab") for commit in peaks}
    summary, each = {}, {}
    for commit, cell in cells.items():
        outcome = "ok" if peaks[commit] else "oom"
        summary[cell] = {"outcome": outcome, "peak_mib": 0.0} | HOW
        each[cell] = [{"peak_footprint_mib": peak} for peak in peaks[commit]]
    speeds = {column: {cell: np.array([7.0, 9.0]) for cell in cells.values()} for column in SPEEDS}
    return Results(dict.fromkeys(cells.values(), ""), summary, speeds, each=each)


PEAKS = {
    "mlx-0": [100, 101],
    "mlx-1": [102, 100],
    "mlx-2": [],
    "mlx-3": [300, 303],
    "mlx-4": [301, 300],
    "replay": [5, 5],
}


def test_the_releases_at_which_the_peak_steps_are_named():
    (history,) = histories(results(PEAKS), ENGINES)
    assert [point.commit for point in history.points] == ["mlx-0", "mlx-1", "mlx-3", "mlx-4"]
    assert history.missing == ("mlx-2",)
    (step,) = history.steps
    assert (step.before.commit, step.after.commit) == ("mlx-1", "mlx-3")
    assert step.ratio == pytest.approx(301.5 / 101)


def test_three_releases_are_no_history():
    few = {name: PEAKS[name] for name in ("mlx-0", "mlx-1", "mlx-3", "replay")}
    assert histories(results(few), ENGINES) == []
    assert history_section([]) is None
    assert history_figure([]) is None


def test_the_section_says_where_it_steps_and_by_how_much():
    section = history_section(histories(results(PEAKS), ENGINES))
    (sentence,) = section["sentences"]
    assert "4 releases from mlx-0 to mlx-4" in sentence
    assert "steps at mlx-3 (101 → 302 MiB, +198.5 %; 2 and 2 processes" in sentence
    (table,) = section["tables"]
    assert table["missing"] == ("mlx-2",)
    assert str(table["table"]).count("+198.5") == 1


def test_a_peak_that_does_not_step_is_said_so():
    flat = {name: [100, 101] for name in ENGINES if name != "replay"}
    section = history_section(histories(results(flat), ENGINES))
    assert "the peak does not step" in section["sentences"][0]


def test_the_figure_speaks_the_steps():
    figure = history_figure(histories(results(PEAKS), ENGINES))
    assert "steps at mlx-3" in figure.alt
    assert "<svg" in figure.svg
