"""The command `kvpeak`: what a person starts, and what it costs to ask for help."""

import subprocess
import sys
from pathlib import Path

import pytest
import warm

from kvpeak import cli
from kvpeak.base.version import VERSION

KVPEAK = Path(sys.executable).with_name("kvpeak")


def run(*arguments: str) -> subprocess.CompletedProcess:
    return warm.run([KVPEAK, *arguments])


def test_help_lists_every_command_with_its_first_line_and_the_exit_codes():
    shown = run("--help")
    assert shown.returncode == 0
    for name in cli.COMMANDS:
        assert f"\n  {name:<12}{cli.summary(name)}\n" in shown.stdout
    assert all(f"\n  {code} " in shown.stdout for code in ("0", "1", "2", "130", "141"))
    assert max(map(len, shown.stdout.splitlines())) <= 80
    assert run().stdout == shown.stdout


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["pool"]])
def test_help_version_and_a_misspelt_command_import_no_command_and_nothing_heavy(arguments):
    code = f"""
import sys
from kvpeak import cli
cli.start({arguments!r})
heavy = {{"mlx", "numpy", "pandas", "snakemake", "yaml"}}
loaded = {{name.split(".")[0] for name in sys.modules}} & heavy
loaded |= {{name for name in sys.modules if name.startswith("kvpeak.commands")}}
sys.exit(", ".join(loaded) or 0)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_version_is_the_one_that_results_record():
    assert run("--version").stdout == f"kvpeak {VERSION}\n"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["publsh"], "publsh: no such command; did you mean publish? (kvpeak --help lists them)"),
        (["zzz"], "zzz: no such command (kvpeak --help lists them)"),
        (["--verson"], "unrecognized arguments: --verson; see kvpeak --help"),
    ],
)
def test_a_misspelt_command_is_one_line(given, said):
    done = run(*given)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"kvpeak: {said}\n")


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_every_command_explains_itself_at_80_columns(name):
    done = run(name, "--help")
    assert done.returncode == 0
    assert done.stdout.startswith(f"usage: kvpeak {name} ")
    assert max(map(len, done.stdout.splitlines())) <= 80


def test_the_completion_of_bash_offers_commands_and_options():
    script = f"""
eval "$({KVPEAK} completion bash)"
complete_it() {{
    COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _shtab_kvpeak kvpeak "${{@: -1}}"
    echo "${{COMPREPLY[@]}}"
}}
complete_it kvpeak pub
complete_it kvpeak compare --o
"""
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False)
    assert done.stdout.splitlines() == ["publish", "--out"], done.stderr


@pytest.mark.parametrize("shell", ["zsh", "tcsh"])
def test_the_other_shells_have_a_completion_with_every_command(shell):
    script = run("completion", shell).stdout
    assert all(name in script for name in cli.COMMANDS)
