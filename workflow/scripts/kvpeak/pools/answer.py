"""What a replay says, in words and tables."""

from dataclasses import dataclass, field

from kvpeak.base.numbers import percent
from kvpeak.base.tables import csv_text
from kvpeak.base.text import plain
from kvpeak.pools.holders import Holding
from kvpeak.pools.replay import Outcome
from kvpeak.pools.trace import Trace

MB = 10**6  # as in the tables of PyTorch's users; files have bytes

# Column of the CSV and JSON → what it is.
COLUMNS = {
    "setting": "policy and parameters",
    "reserved_peak": "bytes: the most that the pool took from the device",
    "active_peak": "bytes: the most in buffers that were held, as large as they are",
    "requested_peak": "bytes: the most in buffers that were held, as asked for",
    "inside": "bytes at the peak: in held buffers, beyond what was asked for",
    "outside": "bytes at the peak: reserved, in no held buffer",
    "requests": "how many buffers were asked for",
    "hits": "how many of them were served without new memory",
    "made": "real allocations: how often memory was taken from the device",
    "returned": "how often memory was given back to the device",
    "retries": "how often a request was tried again after free memory was given back",
    "retry_bytes": "bytes that these gave back",
    "fits": "whether all requests were served with the memory that there is",
    "failed_at": "the event that was not; -1: none",
    "failed_bytes": "bytes that it asked for",
    "failed_reserved": "bytes reserved then",
    "failed_active": "bytes in held buffers then",
}


@dataclass
class Answer:
    """A trace, what came of it under each setting, and what follows."""

    trace: Trace
    limit: int | None
    outcomes: list[Outcome]
    now: Outcome | None = None
    best: Outcome | None = None
    front: list[Outcome] = field(default_factory=list)
    holders: list[Holding] = field(default_factory=list)
    searched: bool = False

    def rows(self) -> list[dict]:
        return [{name: row_value(each, name) for name in COLUMNS} for each in self.outcomes]


def row_value(outcome: Outcome, name: str):
    value = getattr(outcome, name)
    return str(value) if name == "setting" else value


def mb(size: int) -> str:
    return f"{size / MB:,.0f} MB"


def sentence(answer: Answer) -> str:
    """One sentence: what to set, and what it saves."""
    now, best = answer.now, answer.best
    if not best:
        return "No setting of the recorded engine is known: see the front."
    what = best.setting.parameters or "the default"
    if now and not now.fits:
        return f"{what}: {mb(best.reserved_peak)}, and it fits; what you have now does not."
    if now and best.reserved_peak < now.reserved_peak:
        saved = percent(1 - best.reserved_peak / now.reserved_peak, 0, sign=False)
        more = best.made - now.made
        cost = f", with {more:,} more real allocations" if more > 0 else ""
        return f"{what}: {mb(best.reserved_peak)}, {saved} less than you have now{cost}."
    return f"What you have now ({mb(best.reserved_peak)}) is the best of the settings tried."


def fit_of(answer: Answer, outcome: Outcome) -> str:
    """Whether an outcome fits into the memory there is; where it fails; what the retry gave
    back.
    """
    gave = (
        f"; {outcome.retries:,} retries gave back {mb(outcome.retry_bytes)}"
        if outcome.retries
        else ""
    )
    if outcome.fits:
        return f"fits{gave}"
    event, trace = outcome.failed_at, answer.trace
    phase = trace.phases[trace.phase[event]]
    where = f" in {plain(phase, 40)}" if phase else ""
    return (
        f"fails at event {event:,} of {len(trace):,}{where}: {mb(outcome.failed_bytes)} asked for, "
        f"{mb(outcome.failed_reserved)} reserved, {mb(outcome.failed_active)} of it held{gave}"
    )


def table(answer: Answer, most: int = 20) -> str:
    """The settings as text for a terminal, the lowest peak first; MB are 10^6 bytes.

    The best of each policy and the recorded one are always there.
    """
    order = sorted(answer.outcomes, key=lambda each: (not each.fits, each.reserved_peak, each.made))
    first = {each.setting.policy: each for each in reversed(order)}.values()
    always = {id(each) for each in (*first, answer.now)}
    shown = [each for i, each in enumerate(order) if i < most or id(each) in always]
    rows = [("setting", "peak MB", "live MB", "inside", "outside", "hits", "allocations", "")]
    for each in shown:
        marks = [
            mark for mark, is_so in (("now", each is answer.now), ("fails", not each.fits)) if is_so
        ]
        rows.append(
            (
                str(each.setting),
                f"{each.reserved_peak / MB:,.0f}",
                f"{each.active_peak / MB:,.0f}",
                f"{each.inside / MB:,.0f}",
                f"{each.outside / MB:,.0f}",
                percent(each.hits / each.requests, 1, sign=False) if each.requests else "–",
                f"{each.made:,}",
                ", ".join(marks),
            )
        )
    text = aligned(rows)
    left = len(order) - len(shown)
    return text + (f"\n… and {left:,} more" if left > 0 else "")


def holders_table(holders: list[Holding], most: int = 12) -> str:
    """The largest holders as text for a terminal."""
    rows = [("held MB", "count", "each", "asked for", "age", "from")]
    for each in holders[:most]:
        lines = each.stack.splitlines()
        origin = " < ".join([part for part in (each.phase, *lines[:2]) if part])
        rows.append(
            (
                f"{each.total / MB:,.1f}",
                f"{each.count:,}",
                f"{each.held:,}",
                f"{each.requested:,}",
                f"{each.age_us / 1e6:,.3f} s",
                plain(origin, 70),
            )
        )
    return aligned(rows)


def aligned(rows: list[tuple[str, ...]]) -> str:
    """Rows in columns: texts (the first and the last) to the left, numbers to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    ends = (0, len(widths) - 1)
    return "\n".join(
        "  ".join(
            cell.ljust(width) if i in ends else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )


def settings_csv(answer: Answer) -> str:
    return csv_text(COLUMNS, answer.rows())


def holders_csv(answer: Answer) -> str:
    names = ["count", "requested", "held", "age_us", "age_events", "phase", "stack"]
    rows = [{name: getattr(each, name) for name in names} for each in answer.holders]
    return csv_text(names, rows)


def series_csv(answer: Answer, outcome: Outcome) -> str:
    names = ["part", "reserved", "active", "requested"]
    rows = [
        dict(zip(names, (part, *values), strict=True))
        for part, values in enumerate(zip(*outcome.series, strict=True))
    ]
    return csv_text(names, rows)
