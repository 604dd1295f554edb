"""One run of Snakemake: its events become lines and a bar."""

import logging
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from kvpeak.base.layout import FINDING
from kvpeak.base.text import plain
from kvpeak.display import results
from kvpeak.display.durations import CELL, Durations, about, spelled
from kvpeak.display.screen import BARS, Stream, Terminal

MISSING = Path(".snakemake/kvpeak.missing")  # written by workflow/rules/common.smk
SLOW_STEP_S = 10  # a step other than a cell that took longer has a line of its own
BAR = 24  # columns
MOST_ERROR = 300  # characters
NOTHING_TO_DO = "Nothing to be done"


@dataclass
class Step:
    """A job.

    cell: its path below results/cells/, '' for another step. made: by what its duration is
    remembered. begun: seconds since 1970.
    """

    rule: str
    words: str
    cell: str
    made: str
    outputs: tuple[str, ...]
    log: str
    begun: float


class Run:
    """Takes Snakemake's events.

    rich draws the bar in a thread of its own and under a lock of its own; a second lock here would
    be taken in the other order. `bar` therefore only copies and reads what `take` changes.
    """

    def __init__(
        self,
        screen: Stream | Terminal,
        durations: Durations | None = None,
        now: Callable[[], float] = time.time,
    ):
        self._screen, self._now = screen, now
        self._durations = Durations.read() if durations is None else durations
        self._begun = now()
        self._planned: dict[str, int] = {}  # rule → how many steps
        self._cells: list[str] = []  # that are to be measured
        self._labels: dict[str, str] = {}
        self._steps: dict[int, Step] = {}  # at work
        self._done: Counter[str] = Counter()  # rule → how many have ended or failed
        self._ended: dict[str, float] = {}  # cell → seconds
        self._failed: list[Step] = []
        self._spent = 0.0  # seconds of all steps that have ended
        self._held_back: list[str] = []  # messages of before it is known what this run is
        self._rendered = self._closed = False
        self._takes = {
            "run_info": self._plan,
            "job_info": self._begin,
            "job_finished": self._finish,
            "job_error": self._fail,
            "group_error": self._fail_group,
        }

    def take(self, event: str, values: dict, created: float) -> bool:
        """Whether the event, one of Snakemake's, is shown here. `created`: when, seconds since
        1970.
        """
        if event in self._takes:
            self._takes[event](values, created)
        # A command that ended with an error was a step, whose cause is shown.
        ended = values.get("exception") == "RuleException" and "CalledProcessError" in values["msg"]
        return event != "error" or ended

    def message(self, text: str, level: int) -> None:
        """What Snakemake says in words."""
        if level >= logging.WARNING:
            if (
                not self._failed or level < logging.ERROR
            ):  # the causes of failures are shown already
                self._say(text, "bad" if level >= logging.ERROR else "doubtful")
        elif not self._planned:
            self._held_back.append(text)

    def failed(self, error: Exception) -> None:
        """An event that cannot be shown costs one line; the run goes on."""
        what = f"{type(error).__name__}: {error}"
        self._screen.line(plain(f"not shown: {what}", MOST_ERROR), "doubtful")

    def close(self) -> None:
        """Say how the run ended, and remember how long its steps took."""
        if self._closed:
            return
        self._closed = True
        self._screen.close_bar()
        if not self._planned:
            self._say_what_was_held_back()
            return
        elapsed = self._now() - self._begun
        if self._spent and not self._failed:
            self._durations.overhead = elapsed / self._spent
        self._durations.write()
        if self._failed:
            steps = f"{len(self._failed)} step{'s' * (len(self._failed) > 1)} failed"
            self._screen.line(f"{steps}; with cause and log: kvpeak failed", "bad")
        if self._rendered:
            self._say_finding(f"{len(self._ended)} cells measured in {spelled(elapsed)}")

    def bar(self, width: int) -> list[str]:
        """The bar, and a line for each cell or other step at work."""
        total, done = self._planned.get(CELL, 0), self._done[CELL]
        steps = list(self._steps.values())
        gone, left = self._now() - self._begun, self._left()
        times = f"{spelled(gone)} gone" + (f", about {about(left)} left" if left else "")
        filled = BAR * done // total if total else 0
        head = f"{BARS[0] * filled}{BARS[1] * (BAR - filled)} {done} of {total} cells, {times}"
        return [head if total else times, *(self._at_work(step) for step in steps)]

    def _at_work(self, step: Step) -> str:
        if not step.cell:
            return step.words
        return f"{self._label(step.cell)}: {results.doing(step.cell, step.log)}"

    def _plan(self, values: dict, _created: float) -> None:
        if self._planned:  # it is said again at the end
            return
        self._planned = {rule: n for rule, n in values["stats"].items() if rule != "total"}
        self._cells = results.missing_cells(MISSING)
        self._labels = results.labels(self._cells)
        self._durations.learn_from()
        count = self._planned.get(CELL, 0)
        what = f"{count} cells to measure" if count else "no cell to measure"
        seconds = self._durations.of_run(self._planned, self._cells)
        if seconds is None:
            how_long = "how long they take is not known before the first"
        else:
            how_long = f"about {about(seconds)}, as earlier runs took here"
        self._screen.line(f"{what}, {how_long}", "head")
        self._screen.open_bar(self.bar)

    def _begin(self, values: dict, created: float) -> None:
        outputs = tuple(map(str, values["output"]))
        cell = str(values["wildcards"].get("cell", "")) if values["rule_name"] == CELL else ""
        words = plain(values["rule_msg"] or values["rule_name"])
        log = str(next(iter(values["log"]), ""))
        self._steps[values["jobid"]] = Step(
            values["rule_name"], words, cell, cell or " ".join(outputs[:1]), outputs, log, created
        )

    def _finish(self, values: dict, created: float) -> None:
        step = self._steps.pop(values["job_id"], None)
        if step is None:
            return
        seconds = created - step.begun
        self._spent += seconds
        self._done[step.rule] += 1
        self._durations.note(step.rule, step.made, seconds)
        self._rendered |= str(FINDING) in step.outputs
        if step.cell:
            self._ended[step.cell] = seconds
            self._say_cell(step.cell, seconds)
        elif seconds >= SLOW_STEP_S:
            self._screen.line(f"{step.words}: {spelled(seconds)}")

    def _say_cell(self, cell: str, seconds: float) -> None:
        outcome, words = results.outcome_of(cell)
        total = self._planned.get(CELL, 0)
        head = f"{len(self._ended):>{len(str(total))}}/{total} {self._label(cell)}"
        if outcome == "ok":
            self._screen.line(f"{head}: {words}, {spelled(seconds)}")
        else:
            self._screen.line(f"{head}: {outcome}: {words}", "doubtful")

    def _fail(self, values: dict, _created: float) -> None:
        step = self._steps.pop(values["jobid"], None)
        if step is None:
            return
        self._failed.append(step)
        self._done[step.rule] += 1
        what = f"{self._label(step.cell)} failed" if step.cell else f"{step.words}: failed"
        cause, log = results.cause_of(step.log, step.cell)
        self._screen.line(f"{what}: {cause}; log: {log}", "bad")

    def _fail_group(self, values: dict, created: float) -> None:
        for job in values.get("job_error_info", ()):
            self._fail(job, created)

    def _label(self, cell: str) -> str:
        return self._labels.get(cell) or " ".join(cell.split("/"))

    def _left(self) -> float | None:
        """Seconds until all is done; None if no cell was ever measured here."""
        counts = {rule: n - self._done[rule] for rule, n in self._planned.items()}
        to_do = [cell for cell in self._cells if cell not in self._ended]
        whole = self._durations.of_run(counts, to_do)
        if whole is None:
            return None
        gone = sum(
            min(self._now() - step.begun, self._durations.of_step(step.rule, step.made))
            for step in list(self._steps.values())
        )
        return max(0.0, whole - self._durations.overhead * gone)

    def _say_what_was_held_back(self) -> None:
        """What another command of Snakemake's said; of a run with nothing to do, the finding."""
        nothing = next((text for text in self._held_back if text.startswith(NOTHING_TO_DO)), "")
        if nothing and FINDING.exists():
            self._say_finding("nothing to do: all is measured and up to date")
            return
        for text in self._held_back:
            self._say(text)

    def _say(self, text: str, style: str = "good") -> None:
        """A message of Snakemake's, which may have several lines."""
        for line in text.splitlines():
            self._screen.line(plain(line), style)

    def _say_finding(self, what: str) -> None:
        if title := results.sentence():
            self._screen.line(title, "head")
        if counts := results.verdicts():
            self._screen.line(f"claims: {counts}")
        self._screen.line(f"{FINDING} ({what})")
