"""The six axes of an experiment, and the cell: one combination of them, in one round."""

import re
from dataclasses import dataclass

AXES = ("commit", "model", "prompt", "kv_cache", "cap", "variant")
NAME = r"[A-Za-z0-9][A-Za-z0-9._-]*"  # of anything on an axis; safe as the name of a folder
ROUND = r"r[1-9]\d*"


@dataclass(frozen=True, slots=True)
class Cell:
    """One combination of the axes, in one round: what one process measures."""

    commit: str
    model: str
    prompt: str
    kv_cache: str
    cap: str
    variant: str
    round: int = 1

    @property
    def path(self) -> str:
        """The cell's path below results/cells/."""
        return "/".join((*self.axes, f"r{self.round}"))

    @property
    def axes(self) -> tuple[str, ...]:
        """The names on the six axes, in the order of AXES."""
        return (self.commit, self.model, self.prompt, self.kv_cache, self.cap, self.variant)

    def as_dict(self) -> dict:
        """The six names and the round, as requests and records hold them."""
        return dict(zip((*AXES, "round"), (*self.axes, self.round), strict=True))


def is_name(text: object) -> bool:
    """Whether a value can stand on an axis."""
    return isinstance(text, str) and re.fullmatch(NAME, text) is not None
