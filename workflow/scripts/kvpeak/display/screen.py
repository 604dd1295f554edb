"""Where the lines go: a terminal with a bar below them, or a stream that is only written to."""

import sys
import textwrap
from collections.abc import Callable

from rich.console import Console
from rich.live import Live
from rich.text import Text

REFRESH_PER_S = 4
STYLES = {"good": "", "bad": "bold red", "doubtful": "yellow", "head": "bold", "bar": "cyan"}
INDENT = "  "
BARS = "━─"  # what a bar is drawn with, done and to do


class Stream:
    """Plain lines, each complete however long it is; no bar."""

    def __init__(self, file):
        self._file = file

    def line(self, text: str, style: str = "good") -> None:
        print(text, file=self._file, flush=True)

    def open_bar(self, draw: Callable[[int], list[str]]) -> None:
        """Nothing: a stream has no place for what changes."""

    def close_bar(self) -> None:
        """Nothing."""


class Terminal:
    """Lines wrapped at the terminal's width, in colour, and below them a few that are drawn
    anew.
    """

    def __init__(self, console: Console):
        self._console = console
        shows = is_encodable(BARS, console.encoding)
        self._spelled = {} if shows else str.maketrans(BARS, "=-")
        self._live: Live | None = None

    def line(self, text: str, style: str = "good") -> None:
        parts = "\n".join(wrapped(text, self._console.width))
        self._console.print(Text(parts, style=STYLES[style]), soft_wrap=True)

    def open_bar(self, draw: Callable[[int], list[str]]) -> None:
        """Show the lines that `draw`, called with the width, returns, until close_bar."""

        def renderable() -> Text:
            width = self._console.width
            texts = (text.translate(self._spelled) for text in draw(width))
            lines = [part for text in texts for part in wrapped(text, width)]
            return Text("\n".join(lines), style=STYLES["bar"], no_wrap=True)

        self._live = Live(
            console=self._console,
            get_renderable=renderable,
            refresh_per_second=REFRESH_PER_S,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._live.start()

    def close_bar(self) -> None:
        if self._live:
            self._live.stop()
            self._live = None


def wrapped(text: str, width: int) -> list[str]:
    """The text in lines of the width; all but the first are indented further. A path is never
    divided.
    """
    indent = " " * (len(text) - len(text.lstrip())) + INDENT
    wrap = textwrap.TextWrapper(
        width, subsequent_indent=indent, break_on_hyphens=False, break_long_words=False
    )
    return wrap.wrap(text) or [""]


def is_encodable(text: str, encoding: str) -> bool:
    """Whether a terminal of this encoding shows the text."""
    try:
        text.encode(encoding)
    except (LookupError, UnicodeEncodeError):
        return False
    return True


def open_screen(no_colour: bool = False) -> Stream | Terminal:
    """A terminal if standard output and standard error are one, else a stream; on standard
    error.
    """
    if sys.stderr.isatty() and sys.stdout.isatty():
        return Terminal(Console(stderr=True, no_color=no_colour, highlight=False))
    return Stream(sys.stderr)
