"""PyTorch's memory snapshots (torch.cuda.memory._snapshot, _dump_snapshot) as traces, one for each
device.
"""

from bisect import bisect_right
from itertools import accumulate
from pathlib import Path

from kvpeak.base.errors import UserError
from kvpeak.pools.snapshot_file import load
from kvpeak.pools.trace import LONGEST_NAME, Op, Trace, show

SMALL_SEGMENT = 2 * 2**20  # bytes
LARGEST_SLACK = 2**20  # what PyTorch leaves unsplit behind a large block
FRAMES = 12  # of a stack, the innermost
MOST_STACKS = 32 << 20  # characters of all that differ; real programs have some thousands of them
COMPARED = 256  # frames of two stacks
_GROWTH = {"segment_alloc": 1, "segment_map": 1, "segment_free": -1, "segment_unmap": -1}
_GIVES_BACK = frozenset(action for action, sign in _GROWTH.items() if sign < 0)


def traces(snapshot: dict, name: str) -> list[Trace]:
    """A trace for each device that has a history. Raises UserError if none has."""
    found = []
    try:
        for device, events in enumerate(snapshot["device_traces"]):
            if events:
                segments = [s for s in snapshot["segments"] if s.get("device", 0) == device]
                found.append(_Importer(snapshot, device, segments).run(events))
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise UserError(
            f"{name}: an event that is not PyTorch's: {type(error).__name__}: {error}"
        ) from None
    if not found:
        raise UserError(
            f"{name}: the snapshot has no history; call torch.cuda.memory._record_memory_history() "
            "before the program allocates"
        )
    for trace in found:
        trace.name = name if len(found) == 1 else f"{name} (device {trace.name})"
        show(trace)
    return found


def setting_of(snapshot: dict) -> str:
    """The allocator's settings under which a snapshot was made, as a policy of ours."""
    settings = snapshot.get("allocator_settings")
    if not isinstance(settings, dict):
        return "torch"
    texts = (settings.get(key) for key in ("PYTORCH_CUDA_ALLOC_CONF", "last_allocator_settings"))
    text = next((text for text in texts if isinstance(text, str) and text), "")
    known = (
        "expandable_segments",
        "max_split_size_mb",
        "max_non_split_rounding_mb",
        "garbage_collection_threshold",
        "roundup_power2_divisions",
    )
    kept = [part for part in _split(text) if part.partition(":")[0] in known]
    return ",".join(["torch", *kept])


def _split(text: str) -> list[str]:
    parts, depth, part = [], 0, ""
    for sign in text.replace(" ", ""):
        depth += (sign == "[") - (sign == "]")
        if sign == "," and not depth:
            parts.append(part)
            part = ""
        else:
            part += sign
    return [*parts, part] if part else parts


