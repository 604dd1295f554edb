"""Which of many releases changed a peak, with as few of them measured as can be.

Between a release that is good and one that is bad the middle one is measured, and so on: of n
releases between the two ends about log2 n.
"""

from dataclasses import dataclass, field
from math import ceil, log, log2

GOOD, BAD, SKIPPED = "good", "bad", "skipped"


@dataclass
class Bisection:
    """The search. candidates: the first is good, the last is bad, the others lie between in order.

    verdicts: candidate → GOOD, BAD or SKIPPED (it could not be measured).
    """

    candidates: list[str]
    verdicts: dict[str, str] = field(default_factory=dict)

    @property
    def ends(self) -> tuple[int, int]:
        """The positions of the last known good and of the first known bad candidate."""
        known = [self.verdicts.get(name) for name in self.candidates]
        bad = next((n for n, verdict in enumerate(known) if n and verdict == BAD), len(known) - 1)
        good = max((n for n in range(bad) if known[n] == GOOD), default=0)
        return good, bad

    def next(self) -> str | None:
        """The candidate to be measured now, the nearest to the middle; None if the step is
        found.
        """
        good, bad = self.ends
        middle = (good + bad) / 2
        left = [n for n in range(good + 1, bad) if self.candidates[n] not in self.verdicts]
        return self.candidates[min(left, key=lambda n: abs(n - middle))] if left else None

    @property
    def found(self) -> tuple[str, str]:
        """The two candidates between which the step is: the last good and the first bad one so
        far.
        """
        good, bad = self.ends
        return self.candidates[good], self.candidates[bad]

    @property
    def between(self) -> list[str]:
        """What lies between these two and could not be measured."""
        good, bad = self.ends
        return self.candidates[good + 1 : bad]

    @property
    def at_most(self) -> int:
        """How many more have to be measured, if none is skipped."""
        good, bad = self.ends
        return ceil(log2(bad - good)) if bad - good > 1 else 0


def verdict(peak: float, good: float | None, bad: float | None, above: float | None) -> str:
    """Whether a peak is like the good end's or like the bad end's, all in MiB.

    above: what is larger is bad; the ends are not needed then. Else the nearer one decides, as a
    ratio.
    """
    if above is not None:
        return BAD if peak > above else GOOD
    return BAD if abs(log(peak / bad)) < abs(log(peak / good)) else GOOD
