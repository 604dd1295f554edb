"""Which axis decides the peak: how much of the differences among cells goes with each."""

from dataclasses import dataclass

import numpy as np

from kvpeak.analysis.comparisons import has_peak
from kvpeak.analysis.results import Results
from kvpeak.base.axes import AXES

SETTINGS = ("commit", "kv_cache", "cap", "variant")
MIN_CELLS = 4
CONFOUNDED = 0.9  # of the largest share


@dataclass(frozen=True)
class Shares:
    """The live cells of one model and prompt, and the share of their variance by axis."""

    model: str
    prompt: str
    tokens: int
    cells: int
    shares: dict[str, float]  # axis → 0 to 1, of the logarithm of the peak; axes with several names

    @property
    def first(self) -> str:
        """The axis with the largest share."""
        return max(self.shares, key=self.shares.get)

    @property
    def together(self) -> list[str]:
        """The axes whose share is about that of the first: these cells do not tell them apart."""
        most = self.shares[self.first]
        return [axis for axis, share in self.shares.items() if share >= CONFOUNDED * most]


def shares_of_variance(results: Results) -> list[Shares]:
    """For each model and prompt with at least MIN_CELLS live cells: the share that goes with each
    axis.

    The share of an axis is the sum of squares between the means of its names over the whole sum of
    squares of the logarithms (the correlation ratio: Fisher 1925). Shares of axes that were not
    crossed completely overlap, and need not add up to 1.
    """
    groups: dict[tuple[str, str], list[dict]] = {}
    for row in results.summary.values():
        if has_peak(row) and row["method"] == "live" and row["peak_mib"] > 0:
            groups.setdefault((row["model"], row["prompt"]), []).append(row)
    found = []
    for (model, prompt), rows in groups.items():
        shares = {axis: share for axis in SETTINGS if (share := _share(rows, axis)) is not None}
        if len(rows) >= MIN_CELLS and shares:
            found.append(Shares(model, prompt, int(rows[0]["prompt_tokens"]), len(rows), shares))
    return found


def _share(rows: list[dict], axis: str) -> float | None:
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
    return float(between / total)