class _Importer:
    """One device's history, event by event."""

    def __init__(self, snapshot: dict, device: int, segments: list[dict]):
        self.trace = Trace(name=str(device), source="torch", setting=setting_of(snapshot))
        self.segments = segments
        self.annotations = snapshot.get("external_annotations") or []
        self.device = device
        self.live: dict[int, int] = {}  # address → id
        self.stacks: dict[int, int] = {}  # id() of a list of frames → its number
        self.numbers: dict[str, int] = {"": 0}
        self.room = MOST_STACKS

    def run(self, events: list[dict]) -> Trace:
        trace = self.trace
        streams = sorted({e["stream"] for e in events} | {s["stream"] for s in self.segments})
        trace.streams = [str(stream) for stream in streams]
        self.stream = {stream: number for number, stream in enumerate(streams)}
        self.phase_of = self._phases()
        self.start = events[0].get("time_us", 0)
        self._what_was_there(events)
        self._history(events)
        return trace

    # Events -------------------------------------------------------------------------------------

    def _history(self, events: list[dict]) -> None:
        op, ids, sizes = self.trace.op.append, self.trace.id.append, self.trace.bytes.append
        kept: list[dict] = []  # the event of each of these
        note, live = kept.append, self.live

        def add(event, of, id=0, size=0):
            op(of), ids(id), sizes(size), note(event)

        given_back = False  # whether the last event gave back a segment
        pressure = self._pressure(events)
        completed = None  # the next event, where its buffer is freed already
        for i, event in enumerate(events):
            if event is completed:
                completed = None
                continue
            action = event["action"]
            if action == "alloc":
                add(event, Op.ALLOC, self._new(event["addr"]), event["size"])
            elif action == "free_requested":
                following = events[i + 1] if i + 1 < len(events) else {}
                if (
                    following.get("action") == "free_completed"
                    and following["addr"] == event["addr"]
                ):
                    completed = following
                    add(event, Op.FREE, live.pop(event["addr"]))
                else:
                    add(event, Op.RELEASE, live[event["addr"]])
            elif action == "free_completed":
                add(event, Op.FREE, live.pop(event["addr"]))
            elif action == "oom":
                add(event, Op.ATTEMPT, 0, event["size"])
            elif action in _GIVES_BACK and not given_back:
                add(event, Op.PRESSURE if i in pressure else Op.CLEAR)
            given_back = action in _GIVES_BACK
        self._where_and_when(kept)

    def _new(self, address: int) -> int:
        new = self.live[address] = self.trace.buffers
        self.trace.buffers += 1
        return new

    def _where_and_when(self, kept: list[dict]) -> None:
        """The columns that every event of PyTorch's has."""
        trace, start, number = self.trace, self.start, self._stack
        times = [event.get("time_us", start) for event in kept]
        trace.time.extend(time - start for time in times)
        trace.stream.extend(self.stream[event["stream"]] for event in kept)
        trace.phase.extend(map(self.phase_of, times))
        trace.stack.extend(
            number(frames) if (frames := event.get("frames")) else 0 for event in kept
        )

    def _stack(self, frames: list[dict]) -> int:
        number = self.stacks.get(id(frames))
        if number is None:
            text = "\n".join(map(_spelled, frames[:FRAMES]))
            number = self.numbers.setdefault(text, len(self.numbers))
            if number == len(self.trace.stacks):
                self.room -= len(text)
                if self.room < 0:
                    raise ValueError(f"stacks of more than {MOST_STACKS:,} characters")
                self.trace.stacks.append(text)
            self.stacks[id(frames)] = number
        return number

    def _phases(self):
        """A function from a time to the innermost annotation that is open then."""
        marks = [a for a in self.annotations if a.get("device", self.device) == self.device]
        marks.sort(key=lambda mark: mark["time_us"])
        times, phases, names = [], [0], {"": 0}
        opened: list[list] = [["", True]]  # name, whether it is open
        by_name: dict[str, list] = {}
        for mark in marks:
            same = by_name.setdefault(mark["name"], [])
            if mark["stage"] == "START":
                opened.append([mark["name"], True])
                same.append(opened[-1])
            elif same:
                same.pop()[1] = False
            while not opened[-1][1]:
                opened.pop()
            times.append(mark["time_us"])
            phases.append(names.setdefault(opened[-1][0], len(names)))
        self.trace.phases = [name[:LONGEST_NAME] for name in names]
        return (lambda time: phases[bisect_right(times, time)]) if times else (lambda time: 0)

    # Memory -------------------------------------------------------------------------------------

    def _pressure(self, events: list[dict]) -> set[int]:
        """Which first give-backs of a row were for want of memory.

        PyTorch then tries the same request again, so what follows is a new segment, or an error;
        and the memory that it had was too little for that segment beside the others, and enough
        for the most that it ever held. What remains is the program's own empty_cache().
        """
        grown = [(i, size) for i, event in enumerate(events) if (size := _growth(event))]
        first = sum(s["total_size"] for s in self.segments) - sum(size for _, size in grown)
        before = list(accumulate((size for _, size in grown), initial=first))
        most, found, limit = max(before), set(), None
        n = 0
        while n < len(grown):
            row, start = n, grown[n][0]
            while n < len(grown) and grown[n][1] < 0 and grown[n][0] == start + n - row:
                n += 1
            event = events[start + n - row] if row < n and start + n - row < len(events) else None
            if event:
                wanted = max(_growth(event), 0) or event["size"] * (event["action"] == "oom")
                if wanted and before[row] + wanted > most and self._alike(events[start], event):
                    found.add(start)
                    limit = min(limit or 2**63, before[row] + wanted)
            n = max(n, row + 1)
        if found:
            self.trace.memory, self.trace.below = most, limit
            self.trace.notes.append(
                f"memory was short {len(found)} times: the program had at least {most} bytes, "
                f"fewer than {limit}"
            )
        return found

    @staticmethod
    def _alike(first: dict, second: dict) -> bool:
        """Whether two events have one stack, as those of one request have."""
        one, other = first.get("frames"), second.get("frames")
        if not one or not other or one is other:
            return True
        return [*map(_spelled, one[:COMPARED])] == [*map(_spelled, other[:COMPARED])]

    def _what_was_there(self, events: list[dict]) -> None:
        """The buffers that were held before the history begins, in their segments."""
        born, before = set(), {}
        for event in events:
            if event["action"] == "alloc":
                born.add(event["addr"])
            elif event["action"] in ("free_requested", "free_completed"):
                if event["addr"] not in born:
                    before.setdefault(event["addr"], (event["size"], event["stream"]))
                if event["action"] == "free_completed":
                    born.discard(event["addr"])
        held = self._held_to_the_end(events, before)
        if not before:
            return
        self.trace.notes.append(
            f"the history begins in the middle: {len(before)} buffers were there already"
        )
        placed = self._lay_out(events, before, held)
        for address, (size, stream) in sorted(before.items()):
            if address not in placed:
                self.trace.add(
                    Op.ALLOC,
                    self._new(address),
                    size,
                    self.stream[stream],
                    self.phase_of(self.start),
                )

    def _held_to_the_end(self, events: list[dict], before: dict) -> dict[int, int]:
        """Add the buffers that the history never mentions; address → what each takes."""
        mentioned = {e["addr"] for e in events if e["action"] in ("alloc", "free_completed")}
        held = {}
        for segment in self.segments:
            address = segment.get("address", 0)
            for block in segment["blocks"]:
                at = block.get("address", address)
                if block["state"].startswith("active") and at not in mentioned:
                    before[at] = (block.get("requested_size", block["size"]), segment["stream"])
                    held[at] = block["size"]
                address = at + block["size"]
        return held

    def _segments_at_the_start(self, events: list[dict]) -> dict[int, tuple[int, int]]:
        """Address → size and stream; nothing if a segment is expandable."""
        at = {s["address"]: (s["total_size"], s["stream"]) for s in self.segments}
        if any(s.get("is_expandable") for s in self.segments):
            return {}
        for event in reversed(events):
            if event["action"] == "segment_alloc":
                at.pop(event["addr"], None)
            elif event["action"] == "segment_free":
                at[event["addr"]] = (event["size"], event["stream"])
            elif event["action"] in ("segment_map", "segment_unmap"):
                return {}
        return at

    def _lay_out(self, events, before: dict, held: dict[int, int]) -> set[int]:
        placed: set[int] = set()
        addresses = sorted(before)
        end = 0
        for address, (size, stream) in sorted(self._segments_at_the_start(events).items()):
            if address < end:
                raise ValueError("segments that overlap")
            end = address + size
            inside = addresses[
                bisect_right(addresses, address - 1) : bisect_right(addresses, address + size - 1)
            ]
            self.trace.add(Op.SEGMENT, 0, size, self.stream[stream])
            self._lay_out_segment(address, address + size, inside, before, held)
            placed.update(inside)
        return placed

    def _lay_out_segment(self, start, end, inside, before, held) -> None:
        add, small, at = self.trace.add, end - start <= SMALL_SEGMENT, start
        for position, address in enumerate(inside):
            if address > at:
                add(Op.HOLE, 0, address - at)
            requested, stream = before[address]
            takes = held.get(address) or max(512, -(-requested // 512) * 512)
            following = inside[position + 1] if position + 1 < len(inside) else end
            gap = following - address - takes
            if gap < 0 or takes < requested:
                raise ValueError("buffers that overlap")
            if not small and address not in held and gap <= LARGEST_SLACK:
                takes += gap
            add(Op.PLACED, self._new(address), requested, self.stream[stream])
            add(Op.SLACK, 0, takes - requested)
            at = address + takes
        if at < end:
            add(Op.HOLE, 0, end - at)


def _spelled(frame: dict) -> str:
    """A frame of a stack as one line."""
    filename, line, name = frame["filename"], frame["line"], frame["name"]
    if (type(filename), type(line), type(name)) != (str, int, str):
        raise TypeError("frames: expected file name, line and function")
    return f"{filename[:LONGEST_NAME]}:{line} {name[:LONGEST_NAME]}".replace("\n", " ")


def _growth(event: dict) -> int:
    """By how much an event changes what is reserved."""
    sign = _GROWTH.get(event["action"])
    return sign * event["size"] if sign else 0


def open_snapshot(path: Path, file, progress=lambda done: None) -> list[Trace]:
    """The traces of a snapshot in an open file."""
    return traces(load(file, str(path), progress), path.name)
