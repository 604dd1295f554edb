"""The sampled memory of a process over time, in bounded space."""

from kvpeak.base.columns import MEMORY
from kvpeak.base.tables import csv_text

MOST_ROWS = 2000


class Timeline:
    """Rows of memory.csv. A row stands for one sample or more of one phase: it has the time of the
    first and the largest of each size. When there are too many rows, neighbours are joined.
    """

    def __init__(self):
        self._rows: list[tuple] = []
        self._per_row = 1  # samples that a row takes
        self._in_last = 0  # samples in the last row
        self._most = MOST_ROWS

    def add(
        self, t_s: float, phase: str, footprint: float, rss: float, device: float | None
    ) -> None:
        row = (t_s, phase, footprint, rss, device)
        if self._in_last < self._per_row and self._rows and self._rows[-1][1] == phase:
            self._rows[-1] = _joined(self._rows[-1], row)
            self._in_last += 1
            return
        self._rows.append(row)
        self._in_last = 1
        if len(self._rows) > self._most:
            self._fold()

    def samples(self, column: str, phase: str | None = None) -> list[tuple[float, float]]:
        """(t_s, MiB) of one size, where it is known; of one phase, or of all."""
        place = MEMORY.names.index(column)
        return [
            (row[0], row[place])
            for row in self._rows
            if phase in (None, row[1]) and row[place] is not None
        ]

    def largest(self, column: str, phase: str | None = None) -> float | None:
        """The largest sample of one size; None if there is none."""
        return max((mib for _, mib in self.samples(column, phase)), default=None)

    def text(self) -> str:
        """The rows as CSV; an unknown size is empty."""
        rows = []
        for t_s, phase, *sizes in self._rows:
            cells = (None if size is None else f"{size:.2f}" for size in sizes)
            rows.append(dict(zip(MEMORY.names, (f"{t_s:.3f}", phase, *cells), strict=True)))
        return csv_text(MEMORY.names, rows)

    def _fold(self) -> None:
        rows: list[tuple] = []
        open_row = False  # whether the last of `rows` takes one more
        for row in self._rows:
            if open_row and rows[-1][1] == row[1]:
                rows[-1] = _joined(rows[-1], row)
                open_row = False
            else:
                rows.append(row)
                open_row = True
        self._rows = rows
        self._per_row *= 2
        self._most = max(MOST_ROWS, 2 * len(rows))  # many short phases cannot be joined


def _joined(one: tuple, other: tuple) -> tuple:
    sizes = zip(one[2:], other[2:], strict=True)
    return (*one[:2], *(max((s for s in pair if s is not None), default=None) for pair in sizes))
