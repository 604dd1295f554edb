"""How long each step took, remembered from run to run, and what that says of the next one."""

import contextlib
import re
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean

from kvpeak.base.errors import UserError
from kvpeak.base.files import write_json
from kvpeak.base.layout import CELLS, RECORD_FILE
from kvpeak.base.untrusted import read_object, read_text

FILE = Path(".snakemake/kvpeak.durations.json")
CELL = "cell"  # the rule
MOST_RECORDS = 300  # of earlier cells that are looked into
LONGEST_S = 1e7  # of a step: 116 days; what a file says beyond it is no duration


@dataclass
class Durations:
    """steps: rule → what it made → seconds. overhead: the time of the last run over the sum of its
    steps.
    """

    steps: dict[str, dict[str, float]] = field(default_factory=dict)
    overhead: float = 1.0

    @classmethod
    def read(cls, file: Path = FILE) -> "Durations":
        """What is remembered; a file that is not there or damaged is none."""
        try:
            found = read_object(file)
            steps = {
                str(rule): {str(made): float(s) for made, s in known.items() if 0 <= s < LONGEST_S}
                for rule, known in found["steps"].items()
            }
            return cls(steps, min(max(float(found["overhead"]), 0.1), 10.0))
        except (OSError, UserError, ValueError, TypeError, KeyError, AttributeError, OverflowError):
            return cls()

    def write(self, file: Path = FILE) -> None:
        """Remember; a folder that cannot be written costs the next estimate and nothing else."""
        with contextlib.suppress(OSError, ValueError):
            write_json(file, {"overhead": self.overhead, "steps": self.steps})

    def note(self, rule: str, made: str, seconds: float) -> None:
        self.steps.setdefault(rule, {})[made] = round(seconds, 2)

    def of_step(self, rule: str, made: str) -> float:
        """Seconds that a step took the last time, or its like; 0 if that is not known."""
        known = self.steps.get(rule, {})
        if rule == CELL:
            return self.of_cell(made) or 0.0
        return known.get(made, fmean(known.values()) if known else 0.0)

    def of_cell(self, cell: str) -> float | None:
        """Seconds that a cell (its path below results/cells/) will take.

        They are its own, or else the mean of those like it: of the same engine and model, of the
        same engine, of all. None if no cell was ever measured here.
        """
        known = self.steps.get(CELL, {})
        if cell in known:
            return known[cell]
        parts = cell.split("/")
        for depth in (2, 1, 0):
            alike = [s for other, s in known.items() if other.split("/")[:depth] == parts[:depth]]
            if alike:
                return fmean(alike)
        return None

    def of_run(self, counts: dict[str, int], cells: list[str]) -> float | None:
        """Seconds that a run takes: so many steps of each rule, and these cells among them.

        None if no cell was ever measured here and there are cells to be measured.
        """
        count = counts.get(CELL, 0)
        each = [self.of_cell(cell) for cell in cells[:count]]
        if count and not self.steps.get(CELL):
            return None
        each += [self.of_cell("")] * (count - len(each))
        others = sum(
            number * fmean(self.steps[rule].values())
            for rule, number in counts.items()
            if rule != CELL and self.steps.get(rule)
        )
        return self.overhead * (sum(each) + others)

    def learn_from(self, results: Path = CELLS) -> None:
        """Take over how long earlier cells took, where nothing is remembered of any."""
        if self.steps.get(CELL):
            return
        for record in sorted(results.glob(f"*/*/*/*/*/*/*/{RECORD_FILE}"))[:MOST_RECORDS]:
            with contextlib.suppress(OSError, UserError, ValueError):
                text = read_text(record)
                found = re.search(r'^ "elapsed_s": ([\d.]+)', text, re.MULTILINE)
                if found and (seconds := float(found[1])) < LONGEST_S:
                    cell = record.parent.relative_to(results).as_posix()
                    self.note(CELL, cell, seconds + START_S)


START_S = 1.0  # what a cell takes beside its engine: the runner's start, the planner's


def spelled(seconds: float) -> str:
    """4.2 s, 35 s, 5 min 20 s, 2 h 5 min."""
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes} min {rest} s" if rest else f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if minutes else f"{hours} h"


def about(seconds: float) -> str:
    """The same without a precision that an estimate does not have: 4 s, 5 min, 5½ min, 1 h 10
    min.
    """
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    halves = round(seconds / 30)
    if halves < 20:
        return f"{halves // 2}{'½' if halves % 2 else ''} min"
    return spelled(60 * round(seconds / 60))
