"""Every reader of other people's files, on files of chance: run as a program, in a process of its
own with limits.

    python tests/hostile/parsers.py FOLDER [--fault CODE]

It writes into FOLDER alone, and prints a line of JSON for each reader: its name, and what went
wrong, or null. With --fault it tries one reader that is known to be bad.
"""

import contextlib
import copy
import json
import os
import random
import resource
import signal
import sys
from dataclasses import dataclass
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvpeak.base.errors import UserError

MOST_BYTES = 1 << 30
MOST_SECONDS = 60  # 10 on a machine that does nothing else
EXAMPLES = 60
LONGEST = 2000  # characters of a message
PIECES = [
    *(b"\x00", b"\x1b]0;x\x07", "\u202e".encode(), b"\xff", b'"', b"'", b"[", b"{", b"}", b","),
    *(b"\n", b"\r", b";", b"=", b"9" * 400, b"1e999", b"-1", b"null", b"NaN", b"\\ud800", b"true"),
    *(b"[" * 3000, b"../", b"/etc/passwd", b"&a ", b"*a", b"!!python/object:x ", b"\xef\xbb\xbf"),
]
VALUES = [
    *(None, True, -1, 0, 1 << 70, 1e308, "", "\ud800", "\x1b[2J", "../../x", "a" * 3000),
    *([], {}, [[]], ["x", 1], {"a": {"b": []}}, "=1+1", 0.5),
]


@dataclass(frozen=True)
class Parser:
    """file: its name in the folder. content: a good one. read: what reads it."""

    file: str
    content: bytes
    read: object


def good(value: object) -> bytes:
    return json.dumps(value, indent=1).encode()


@st.composite
def damaged(draw, content: bytes) -> bytes:
    """The content with a few pieces of it replaced, or a value of its JSON."""
    with contextlib.suppress(ValueError):
        value = json.loads(content)
        if draw(st.booleans()):
            return good(_swapped(value, draw(st.integers(0, 2**32)), draw))
    changed = bytearray(content)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(changed)))
        piece = draw(st.sampled_from(PIECES) | st.binary(max_size=4))
        changed[at : at + draw(st.integers(0, 6))] = piece
    return bytes(changed)


def _swapped(value: object, seed: int, draw) -> object:
    """The JSON value with one value somewhere in it replaced."""
    root, choice = [copy.deepcopy(value)], random.Random(seed)
    holder, key = root, 0
    while isinstance(holder[key], (dict, list)) and holder[key] and choice.random() < 0.85:
        holder = holder[key]
        key = choice.choice([*holder] if isinstance(holder, dict) else range(len(holder)))
    holder[key] = draw(st.sampled_from(VALUES))
    return root[0]


class Watched(Exception):
    """A reader did what none may do."""


class Guard:
    """Notices whatever a reader writes outside the folder or starts, by Python's own audit."""

    def __init__(self, folder: Path):
        self.folder, self.on = folder.resolve(), False
        sys.addaudithook(self._heard)

    def _heard(self, event: str, arguments: tuple) -> None:
        if not self.on:
            return
        if event in ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.fork"):
            raise Watched(f"starts {arguments[0]!r}")
        if event == "open" and isinstance(arguments[0], (str, bytes)):
            mode, flags = arguments[1] or "", arguments[2] or 0
            if set(mode) & set("wax+") or flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
                self._inside(os.fsdecode(arguments[0]))
        if event in ("os.rename", "os.remove", "os.mkdir", "os.symlink", "os.link", "os.truncate"):
            self._inside(os.fsdecode(arguments[0]))

    def _inside(self, name: str) -> None:
        if not Path(name).resolve().is_relative_to(self.folder):
            raise Watched(f"writes {name}")


def tried(parser: Parser, guard: Guard) -> str | None:
    """What went wrong with a parser on files of chance; None if nothing did."""

    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        database=None,
        derandomize=True,
        suppress_health_check=[*HealthCheck],
        print_blob=False,
    )
    @given(damaged(parser.content))
    def runs(content: bytes) -> None:
        Path(parser.file).write_bytes(content)
        signal.alarm(MOST_SECONDS)
        guard.on = True
        try:
            parser.read(Path(parser.file))
        except UserError as error:
            guard.on = False
            text = str(error)
            assert text.isprintable(), text
            assert len(text) <= LONGEST, text[:300]
        finally:
            guard.on = False
            signal.alarm(0)

    Path(parser.file).parent.mkdir(parents=True, exist_ok=True)
    Path(parser.file).write_bytes(parser.content)
    try:
        parser.read(Path(parser.file))
    except UserError as error:
        return f"the good one is refused: {error}"
    try:
        runs()
    except BaseException as error:
        notes = " ".join(getattr(error, "__notes__", []))
        return f"{type(error).__name__}: {str(error)[:500]} {ascii(notes)[:900]}"
    finally:
        Path(parser.file).write_bytes(parser.content)
    return None


def too_long(_number, _frame) -> None:
    raise Watched(f"not finished after {MOST_SECONDS} s")


def main(folder: Path, fault: str | None) -> None:
    os.chdir(folder)
    if fault:
        found = {"faulty": Parser("x", b"x", lambda file: file.read_bytes() == b"x" or eval(fault))}
    else:
        from readers import parsers

        found = parsers()
    signal.signal(signal.SIGALRM, too_long)
    with contextlib.suppress(ValueError, OSError):  # macOS
        held = int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_DATA, (held + MOST_BYTES, held + MOST_BYTES))
    guard = Guard(folder)
    for name, parser in found.items():
        print(json.dumps({"parser": name, "wrong": tried(parser, guard)}), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[3] if len(sys.argv) > 2 else None)
