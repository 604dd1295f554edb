"""What an engine answers (docs/protocol.md): from bytes to checked events, in bounded memory."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from kvpeak.base.text import plain
from kvpeak.base.untrusted import json_value

MAX_LINE = 1 << 20  # bytes; an event of the protocol is below 100 KiB
MOST_BYTES = 8 << 20  # of all events: the record holds them, and has to be read again
LARGEST = 1 << 63  # no count or figure of an engine is larger


class BadAnswer(ValueError):
    """What is wrong with the engine's answer, in one line."""


@dataclass(frozen=True)
class Kind:
    """What a value has to be: in words, and as a test."""

    what: str
    holds: Callable[[object], bool]

    def or_null(self) -> "Kind":
        return Kind(f"{self.what} or null", lambda value: value is None or self.holds(value))


SIZE = Kind("a whole number from 0", lambda value: type(value) is int and 0 <= value < LARGEST)
COUNT = Kind("a whole number below 10^9", lambda value: type(value) is int and 0 <= value < 10**9)
SOME = Kind("a whole number from 1 to 10^9", lambda value: COUNT.holds(value) and value > 0)
FIGURE = Kind(  # NaN and the infinities fail the comparison
    "a finite number from 0", lambda value: type(value) in (int, float) and 0 <= value < LARGEST
)
TEXT = Kind("a string", lambda value: isinstance(value, str))
FLAG = Kind("true or false", lambda value: isinstance(value, bool))
OBJECT = Kind("an object", lambda value: isinstance(value, dict))
DIGEST = Kind(
    "64 hexadecimal digits",
    lambda value: (
        isinstance(value, str) and len(value) == 64 and set(value) <= set("0123456789abcdef")
    ),
)
ENDING = Kind("oom or unsupported", lambda value: value in ("oom", "unsupported"))

EVENTS: dict[str, dict[str, Kind]] = {
    "started": {"versions": OBJECT, "device": OBJECT, "cap_bytes": SIZE.or_null()},
    "loaded": {
        "load_s": FIGURE.or_null(),
        "loaded_mib": FIGURE.or_null(),
        "weights_mapped": FLAG.or_null(),
        "dtype": TEXT.or_null(),
    },
    "run_started": {"run": COUNT, "warmup": FLAG},
    "turn_started": {"run": COUNT, "turn": COUNT},
    "prefilled": {"run": COUNT},
    "run": {
        "run": COUNT,
        "warmup": FLAG,
        "prompt_tokens": SOME,
        "generated_tokens": COUNT,
        "prefill_s": FIGURE.or_null(),
        "ttft_s": FIGURE.or_null(),
        "decode_s": FIGURE.or_null(),
        "tokens_sha256": DIGEST.or_null(),
        "peak_active_mib": FIGURE.or_null(),
        "peak_pool_mib": FIGURE.or_null(),
    },
    "outcome": {"outcome": ENDING, "detail": TEXT},
    "done": {
        "peak_active_mib": FIGURE.or_null(),
        "peak_pool_mib": FIGURE.or_null(),
        "peak_rss_mib": FIGURE.or_null(),
    },
}

# What an event need not say, and the runner reckons with where it does.
OPTIONAL = {
    "run": {
        "decode_steps": COUNT.or_null(),
        "peak_rss_mib": FIGURE.or_null(),
        "peak_reserved_mib": FIGURE.or_null(),
    },
    "done": {"peak_reserved_mib": FIGURE.or_null()},
}

# `run` is followed by `done` after the last one; `outcome` may come at any time, and nothing after
# it. A run of turns has `turn_started` and `prefilled` for each.
FOLLOWS = {
    None: ("started",),
    "started": ("loaded",),
    "loaded": ("run_started",),
    "run_started": ("prefilled", "turn_started"),
    "turn_started": ("prefilled",),
    "prefilled": ("run", "turn_started"),
    "run": ("run_started",),
}


class Lines:
    """Cuts a stream of bytes into lines and never holds more than one line of MAX_LINE bytes."""

    def __init__(self):
        self._rest = b""
        self._left = MOST_BYTES

    def feed(self, data: bytes) -> list[bytes]:
        """The lines that `data` completes. Raises BadAnswer where one is longer than MAX_LINE, or
        all together than MOST_BYTES.
        """
        self._left -= len(data)
        if self._left < 0:
            raise BadAnswer(f"more than {MOST_BYTES} bytes of events")
        *lines, self._rest = (self._rest + data).split(b"\n")
        if max(map(len, [*lines, self._rest])) > MAX_LINE:
            raise BadAnswer(f"a line of more than {MAX_LINE} bytes; expected a JSON event")
        return lines

    def end(self) -> None:
        """Raise BadAnswer if the stream ended inside a line."""
        if self._rest:
            raise BadAnswer(f"its last line is truncated: {excerpt(self._rest)}")


