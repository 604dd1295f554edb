"""A locale that knows ASCII alone: every command prints what it can, and nothing dies of a text."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT, TINY_MATRIX, Project

from kvpeak.cli import COMMANDS
from kvpeak.display.screen import BARS, Terminal, is_encodable

ASCII = {"LC_ALL": "POSIX", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "COLUMNS": "300"}
KVPEAK = str(Path(sys.executable).with_name("kvpeak"))
TEXT = "größe ⚑ µ"
UNSPELLABLE = "prompts/größe.txt"


def said(folder: Path, *command: str, code: int = 0) -> str:
    """What a program prints in the locale, on both streams: ASCII, and no cry about an encoding."""
    done = subprocess.run(
        [*command],
        cwd=folder,
        env=Project(folder).environment | ASCII,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    )
    text = done.stdout.decode("ascii")
    assert done.returncode == code, text
    assert not re.search(r"Traceback|codec|Logging error", text), text
    return text


@pytest.fixture
def foreign(measured):
    """A measured project in a folder whose name is not ASCII, and whose machine's name is not."""
    folder = measured.folder.with_name("größe")
    measured.folder.rename(folder)
    measured.folder = folder
    for record in folder.glob("results/cells/**/cell.json"):
        text = record.read_text(encoding="utf-8")
        record.write_text(
            re.sub(r'"(name|cpu)": "[^"]*CPU[^"]*"', rf'"\1": "{TEXT}"', text), encoding="utf-8"
        )
    return measured


def test_every_command_prints_what_it_can(foreign):
    trace = "op,id,bytes\nalloc,ä,1000\nalloc,b,2000\nfree,ä,\n"
    foreign.write("trace.csv", trace)
    for arguments in (
        ["plan"],
        ["failed"],
        ["compare", "results", "results"],
        ["fits", "--memory", "16GiB"],
        ["publish", "a"],
        ["pools", "trace.csv"],
        ["--help"],
    ):
        assert said(foreign.folder, KVPEAK, *arguments)
    published = foreign.folder / "docs/findings/a/finding.md"
    assert published.read_bytes() == (foreign.folder / "report/finding.md").read_bytes()


@pytest.mark.parametrize("command", COMMANDS)
def test_every_help_is_printed(tmp_path, command):
    assert command in said(tmp_path, KVPEAK, command, "--help")


def test_snakemake_renders_what_is_not_ascii(foreign):
    foreign.write("prompts/alice.txt", "é" + foreign.read("prompts/alice.txt"))
    shown = said(
        foreign.folder, *foreign.command("--config", "partial=true", "--forcerun", "aggregate")
    )
    assert "report/finding.md" in shown
    assert TEXT in foreign.read("report/details.md")


def test_a_name_that_the_locale_cannot_spell_is_one_line(foreign):
    foreign.set_matrix(TINY_MATRIX | {"prompts": {"g": {"corpus": UNSPELLABLE, "tokens": 17}}})
    foreign.write(UNSPELLABLE, "a text")
    shown = said(foreign.folder, KVPEAK, "plan", code=1)
    assert "prompts.g.corpus: " in shown and "set LC_ALL=C.UTF-8" in shown


@pytest.mark.parametrize(("encoding", "shown"), [("ascii", "==--"), ("utf-8", "━━──")])
def test_a_bar_is_drawn_with_what_the_terminal_has(encoding, shown):
    class Console:
        def __init__(self):
            self.encoding = encoding

    terminal = Terminal(Console())
    assert (BARS[0] * 2 + BARS[1] * 2).translate(terminal._spelled) == shown
    assert is_encodable(BARS, encoding) == (encoding == "utf-8")


def test_what_programs_print_is_read_as_utf_8_whatever_the_locale():
    """uv draws frames, a compiler quotes: text=True would die of them."""
    for path in (ROOT / "workflow").rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"\btext=True|universal_newlines", text), path
