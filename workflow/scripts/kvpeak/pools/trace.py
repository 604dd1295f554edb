"""Traces: what a program asked of its memory allocator, event by event, in one format.

A trace is independent of the allocator that served it: requests, not addresses.
docs/trace-format.md describes the file; this module alone reads and writes it. It needs the
standard library only.
"""

import json
import lzma
import os
import sys
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import IntEnum
from itertools import accumulate
from operator import sub
from pathlib import Path

from kvpeak.base.errors import UserError
from kvpeak.base.files import write_together
from kvpeak.base.numbers import MIB
from kvpeak.base.text import seen
from kvpeak.base.untrusted import open_recording

MAGIC = b"kvpeak trace 1\n"
SUFFIX = ".kvtrace"
MOST_EVENTS = 2**24  # of a trace, whoever wrote it: reading them takes 1 GiB
LONGEST_NAME = 300  # characters of a file, function or phase that another program named
MOST_HEADER = 64 * MIB  # of a file; parsing takes 30 times as much
_MOST_A_BYTE = 64  # events that a byte of a file may hold; recorded ones hold 0.3 to 2


class Op(IntEnum):
    """What happens; the numbers are those of native/replay.cpp."""

    ALLOC = 0  # a buffer of `bytes` is asked for
    FREE = 1  # it can be used again
    RELEASE = 2  # freed by the program, still used by another stream
    UPLOAD = 3  # host data, in a buffer of exactly `bytes` (Candle)
    WAIT = 4  # the host waits for the device
    CLEAR = 5  # the program has free memory given back
    PRESSURE = 6  # the recorded allocator gave free memory back, because it was short of it
    ATTEMPT = 7  # a request that the recorded allocator could not serve
    SEGMENT = 8  # memory that was there when the recording began: `bytes`
    PLACED = 9  # in it, a buffer that was held then
    SLACK = 10  # what that buffer takes beyond its request
    HOLE = 11  # in it, a free range


WITH_BYTES = frozenset(Op) - {Op.FREE, Op.RELEASE, Op.WAIT, Op.CLEAR, Op.PRESSURE}
BIRTHS = frozenset({Op.ALLOC, Op.UPLOAD, Op.PLACED})  # the buffer gets the next id
DEATHS = frozenset({Op.FREE, Op.RELEASE})


@dataclass
class Trace:
    """Columns of one length, and what the numbers in them mean.

    `time` in µs from the first event; `id` numbers the buffers in the order in which they appear;
    `bytes` is 0 where an event has none; `stream`, `phase` and `stack` are positions in the lists.
    `memory` is how much the recorded program is known to have had, `below` how much it is known
    not to have had, both in bytes and 0 where nothing is known.
    """

    name: str = ""
    source: str = ""  # who recorded it
    setting: str = ""  # under which policy and setting, as `torch,max_split_size_mb:32`
    notes: list[str] = field(default_factory=list)
    streams: list[str] = field(default_factory=lambda: ["0"])
    phases: list[str] = field(default_factory=lambda: [""])
    stacks: list[str] = field(default_factory=lambda: [""])
    memory: int = 0
    below: int = 0
    time: array = field(default_factory=lambda: array("q"))
    op: bytearray = field(default_factory=bytearray)
    id: array = field(default_factory=lambda: array("I"))
    bytes: array = field(default_factory=lambda: array("Q"))
    stream: array = field(default_factory=lambda: array("I"))
    phase: array = field(default_factory=lambda: array("H"))
    stack: array = field(default_factory=lambda: array("I"))
    buffers: int = 0  # ids are below this

    def __len__(self) -> int:
        return len(self.op)

    def add(self, op, id=0, bytes=0, stream=0, phase=0, stack=0, time=0) -> None:
        """Append an event."""
        self.op.append(op)
        self.id.append(id)
        self.bytes.append(bytes)
        self.stream.append(stream)
        self.phase.append(phase)
        self.stack.append(stack)
        self.time.append(time)

    def born(self, op, bytes, **columns) -> int:
        """Append an event that a buffer begins with; its id."""
        new = self.buffers
        self.buffers += 1
        self.add(op, new, bytes, **columns)
        return new


# The file --------------------------------------------------------------------------------------

_HEAD = ("name", "source", "setting", "notes", "streams", "phases", "stacks", "memory", "below")


def write(trace: Trace, path: Path) -> None:
    """Write a trace; about 1 to 4 bytes an event. Raises what write_together does."""
    columns = _encode(trace)
    head = {key: getattr(trace, key) for key in _HEAD}
    head |= {"events": len(trace), "lengths": [len(column) for column in columns]}
    text = json.dumps(head).encode() + b"\n"
    body = b"".join(_planes(column) for column in columns)
    write_together(path.parent, {path.name: MAGIC + lzma.compress(text + body, preset=2)})


def read(path: Path) -> Trace:
    """Read a trace. Raises UserError if the file is not one, or damaged."""
    with open_recording(path) as file:
        if file.readline(len(MAGIC)) != MAGIC:
            raise UserError(f"{path}: not a kvpeak trace of version 1; expected {MAGIC!r} first")
        try:
            file_bytes = os.fstat(file.fileno()).st_size
            with lzma.open(file) as body:
                head = json.loads(_header(body, min(MOST_HEADER, 4 * MIB + 16 * file_bytes)))
                trace = Trace(**{key: head[key] for key in _HEAD})
                _check_head(trace, head, file_bytes - file.tell())
                _decode(trace, head["events"], (_unplaned(body, n) for n in head["lengths"]))
                if body.read(1):
                    raise ValueError("more data than columns")
            show(trace)
        except RecursionError:
            raise UserError(f"{path}: a header that is nested too deeply") from None
        except (lzma.LZMAError, EOFError, ValueError, KeyError, TypeError, IndexError) as error:
            raise UserError(f"{path}: a damaged kvpeak trace ({error})") from None
        except OverflowError as error:
            raise UserError(f"{path}: a number out of range ({error})") from None
    return trace


