"""How every program starts and ends: one style of --help, one line for what went wrong, one set of
exit codes.

A command is a module with a docstring (its help), `arguments(parser)` and `run(given)`, which
returns an exit code or None for 0.
"""

import argparse
import ctypes
import importlib
import io
import os
import re
import sys
from collections.abc import Callable
from contextlib import suppress
from types import ModuleType

from kvpeak.base.errors import Unavailable, UserError
from kvpeak.base.text import plain

DONE = 0
FAILED = 1  # a mistake of the user's, a file that cannot be read or written, a claim that fails
USAGE = 2  # the command line cannot be understood
UNAVAILABLE = 69  # as sysexits.h says it: something cannot be had here, such as a download
INTERRUPTED = 130  # as shells report SIGINT
CLOSED_PIPE = 141  # as shells report SIGPIPE
SHOWS_ALL = "V"  # the variable that asks for all that Snakemake and the steps print
# What values can cause that no check foresaw.
UNFORESEEN = (
    *(ArithmeticError, AttributeError, LookupError, MemoryError, RecursionError),
    *(TypeError, ValueError, ctypes.ArgumentError),
)
MOST_SAID = 300  # characters


class Usage(UserError):
    """The command line cannot be understood."""


class Help(argparse.HelpFormatter):
    """Help that keeps the paragraphs of its text, and the lines of those with an indented one."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        fill = super()._fill_text
        paragraphs = text.split("\n\n")
        return "\n\n".join(
            part if re.search("^ ", part, re.MULTILINE) else fill(part, width, indent)
            for part in map(str.rstrip, paragraphs)
        )


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors are one line, and whose help keeps the paragraphs of its
    text.
    """

    def __init__(self, **options):
        options.setdefault("formatter_class", Help)
        super().__init__(**options)

    def print_help(self, file=None):
        """Print the help; unlike argparse's own this raises OSError where the output is full or
        closed.
        """
        print(self.format_help(), end="", file=file)

    def error(self, message: str):
        """Raise Usage instead of printing the usage and exiting."""
        raise Usage(f"{message}; see {self.prog} --help")


def main(command: str | ModuleType, argv: list[str] | None = None, name: str | None = None) -> int:
    """Run a command with the arguments of the command line; returns its exit code.

    The command is a module or the full name of one, which is then imported with its errors caught.
    """

    def start() -> int | None:
        module = importlib.import_module(command) if isinstance(command, str) else command
        parser = Parser(prog=shown, description=module.__doc__)
        module.arguments(parser)
        return module.run(parser.parse_args(argv))

    whole = command if isinstance(command, str) else command.__name__
    shown = name or whole.rsplit(".", 1)[-1]
    return ended(shown, start)


def ended(name: str, run: Callable[[], int | None]) -> int:
    """The exit code of `run`; an error for the person at the keyboard is one line on standard
    error. A sign that standard output cannot show is spelled.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        with suppress(OSError):  # it may be a pipe by now, put where a file was
            sys.stdout.reconfigure(errors="backslashreplace")
    try:
        code = _finished(run)
        sys.stdout.flush()
        return code
    except Usage as error:
        return _say(name, str(error), USAGE)
    except Unavailable as error:
        return _say(name, str(error), UNAVAILABLE)
    except UserError as error:
        return _say(name, str(error), FAILED)
    except ModuleNotFoundError as error:
        if (error.name or "kvpeak").split(".")[0] == "kvpeak":
            raise
        return _say(name, f"needs the package {error.name}, which is not installed", FAILED)
    except BrokenPipeError:
        _drop_output()
        return _say(name, "standard output was closed", CLOSED_PIPE)
    except OSError as error:
        _drop_output()
        where = error.filename or "standard output"
        return _say(name, f"{where}: {error.strerror or error}", FAILED)
    except UNFORESEEN as error:
        if shows_all():
            raise
        return _say(name, unforeseen(error), FAILED)
    except KeyboardInterrupt:
        return _say(name, "interrupted", INTERRUPTED)


def shows_all() -> bool:
    """Whether V=1 was asked for: `make finding V=1`, or `V=1 snakemake …`."""
    return os.environ.get(SHOWS_ALL, "") not in ("", "0")


def unforeseen(error: Exception) -> str:
    """What files hold that no check foresaw."""
    said = f"{type(error).__name__}: {error}".removesuffix(": ")[:MOST_SAID]
    return f"{said}; a file that was read may be damaged; {SHOWS_ALL}=1 shows where"


def _finished(run: Callable[[], int | None]) -> int:
    """The exit code of `run`, or the one that argparse exits with after --help."""
    try:
        return run() or DONE
    except SystemExit as stopped:
        if not isinstance(stopped.code, int | None):
            raise
        return stopped.code or DONE


def _say(name: str, message: str, code: int) -> int:
    """Print one line that begins with the program's name; returns `code`."""
    try:
        print(f"{name}: {plain(message)}", file=sys.stderr, flush=True)
    except OSError:  # standard error is closed or full too; the code still tells
        _drop_output()
    return code


def _drop_output() -> None:
    """Let the interpreter's last flush go nowhere, so that it does not fail a second time."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            os.dup2(nowhere, stream.fileno())
