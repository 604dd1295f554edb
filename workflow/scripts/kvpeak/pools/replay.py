"""Replay a trace under a policy: what it would have reserved, held, reused and asked for."""

import ctypes
import os
import re
from array import array
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from kvpeak.base.errors import UserError
from kvpeak.pools.library import Events, Result, load
from kvpeak.pools.trace import Trace

NO_LIMIT = 2**64 - 1
_ROOM = 4096  # for an error's text
# A value may hold commas, in a list; so all after the first colon is one class of characters.
_SETTING = re.compile(r"[a-z0-9_-]+(,[a-z0-9_]+:[A-Za-z0-9_.:,>\[\]]+)?")


@dataclass(frozen=True)
class Setting:
    """A policy and its parameters, written `torch,max_split_size_mb:32`.

    Raises UserError for any other form; traces of others bring one.
    """

    policy: str
    parameters: str = ""

    def __post_init__(self):
        if not _SETTING.fullmatch(str(self)):
            raise UserError(
                f"{str(self)[:200]}: expected a policy and what it is set to, as "
                "torch,max_split_size_mb:64; docs/pools.md lists them"
            )

    @classmethod
    def parse(cls, text: str) -> "Setting":
        policy, _, parameters = text.replace(" ", "").partition(",")
        return cls(policy, parameters)

    def __str__(self) -> str:
        return f"{self.policy},{self.parameters}" if self.parameters else self.policy


@dataclass(frozen=True)
class Policy:
    """A policy that was compiled in; `search` lists the values worth trying for each key."""

    name: str
    meaning: str
    search: dict[str, list[str]]


def policies() -> dict[str, Policy]:
    """The policies that there are, by name."""
    text = ctypes.create_string_buffer(2**16)
    if load().kvpeak_policies(text, len(text)):
        raise UserError("the policies' descriptions are longer than 64 KiB")
    found = {}
    for line in text.value.decode().splitlines():
        name, meaning, search = line.split("\t")
        keys = (part.partition(":") for part in search.split(";") if part.strip())
        found[name] = Policy(name, meaning, {key.strip(): to.split() for key, _, to in keys})
    return found


@dataclass(frozen=True)
class Outcome:
    """What came of one replay; sizes in bytes. `series`: reserved, active, requested by part."""

    setting: Setting
    numbers: dict[str, int]
    series: tuple[list[int], list[int], list[int]] | None = None
    held: array | None = None  # by id, what each buffer takes at the end; 0 if it is free

    def __getattr__(self, name: str) -> int:
        try:
            return self.__dict__["numbers"][name]
        except KeyError:
            raise AttributeError(name) from None

    @property
    def inside(self) -> int:
        """Bytes at the peak that buffers take beyond what was asked for."""
        return self.active_at_peak - self.requested_at_peak

    @property
    def outside(self) -> int:
        """Bytes at the peak that are reserved and in no buffer that is held."""
        return self.reserved_peak - self.active_at_peak

    @property
    def fits(self) -> bool:
        return self.failed_at < 0


def replay(
    trace: Trace,
    setting: Setting,
    limit: int | None = None,
    bins: int = 0,
    stop: int | None = None,
    holders: bool = False,
) -> Outcome:
    """Replay a trace, up to the event `stop`. Raises UserError for a setting that is not one.

    `limit` is how many bytes there are. With `bins` the outcome has a series of so many parts.
    """
    (outcome,) = _in_threads(
        lambda each, interrupted: _replay(trace, each, interrupted, limit, bins, stop, holders),
        [setting],
    )
    return outcome


def _replay(
    trace: Trace,
    setting: Setting,
    interrupted: ctypes.c_int,
    limit: int | None = None,
    bins: int = 0,
    stop: int | None = None,
    holders: bool = False,
) -> Outcome:
    events, result = _events(trace), Result()
    series = array("Q", bytes(24 * bins))
    held = array("Q", bytes(8 * trace.buffers)) if holders else None
    message = ctypes.create_string_buffer(_ROOM)
    failed = load().kvpeak_replay(
        setting.policy.encode(),
        setting.parameters.encode(),
        NO_LIMIT if limit is None else limit,
        ctypes.byref(events),
        len(trace) if stop is None else stop,
        bins,
        _address(series),
        _address(held) if holders else None,
        ctypes.byref(result),
        ctypes.byref(interrupted),
        message,
        _ROOM,
    )
    if failed:
        raise UserError(f"{setting}: {message.value.decode(errors='replace')}")
    numbers = {name: getattr(result, name) for name, _ in Result._fields_}
    lines = tuple(_filled(series[i * bins : (i + 1) * bins]) for i in range(3)) if bins else None
    return Outcome(setting, numbers, lines, held)


def replay_all(
    trace: Trace, settings: Iterable[Setting], limit: int | None = None, done=lambda: None
) -> list[Outcome]:
    """Replay under many settings, on all cores; in their order. `done` is called after each."""

    def one(setting: Setting, interrupted: ctypes.c_int) -> Outcome:
        outcome = _replay(trace, setting, interrupted, limit)
        done()
        return outcome

    return _in_threads(one, settings)


def _in_threads(
    one: Callable[[Setting, ctypes.c_int], Outcome], settings: Iterable[Setting]
) -> list[Outcome]:
    """What `one` gives for each setting, on all cores. This thread only waits, so that an interrupt
    reaches it; then, as after any error, the others are told to end.
    """
    interrupted, threads = ctypes.c_int(0), ThreadPoolExecutor(os.cpu_count())
    try:
        return list(threads.map(lambda setting: one(setting, interrupted), settings))
    finally:
        interrupted.value = 1
        threads.shutdown(cancel_futures=True)


def _events(trace: Trace) -> Events:
    op = (ctypes.c_uint8 * len(trace)).from_buffer(trace.op) if len(trace) else None
    return Events(
        len(trace),
        trace.buffers,
        ctypes.addressof(op) if op is not None else None,
        _address(trace.id),
        _address(trace.stream),
        _address(trace.bytes),
    )


def _address(column: array) -> int:
    return column.buffer_info()[0]


def _filled(series: array) -> list[int]:
    """A part without events has what the one before had."""
    filled = list(series)
    for i in range(1, len(filled)):
        filled[i] = filled[i] or filled[i - 1]
    return filled