def show(trace: Trace) -> None:
    """Let every character of its texts be seen, whoever wrote them; a stack stays lines."""
    trace.name, trace.source, trace.setting = map(seen, (trace.name, trace.source, trace.setting))
    trace.notes, trace.streams, trace.phases = map(seen, (trace.notes, trace.streams, trace.phases))
    trace.stacks = ["\n".join(map(seen, stack.split("\n"))) for stack in trace.stacks]


def _header(body, most: int) -> bytes:
    """The first line. Raises ValueError if it has more than `most` bytes."""
    line = body.readline(most + 1)
    if len(line) > most:
        raise ValueError(f"a header of more than {most // MIB} MiB")
    return line


def _check_head(trace: Trace, head: dict, left: int) -> None:
    """Raise ValueError for another type or range; `left` bytes of the file are for the columns."""
    for key in ("notes", "streams", "phases", "stacks"):
        names = getattr(trace, key)
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise ValueError(f"{key}: expected a list of texts")
    for key in ("name", "source", "setting"):
        if not isinstance(getattr(trace, key), str):
            raise ValueError(f"{key}: expected a text")
    for number in (trace.memory, trace.below, head["events"], *head["lengths"]):
        if type(number) is not int or not 0 <= number < 2**63:
            raise ValueError("expected numbers from 0 to 2^63")
    most = min(MOST_EVENTS, 2**20 + _MOST_A_BYTE * left)
    if len(head["lengths"]) != 7 or max(head["events"], *head["lengths"]) > most:
        raise ValueError("expected seven columns of a sensible length")


def _encode(trace: Trace) -> list[array]:
    """The columns as whole numbers that are small or repeat themselves."""
    births = list(accumulate((op in BIRTHS for op in trace.op), initial=0))
    return [
        array("Q", iter(trace.op)),
        array("Q", _zigzag(_differences(trace.time))),
        # A death is told by how many buffers appeared since.
        array(
            "Q",
            (
                count - id
                for op, id, count in zip(trace.op, trace.id, births, strict=False)
                if op in DEATHS
            ),
        ),
        array(
            "Q", (size for op, size in zip(trace.op, trace.bytes, strict=True) if op in WITH_BYTES)
        ),
        array("Q", _zigzag(_differences(trace.stream))),
        array("Q", _zigzag(_differences(trace.phase))),
        array("Q", trace.stack if any(trace.stack) else ()),
    ]


def _decode(trace: Trace, events: int, columns: Iterator[array]) -> None:
    """Fill the trace, with as few of the columns in memory as can be."""
    ops = next(columns)
    if ops and max(ops) > max(Op):
        raise ValueError("an unknown operation")
    trace.op = bytearray(iter(ops))
    del ops
    trace.time = array("q", accumulate(_unzigzag(next(columns))))
    _decode_buffers(trace, next(columns), next(columns))
    trace.stream = array("I", accumulate(_unzigzag(next(columns))))
    trace.phase = array("H", accumulate(_unzigzag(next(columns))))
    trace.stack = array("I", iter(next(columns))) or array("I", [0]) * events
    if not len(trace.op) == len(trace.time) == events:
        raise ValueError("columns of different lengths")
    check(trace)


def _decode_buffers(trace: Trace, ages: array, sizes: array) -> None:
    """The ids and the bytes of the events."""
    age, size, born = iter(ages), iter(sizes), 0
    for op in trace.op:
        trace.bytes.append(next(size, None) if op in WITH_BYTES else 0)
        if op in DEATHS:
            trace.id.append(born - next(age, None))
        else:
            trace.id.append(born if op in BIRTHS else 0)
            born += op in BIRTHS
    trace.buffers = born
    if next(age, None) is not None or next(size, None) is not None:
        raise ValueError("more ids or sizes than events that have one")


def check(trace: Trace) -> None:
    """Raise ValueError if a number names something that the trace does not have."""
    for column, names in (
        (trace.stream, trace.streams),
        (trace.phase, trace.phases),
        (trace.stack, trace.stacks),
    ):
        if len(column) != len(trace) or (column and max(column) >= len(names)):
            raise ValueError("a stream, phase or stack without a name")
    if trace.id and max(trace.id) >= max(trace.buffers, 1):
        raise ValueError("an event of a buffer that never appeared")


def _differences(column) -> list[int]:
    return [*column[:1], *map(sub, column[1:], column)]


def _zigzag(numbers) -> list[int]:
    return [2 * n if n >= 0 else -2 * n - 1 for n in numbers]


def _unzigzag(numbers) -> Iterator[int]:
    return (-(n + 1) // 2 if n & 1 else n // 2 for n in numbers)


def _planes(column: array) -> bytes:
    """First the lowest byte of every number, then the next, ...: alike bytes lie together."""
    raw = _little_endian(column).tobytes()
    return b"".join(raw[plane::8] for plane in range(8))


def _unplaned(body, length: int) -> array:
    column = array("Q", [0]) * length
    raw = memoryview(column).cast("B")
    for plane in range(8):
        part = body.read(length)
        if len(part) != length:
            raise ValueError("it ends too early")
        raw[plane::8] = part
    return _little_endian(column)


def _little_endian(column: array) -> array:
    if sys.byteorder == "big":
        column = column[:]
        column.byteswap()
    return column
