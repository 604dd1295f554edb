"""What was seen of one process, while it runs and after it."""

from dataclasses import dataclass, field

from kvpeak.protocol.events import Conversation
from kvpeak.runner.table_output import Table
from kvpeak.runner.timeline import Timeline


@dataclass
class Watched:
    """What was seen of one process.

    stopped: (why: guard, timeout or garbled; in words), None if the engine ended by itself.
    now_mib, peak_mib: the last sampled footprint, and the largest. peak_tree_mib: the largest of
    the process and all that it started, added; None if it started nothing that was seen. phases:
    phase, start_s and end_s; of a turn its number; with a counter of energy start_j and end_j.
    """

    conversation: Conversation | Table
    timeline: Timeline = field(default_factory=Timeline)
    phases: list[dict] = field(default_factory=list)
    stopped: tuple[str, str] | None = None
    now_mib: float = 0.0
    peak_mib: float = 0.0
    peak_tree_mib: float | None = None

    @property
    def where(self) -> dict:
        """The phase now, and the turn if there are turns."""
        turn = self.conversation.turn
        return {"phase": self.conversation.phase} | ({"turn": turn} if turn else {})
