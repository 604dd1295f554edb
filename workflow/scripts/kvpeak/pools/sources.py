"""Open a trace, whoever wrote it: our own files, PyTorch's snapshots, plain CSV."""

import csv
import gzip
import io
import lzma
import os
import zlib
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from kvpeak.base.errors import UserError
from kvpeak.base.numbers import MIB
from kvpeak.base.untrusted import Limited, Unpacked, open_recording
from kvpeak.pools import candle_log, snapshot, trace
from kvpeak.pools.trace import Op, Trace

_XZ, _GZIP, _PICKLE = b"\xfd7zXZ\x00", b"\x1f\x8b", b"\x80"
LONGEST_LINE = 100_000  # characters of a CSV
MOST_ROWS = 4_000_000  # events of a CSV: each takes 180 bytes
NOTHING_OUT_OF = 4 * MIB  # of a compressed file, and twice of what comes out of it
TOO_LARGE = 2**63  # bytes of a request
_CSV_COLUMNS = {"time", "op", "id", "bytes", "stream", "phase", "stack"}


def open_traces(path: Path, progress=lambda done: None) -> list[Trace]:
    """The traces in a file: several if a snapshot has several devices.

    `progress` is told how many bytes were read. Raises UserError for a file that is none of what
    docs/trace-format.md lists.
    """
    try:
        with open_recording(path) as raw:
            start, size = raw.read(16), os.fstat(raw.fileno()).st_size
            raw.seek(0)
            if start.startswith(trace.MAGIC[:8]):
                return [trace.read(path)]
            packed = _Packed(raw, path)
            file = io.BufferedReader(_Unpacked(_unpacking(packed, start), size, packed), MIB)
            if file.peek(1)[:1] == _PICKLE:
                return snapshot.open_snapshot(path, file, progress)
            return [read_csv(io.TextIOWrapper(file, "utf-8-sig", newline=""), path)]
    except (lzma.LZMAError, EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise UserError(f"{path}: a damaged compressed file ({error})") from None
    except csv.Error as error:
        raise UserError(f"{path}: {error}") from None
    except UnicodeDecodeError:
        raise UserError(
            f"{path}: not a trace; expected a kvpeak trace ({trace.SUFFIX}), a snapshot of "
            "PyTorch's memory (pickle) or CSV; docs/trace-format.md describes them"
        ) from None


class _Packed(Limited):
    """A file, read on as long as something comes out of it: a compressed one may have millions of
    parts that hold nothing.
    """

    def __init__(self, file: BinaryIO, name: Path):
        refusal = f"{name}: unpacks to next to nothing; expected a recording"
        super().__init__(file, NOTHING_OUT_OF, refusal)
        self.name = name

    def held(self, count: int) -> None:
        """So many bytes came out of it: twice as many more may be read."""
        self._left += 2 * count


class _Unpacked(Unpacked):
    def __init__(self, file: BinaryIO, size: int, packed: _Packed):
        super().__init__(file, size, packed.name)
        self._packed = packed

    def readinto(self, buffer) -> int:
        """Read into a buffer; how many bytes."""
        count = super().readinto(buffer)
        self._packed.held(count)
        return count


def _unpacking(packed: BinaryIO, start: bytes) -> BinaryIO:
    """What the file holds, unpacked where its beginning says that it is packed."""
    if start.startswith(_XZ):
        return lzma.open(packed)
    return gzip.open(packed) if start.startswith(_GZIP) else packed


def read_csv(file, path: Path) -> Trace:
    """A trace from CSV: columns op, id and bytes, and optionally time (µs), stream, phase, stack.

    `op` is one of our operations in small letters; `id` any text that names a buffer while it
    lives.
    """
    reader = csv.DictReader(_lines(file, path))
    header = set(reader.fieldnames or ())
    if header == set(candle_log.COLUMNS):
        return candle_log.read_log(reader, path)
    if not {"op", "id", "bytes"} <= header or header - _CSV_COLUMNS:
        raise UserError(
            f"{path}: expected the columns op, id and bytes, and of time, stream, phase and stack "
            f"those that there are; got {', '.join(reader.fieldnames or ['nothing'])}"
        )
    made = _FromRows(path)
    for row in reader:
        if len(made.trace) == MOST_ROWS:
            raise UserError(f"{path}: more than {MOST_ROWS:,} events in a CSV")
        made.add(reader.line_num, row)
    trace.show(made.trace)
    return made.trace


def _lines(file, path: Path) -> Iterator[str]:
    """The lines of a text, none of them longer than LONGEST_LINE."""
    while line := file.readline(LONGEST_LINE + 1):
        if len(line) > LONGEST_LINE:
            raise UserError(f"{path}: a line of more than {LONGEST_LINE:,} characters")
        yield line


class _FromRows:
    def __init__(self, path: Path):
        self.path, self.live = path, {}
        self.trace = Trace(name=path.name, source="csv", streams=[], phases=[""], stacks=[""])
        self.numbers = {"stream": {}, "phase": {"": 0}, "stack": {"": 0}}

    def add(self, line: int, row: dict) -> None:
        try:
            op = Op[row["op"].upper()]
            size = int(row["bytes"] or 0)
            if not 0 <= size < TOO_LARGE:
                raise ValueError(f"bytes: {size}")
            columns = {
                "time": int(row.get("time") or 0),
                "stream": self._number("stream", row.get("stream") or "0"),
                "phase": self._number("phase", row.get("phase") or ""),
                "stack": self._number("stack", row.get("stack") or ""),
            }
            if op in trace.BIRTHS:
                if row["id"] in self.live:
                    raise ValueError(f"id {row['id']} is live already")
                self.live[row["id"]] = self.trace.born(op, size, **columns)
            elif op in trace.DEATHS:
                if row["id"] not in self.live:
                    raise ValueError(f"id {row['id']} is not live")
                number = self.live[row["id"]]
                self.trace.add(op, number, **columns)
                if op is Op.FREE:
                    del self.live[row["id"]]
            else:
                self.trace.add(op, bytes=size if op in trace.WITH_BYTES else 0, **columns)
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
            what = f"op: {error}" if isinstance(error, KeyError) else error
            raise UserError(f"{self.path}: line {line}: {what}") from None

    def _number(self, kind: str, name: str) -> int:
        numbers = self.numbers[kind]
        if name not in numbers:
            numbers[name] = len(numbers)
            getattr(self.trace, {"phase": "phases"}.get(kind, f"{kind}s")).append(name)
        return numbers[name]


def from_blocks(blocks, place_of, name: str, setting: str) -> Trace:
    """A trace from the scripts of a model's requests, one block after another.

    `place_of(tensor, layer)` says where a tensor's buffer is filed. Stream 0 is Candle's private
    heap, stream 1 the shared one.
    """
    made = Trace(name=name, source="candle", setting=setting, streams=["private", "shared"])
    phases: dict[str, int] = {}
    live: dict = {}
    for block in blocks:
        phase = phases.setdefault(block.phase, len(phases))
        for layer in block.layers:
            for event in block.script.events:
                place = place_of(event.tensor, layer)
                if event.kind == "free":
                    heap, number = live.pop(place)
                    made.add(Op.FREE, number, stream=heap, phase=phase)
                elif event.kind == "rename":
                    live[place_of(event.name, layer)] = live.pop(place)
                elif event.kind == "wait":
                    made.add(Op.WAIT, phase=phase)
                else:
                    op, heap = _REQUESTS[event.kind]
                    if (size := block.sizes[event.size]) >= TOO_LARGE:
                        raise UserError(f"{name}: {event.tensor}: {size} bytes: expected < 2^63")
                    live[place] = heap, made.born(op, size, stream=heap, phase=phase)
    made.phases = list(phases)
    made.time = array("q", range(len(made)))
    return made


# Kind of request in a script → our operation, and Candle's heap.
_REQUESTS = {"alloc": (Op.ALLOC, 0), "shared": (Op.ALLOC, 1), "upload": (Op.UPLOAD, 1)}
