"""The published log of Candle's buffers as a trace: which requests it takes to give this log.

The log counts buffers of one size, layer by layer: how many were made, and how many were held at
the softmax (`layer,new_512mib,held_512mib_at_softmax`; a held that was not published is empty). It
does not say who held them. The trace has as many requests of that size at a time as were made in
the first layer, of which so many are held at the softmax as there. What is held beyond that in a
later layer was taken by a request that needed less: a key or value of the cache, of SMALL bytes.
"""

import csv
from pathlib import Path

from kvpeak.base.errors import UserError
from kvpeak.pools.trace import Op, Trace

COLUMNS = ("layer", "new_512mib", "held_512mib_at_softmax")
LARGE, SMALL = 512 * 2**20, 2**20  # bytes: of the scores, and of a key or value (4,096 tokens)
MOST_HELD = 10_000
MOST_LAYERS = 10_000
MOST_BUFFERS = 1_000_000  # of all layers


def read_log(reader: csv.DictReader, path: Path) -> Trace:
    """A trace from the log's rows. Raises UserError for a log that no such requests can give."""
    rows = []
    for row in reader:
        if len(rows) == MOST_LAYERS:
            raise UserError(f"{path}: expected at most {MOST_LAYERS:,} layers")
        rows.append(_numbers(row, path, reader.line_num))
    if not rows or rows[0][1] is None:
        raise UserError(f"{path}: expected a first layer with both of its numbers")
    scores, at_softmax = rows[0]
    if len(rows) * scores > MOST_BUFFERS:
        raise UserError(f"{path}: expected at most {MOST_BUFFERS:,} buffers in all layers")
    trace = Trace(name=path.name, source="candle", setting="candle")
    trace.phases = [f"layer {layer}" for layer in range(len(rows))]
    trace.notes.append(
        f"reconstructed from a log of buffers: {scores} of 512 MiB at a time, and cache tensors of "
        "1 MiB that hold what the log has beyond that"
    )
    taken = 0  # cache tensors
    for layer, (_, held) in enumerate(rows):
        more = 0 if held is None else held - at_softmax - taken
        if more < 0 or not 0 <= at_softmax <= scores:
            raise UserError(f"{path}: layer {layer}: held {held}; expected no fewer than before")
        for _ in range(more):
            trace.born(Op.ALLOC, SMALL, phase=layer)
        taken += more
        live = [trace.born(Op.ALLOC, LARGE, phase=layer) for _ in range(scores)]
        for id in live:
            trace.add(Op.FREE, id, phase=layer)
    return trace


def _numbers(row: dict, path: Path, line: int) -> tuple[int, int | None]:
    """How many were made, and how many were held."""
    made, held = row[COLUMNS[1]] or "", row[COLUMNS[2]] or ""
    if not made.isdecimal() or not (held.isdecimal() or held == ""):
        raise UserError(f"{path}: line {line}: expected whole numbers; got {made!r} and {held!r}")
    if max(len(made), len(held)) > 9 or max(int(made), int(held or 0)) > MOST_HELD:
        raise UserError(f"{path}: line {line}: expected at most {MOST_HELD:,} buffers")
    return int(made), int(held) if held else None
