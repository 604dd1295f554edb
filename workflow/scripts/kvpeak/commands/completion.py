"""Print what lets a shell complete kvpeak's commands with Tab.

kvpeak completion bash > ~/.local/share/bash-completion/completions/kvpeak
kvpeak completion zsh > a folder of $fpath, as _kvpeak
kvpeak completion tcsh > a file that ~/.tcshrc sources
"""

import argparse
import importlib
from pathlib import Path

import shtab

from kvpeak import cli
from kvpeak.base.program import Parser


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=("bash", "zsh", "tcsh"))


def run(given: argparse.Namespace) -> None:
    print(shtab.complete(whole_parser(), given.shell))


def whole_parser() -> Parser:
    """One parser of all commands and their options. A command whose packages are not installed has
    none.
    """
    whole = Parser(prog="kvpeak", description=cli.__doc__)
    whole.add_argument("--version", action="store_true", help="show the version and exit")
    commands = whole.add_subparsers(title="commands")
    for name in cli.COMMANDS:
        parser = commands.add_parser(name, help=cli.summary(name))
        try:
            importlib.import_module(f"kvpeak.commands.{name}").arguments(parser)
        except ModuleNotFoundError:
            continue
        for action in parser._actions:
            if action.type is Path:
                action.complete = shtab.FILE
    return whole
