"""How much memory a language model really takes, which part of the engine decides it, and what it
costs.
"""

import ast
import sys
from pathlib import Path

from kvpeak.base.program import Parser, Usage, ended, main
from kvpeak.base.version import VERSION

# A command is a module of kvpeak/commands/. These work anywhere …
TOOLS = ("compare", "completion", "doctor", "pools", "predict")
# … and these in the folder of an experiment, the one with config/ and results/.
PROJECT = ("plan", "bisect", "failed", "publish", "import", "fits")
COMMANDS = (*PROJECT, *TOOLS)

EXIT_CODES = """exit codes:
  0    done
  1    a mistake in what was given, or a file that cannot be read or written
  2    the command line cannot be understood
  130  interrupted (Ctrl-C)
  141  the program that read the output stopped reading"""


def start(argv: list[str] | None = None) -> int:
    """Run `kvpeak` with the arguments of the command line; returns its exit code."""
    given = sys.argv[1:] if argv is None else argv
    if given and given[0] in COMMANDS:
        return main(f"kvpeak.commands.{given[0]}", given[1:], f"kvpeak {given[0]}")
    return ended("kvpeak", lambda: _without_command(given))


def _without_command(given: list[str]) -> None:
    parser = Parser(
        prog="kvpeak",
        usage="kvpeak COMMAND …",
        description=__doc__,
        epilog=_epilog(),
        add_help=False,
    )
    options = parser.add_argument_group("options")
    options.add_argument("-h", "--help", action="help", help="show this and exit")
    options.add_argument("--version", action="store_true", help="show the version and exit")
    if given and not given[0].startswith("-"):
        raise Usage(f"{given[0]}: no such command{_meant(given[0])} (kvpeak --help lists them)")
    if parser.parse_args(given).version:
        print(f"kvpeak {VERSION}")
    else:
        parser.print_help()


def _epilog() -> str:
    return "\n\n".join(
        [
            _listed("in the folder of an experiment", PROJECT),
            _listed("anywhere", TOOLS),
            EXIT_CODES,
            "kvpeak COMMAND --help says more about each.",
        ]
    )


def _listed(title: str, names: tuple[str, ...]) -> str:
    return "\n".join([f"{title}:", *(f"  {name:<12}{summary(name)}" for name in names)])


def summary(name: str) -> str:
    """The first line of a command's text, read without importing the command."""
    source = Path(__file__).parent / "commands" / f"{name}.py"
    text = ast.get_docstring(ast.parse(source.read_text(encoding="utf-8"))) or ""
    return text.split("\n", 1)[0].rstrip(".")


def _meant(name: str) -> str:
    import difflib

    near = difflib.get_close_matches(name, COMMANDS, n=1, cutoff=0.5)
    return f"; did you mean {near[0]}?" if near else ""


if __name__ == "__main__":
    sys.exit(start())
