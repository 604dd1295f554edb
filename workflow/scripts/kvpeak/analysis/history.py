"""The peak and the speed against releases, and the releases at which the peak steps.

A step lies between two releases that follow each other among those measured. It counts if the
medians differ by more than PRACTICAL and every process of one side is above every process of the
other. With n processes a side that would happen by chance in 2 of C(2n, n) orders if nothing had
changed: 1 in 3 for 2, 1 in 10 for 3, 1 in 126 for 5. That is why the share decides as well: peaks
of equal processes lie within a hundredth of each other.
"""

from dataclasses import dataclass, field
from math import comb

import numpy as np

from kvpeak.analysis.comparisons import PRACTICAL
from kvpeak.analysis.results import CellName, Results
from kvpeak.base.axes import AXES
from kvpeak.base.columns import SPEEDS

FEWEST = 4  # releases that make a history
COMMIT = AXES.index("commit")


@dataclass(frozen=True)
class Point:
    """One release: the peak of each of its processes in MiB, and of each speed its process
    means.
    """

    commit: str
    peaks: tuple[float, ...]
    speeds: dict[str, tuple[float, ...]] = field(default_factory=dict)
    loop: float | None = None  # MiB that importing the engine's loop takes

    @property
    def peak(self) -> float:
        """The median of the processes, MiB."""
        return float(np.median(self.peaks))


@dataclass(frozen=True)
class Step:
    """The peak of `after`, the first release that has it, over that of `before`, the last
    without.
    """

    before: Point
    after: Point

    @property
    def ratio(self) -> float:
        """Median after / median before."""
        return self.after.peak / self.before.peak

    @property
    def loop_mib(self) -> float:
        """How much of the step is what importing the loop takes; 0 where that is not known."""
        loops = self.before.loop, self.after.loop
        return 0.0 if None in loops else loops[1] - loops[0]

    @property
    def imports(self) -> bool:
        """Whether importing the loop makes most of the step."""
        return 2 * self.loop_mib / (self.after.peak - self.before.peak) > 1

    @property
    def chance(self) -> float:
        """How often such an order of processes would come about if nothing had changed."""
        sides = (len(self.before.peaks), len(self.after.peaks))
        return 2 / comb(sum(sides), sides[0])


@dataclass(frozen=True)
class History:
    """The releases of one engine for one combination of the other axes, in the order of the matrix.

    names: on the other axes. missing: the releases without a peak.
    """

    engine: str
    names: dict[str, str]
    points: tuple[Point, ...]
    missing: tuple[str, ...]

    @property
    def steps(self) -> list[Step]:
        """Where the peak steps, in the order of the releases."""
        neighbours = zip(self.points, self.points[1:], strict=False)
        return [Step(*pair) for pair in neighbours if is_step(*(each.peaks for each in pair))]


def is_step(before: tuple[float, ...], after: tuple[float, ...]) -> bool:
    """Whether the peaks of two releases' processes differ by more than PRACTICAL, and all the same
    way.
    """
    if abs(float(np.median(after)) / float(np.median(before)) - 1) <= PRACTICAL:
        return False
    return max(before) < min(after) or max(after) < min(before)


def histories(results: Results, engines: dict[str, str]) -> list[History]:
    """Every combination of the other axes that FEWEST releases of one engine measured.

    engines: commit → engine, in the order of the releases, the oldest first.
    """
    groups: dict[tuple[str, CellName], dict[str, CellName]] = {}
    for cell in results.plan:
        if (commit := cell[COMMIT]) in engines:
            others = (*cell[:COMMIT], *cell[COMMIT + 1 :])
            groups.setdefault((engines[commit], others), {})[commit] = cell
    names = [axis for axis in AXES if axis != "commit"]
    found = []
    for (engine, others), cells in groups.items():
        ordered = [cells[commit] for commit in engines if commit in cells]
        points = [_point(results, cell) for cell in ordered if len(results.peaks(cell))]
        if len(points) >= FEWEST:
            known = {point.commit for point in points}
            missing = tuple(cell[COMMIT] for cell in ordered if cell[COMMIT] not in known)
            names_here = dict(zip(names, others, strict=True))
            found.append(History(engine, names_here, tuple(points), missing))
    return found


def _point(results: Results, cell: CellName) -> Point:
    speeds = {column: tuple(map(float, results.speeds(cell, column))) for column in SPEEDS}
    loop = results.summary.get(cell, {}).get("loop_mib")
    return Point(cell[COMMIT], tuple(map(float, results.peaks(cell))), speeds, loop)