def parse_event(line: bytes) -> dict:
    """The event of one line, every key of its table row present and of the right kind, and so is
    every key of OPTIONAL that is there.

    More keys are kept. Raises BadAnswer; never anything else, whatever the bytes.
    """
    try:
        event = json_value(line.decode())
    except (ValueError, RecursionError):
        raise BadAnswer(f"not a JSON event: {excerpt(line)}") from None
    name = event.get("event") if isinstance(event, dict) else None
    if not isinstance(name, str) or name not in EVENTS:
        raise BadAnswer(f"not an event of the protocol: {excerpt(line)}")
    for key, kind in EVENTS[name].items():
        if key not in event:
            raise BadAnswer(f"event {name} without {key}; expected {kind.what}")
    for key, kind in (EVENTS[name] | OPTIONAL.get(name, {})).items():
        if key in event and not kind.holds(event[key]):
            value = excerpt(json.dumps(event[key]).encode(), 40)
            raise BadAnswer(f"event {name}: {key} is {value}; expected {kind.what}")
    return event


class Conversation:
    """The events of one process so far, and the phase that it is in; refuses a wrong order.

    Phases: start, load, idle (between two runs), prefill-N and decode-N (run N), exit. In a run of
    turns prefill-N and decode-N come once a turn; `turn` is its number, from 1, else None. `runs`:
    the events of the runs that have ended.
    """

    def __init__(self, warmup: int, recorded: int):
        self.events: list[dict] = []
        self.runs: list[dict] = []
        self.phase = "start"
        self.turn: int | None = None
        self._warmup = warmup
        self._runs = warmup + recorded
        self._lines = Lines()

    @property
    def complete(self) -> bool:
        """Whether the last event of the protocol (`done` or `outcome`) has come."""
        return self.phase == "exit"

    def first(self, name: str) -> dict:
        """The first event of that name, {} if it has not come."""
        return next((event for event in self.events if event["event"] == name), {})

    def feed(self, data: bytes, t_s: float) -> Iterator[None]:
        """Take what the engine wrote at t_s; yields after each event. Raises BadAnswer."""
        for line in self._lines.feed(data):
            self.accept(parse_event(line) | {"t_s": round(t_s, 4)})
            yield

    def answer(self) -> tuple[str, str | None]:
        """(outcome, detail) of an engine that has exited with 0. Raises BadAnswer if it gave
        none.
        """
        self._lines.end()
        if not self.complete:
            raise BadAnswer("exited without done or outcome")
        last = self.events[-1]
        if last["event"] == "outcome":
            return last["outcome"], plain(last["detail"], 300)
        return "ok", None

    def accept(self, event: dict) -> None:
        """Take the next event of parse_event. Raises BadAnswer if it is not its turn."""
        name = event["event"]
        expected = self._expected()
        if name not in expected and (name != "outcome" or self.complete):
            wanted = " or ".join(expected) or "nothing"
            raise BadAnswer(f"event {name} where {wanted} was expected")
        number = len(self.runs)
        if "run" in EVENTS[name] and event["run"] != number:
            raise BadAnswer(f"event {name} of run {event['run']} where run {number} was expected")
        if "warmup" in EVENTS[name] and event["warmup"] != (number < self._warmup):
            raise BadAnswer(f"event {name} of run {number}: warmup is {event['warmup']}")
        if name == "turn_started" and event["turn"] != (self.turn or 0) + 1:
            raise BadAnswer(f"event {name} of turn {event['turn']} after turn {self.turn or 0}")
        self.events.append(event)
        if name == "run":
            self.runs.append(event)
        if name in ("turn_started", "run"):
            self.turn = event.get("turn")
        self.phase = {
            "started": "load",
            "loaded": "idle",
            "run_started": f"prefill-{number}",
            "turn_started": f"prefill-{number}",
            "prefilled": f"decode-{number}",
            "run": "idle",
        }.get(name, "exit")

    def _expected(self) -> tuple[str, ...]:
        """The names of which one comes next; none after the last event."""
        if self.complete:
            return ()
        last = self.events[-1]["event"] if self.events else None
        return ("done",) if last == "run" and len(self.runs) == self._runs else FOLLOWS[last]


def excerpt(data: bytes, most: int = 80) -> str:
    """The beginning of `data` as printable text of one line, for a message."""
    text = plain(data[: 4 * most].decode(errors="replace"))
    return text if len(text) <= most and len(data) <= 4 * most else text[:most] + "…"
