"""Which axis decides the peak: how much of the differences among cells goes with each."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from scipy import special

from kvpeak.analysis.comparisons import has_peak
from kvpeak.analysis.results import Results
from kvpeak.analysis.workloads import spell_workload
from kvpeak.base.axes import AXES

SETTINGS = ("commit", "kv_cache", "cap", "variant")
# Cells beyond those that the axes' names alone would fit: with fewer a share says nothing.
MIN_FREEDOM = 5
AS_LARGE = 0.9  # of the largest share
NOTHING = 1e-12  # of the variance: rounding
CHANCE = 0.05  # a share that chance reaches as often is none


@dataclass(frozen=True)
class Shares:
    """The live cells of one model and prompt, and the share of their variance by axis."""

    model: str
    prompt: str
    tokens: int
    workload: str  # what the prompt is, in words; '' for one text, which has so many tokens
    cells: int
    shares: dict[str, float]  # axis → 0 to 1, of the logarithm of the peak; axes with several names
    freedom: int  # residual degrees of freedom of a model with every axis, without interactions
    together: list[str]  # the axis with the largest share, and those whose names change with its

    @property
    def first(self) -> str:
        """The axis with the largest share."""
        return max(self.shares, key=self.shares.get)

    @property
    def overlapping(self) -> list[str]:
        """The axes that these cells do tell from the first, and that have about as large a
        share.
        """
        most = self.shares[self.first]
        return [
            axis
            for axis, share in self.shares.items()
            if axis not in self.together and share >= AS_LARGE * most
        ]


def shares_of_variance(results: Results) -> list[Shares]:
    """For each model and prompt whose live cells leave MIN_FREEDOM residual degrees of freedom: the
    share that goes with each axis.

    The share of an axis is the sum of squares between the means of its names over the whole sum of
    squares of the logarithms (the correlation ratio: Fisher 1925). An axis with many names has a
    large share by chance alone: one that an F test does not tell from chance is left out. Shares of
    axes that were not crossed completely overlap, and need not add up to 1.
    """
    groups: dict[tuple[str, str], list[dict]] = {}
    for row in results.summary.values():
        if has_peak(row) and row["method"] == "live" and row["peak_mib"] > 0:
            groups.setdefault((row["model"], row["prompt"]), []).append(row)
    found = []
    for (model, prompt), rows in groups.items():
        freedom = residual_freedom(rows)
        if freedom < MIN_FREEDOM:
            continue
        shares = {axis: share for axis in SETTINGS if (share := _share(rows, axis)) is not None}
        if shares:
            together = _together(rows, max(shares, key=shares.get), shares)
            asked = int(rows[0]["prompt_tokens"]), spell_workload(rows[0])
            found.append(Shares(model, prompt, *asked, len(rows), shares, freedom, together))
    return found


def residual_freedom(rows: list[dict]) -> int:
    """How many cells are left when one parameter is taken for each name on each axis: the residual
    degrees of freedom of the additive model. 0: the names alone reproduce any peaks.
    """
    return len(rows) - int(np.linalg.matrix_rank(_design(rows)))


def _design(rows: list[dict]) -> np.ndarray:
    """The additive model's columns: one for each name on each axis."""
    names = [[row[axis] for row in rows] for axis in SETTINGS]
    columns = [np.ones(len(rows))]
    columns += [np.array([each == name for each in axis]) for axis in names for name in set(axis)]
    return np.column_stack(columns)


def _together(rows: list[dict], first: str, axes: Iterable[str]) -> list[str]:
    """The axes whose names and those of `first` belong together one to one in every cell."""

    def one_to_one(axis: str) -> bool:
        both = {(row[first], row[axis]) for row in rows}
        return len(both) == len({one for one, _ in both}) == len({other for _, other in both})

    return [axis for axis in axes if one_to_one(axis)]


def _share(rows: list[dict], axis: str) -> float | None:
    """None where the axis has one name, nothing differs, or chance alone would do as much."""
    assert axis in AXES
    logs = np.log([row["peak_mib"] for row in rows])
    names = np.array([row[axis] for row in rows])
    total = float(np.sum((logs - logs.mean()) ** 2))
    kinds = np.unique(names)
    if kinds.size < 2 or total == 0:
        return None
    between = sum(
        np.sum(names == name) * (logs[names == name].mean() - logs.mean()) ** 2 for name in kinds
    )
    share = float(between / total)
    return share if _by_chance(rows, logs / total**0.5, share, kinds.size - 1) < CHANCE else None


def _by_chance(rows: list[dict], logs: np.ndarray, share: float, freedom: int) -> float:
    """The p of the F test of a share against what the additive model leaves; `logs` have the total
    sum of squares 1.
    """
    design = _design(rows)
    solution, *_ = np.linalg.lstsq(design, logs, rcond=None)
    left, within = float(np.sum((logs - design @ solution) ** 2)), residual_freedom(rows)
    if left < NOTHING:
        return 0.0
    return float(special.fdtrc(freedom, within, share / freedom / (left / within)))
