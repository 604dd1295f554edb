"""Every program ends what goes wrong for the person at the keyboard in one line with its name, and
the code that `kvpeak --help` lists: a mistake, an output that cannot be written, a full one, a
closed one, an interrupt.
"""

import fcntl
import functools
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path

import psutil
import pytest
import warm

from kvpeak import cli
from kvpeak.base.program import CLOSED_PIPE, DONE, FAILED, INTERRUPTED, UNAVAILABLE, USAGE

ROOT = Path(__file__).parents[1]
SCRIPTS = ROOT / "workflow/scripts"
KVPEAK = Path(sys.executable).with_name("kvpeak")
# The engines are started by the runner alone and answer it with events (tests/test_mlx_engine.py
# and others).
ENGINES = {"mlx_engine", "candle_replay", "mistralrs_engine", "probe"}

CELL = "results/cells/mlx-0.32.4/tiny/alice-16/cat/none/default/r1"
RECORDINGS = ROOT / "config/pools/pytorch-h200"
PREDICT = "--model config/models/tiny.json --prompt-tokens 17 --kv-cache cat --slack 2 --decode 8"


@dataclass(frozen=True)
class Program:
    """Arguments, separated by spaces. mistake: of a user's; prints: what writes to standard output,
    None if nothing does; writes: what writes into the folder {out}, None if nothing does.
    """

    mistake: str
    prints: str | None = None
    writes: str | None = None
    code: int = FAILED  # of the mistake


PROGRAMS = {
    "kvpeak plan": Program("--matrix nowhere.yaml", "", "--out {out}/plan.csv"),
    "kvpeak failed": Program("--matrix nowhere.yaml", ""),
    "kvpeak publish": Program("a --report nowhere.md", "a", "a --folder {out}"),
    "kvpeak import": Program("nowhere"),
    "kvpeak compare": Program(
        "results nowhere", "results results", "results results --out {out}/a.md"
    ),
    "kvpeak completion": Program("fish", "bash", code=USAGE),
    "kvpeak predict": Program(
        f"{PREDICT} --runs 0", PREDICT, f"{PREDICT} --sweep {{out}}/sweep.csv"
    ),
    "kvpeak pools": Program("nowhere.pickle", "--policies", "trace.csv --out {out}"),
    "kvpeak fits": Program("--results nowhere", "", "--out {out}/fits.csv"),
    "aggregate": Program("--plan nowhere.csv", None, "--out {out}"),
    "build_engine": Program(
        '--commit x --entry {"repository":"nowhere","revision":"0000000","run":["x"]} --out x.json',
        code=UNAVAILABLE,
    ),
    "build_pool": Program("--nothing", code=USAGE),
    "doctor": Program("--nothing", code=USAGE),
    "kvpeak bisect": Program("--nothing", code=USAGE),
    "kvpeak doctor": Program("--nothing", code=USAGE),
    "release_table": Program("--nothing", code=USAGE),
    "calibrate": Program("--commit x --python nowhere --out x.json", code=UNAVAILABLE),
    "collect_wheels": Program("--matrix nowhere.yaml"),
    "cut_prompt": Program(
        "--corpus nowhere.txt --model-folder models/tiny --tokens 5 --out x.json",
        None,
        "--corpus prompts/alice.txt --model-folder models/tiny --tokens 5 --out {out}/x.json",
    ),
    "make_env": Program(
        "--commit x --packages nonsense --out x.json", None, "--commit x --out {out}/x.json", USAGE
    ),
    "resolve_env": Program("--nothing", code=USAGE),
    "make_model": Program(
        '--name x --entry {"kind":"random","config":"nowhere.json"} --out models/x/model.json',
        None,
        '--name x --entry {{"kind":"random","config":"config/models/tiny.json"}}'
        " --out {out}/model.json",
    ),
    "try_step": Program("--out x", None, "--out {out}/x.json --limit 60 -- false", USAGE),
    "check": Program("--plan nowhere.csv", "", "--out {out}/checks.csv"),
    "columns": Program("--nothing", None, "--out {out}/columns.md", USAGE),
    "fits": Program("--results nowhere", "", "--out {out}/fits.csv"),
    "page": Program("--finding nowhere.md", None, "--out {out}/finding.html"),
    "plan": Program("--matrix nowhere.yaml", "", "--out {out}/plan.csv"),
    "plot": Program("--matrix nowhere.yaml", "", "--out {out}/figures"),
    "pools": Program("nowhere.pickle", "--policies", "trace.csv --out {out}"),
    "render": Program("--matrix nowhere.yaml", None, "--out {out}/finding.md"),
    # It computes for long before it writes: tests/test_replay_finding.py.
    "replay_finding": Program("--cells nowhere.csv"),
    "replay_recordings": Program("nowhere", None, "recordings --out {out}/pytorch.csv"),
    "run_cell": Program(f"{CELL} --matrix nowhere.yaml"),
}
NAMES = sorted(PROGRAMS)
PRINTING = [name for name in NAMES if PROGRAMS[name].prints is not None]
WRITING = [name for name in NAMES if PROGRAMS[name].writes is not None]


def test_every_command_and_every_step_is_tried_here():
    steps = {path.stem for path in SCRIPTS.glob("*.py")} - ENGINES
    assert {f"kvpeak {name}" for name in cli.COMMANDS} | steps == {*NAMES}


def command(name: str, arguments: str) -> list:
    first, *rest = name.split()
    program = [KVPEAK, *rest] if rest else [sys.executable, SCRIPTS / f"{first}.py"]
    return [*program, *arguments.split()]


def one_line(name: str, code: int, expected: int, stderr: str) -> str:
    """The line on standard error, without the program's name; it has to be the only one."""
    assert "Traceback" not in stderr
    assert code == expected, stderr
    assert stderr.startswith(f"{name}: ") and stderr.count("\n") == 1, stderr
    return stderr.removeprefix(f"{name}: ").rstrip("\n")


@pytest.fixture(scope="module")
def here(_measured, tmp_path_factory) -> Path:
    """A project that was measured, with a trace."""
    folder = tmp_path_factory.mktemp("programs") / "project"
    shutil.copytree(_measured, folder, symlinks=True)
    (folder / "trace.csv").write_text("op,id,bytes\nalloc,1,1048576\nfree,1,\n")
    (folder / "a-file").write_text("")
    record = folder / CELL / "cell.json"  # one cell that `kvpeak failed` lists
    record.write_text(record.read_text().replace('"outcome": "ok"', '"outcome": "oom"', 1))
    (folder / "docs").mkdir()
    copy_shortest_recording(folder / "recordings")
    return folder


def copy_shortest_recording(folder: Path) -> None:
    folder.mkdir()
    shortest = min(json.loads((RECORDINGS / "peaks.json").read_text()), key=itemgetter("events"))
    (folder / "peaks.json").write_text(json.dumps([shortest]))
    name = f"{shortest['snapshot']}.pickle.xz"
    with (
        zipfile.ZipFile(RECORDINGS / "snapshots.zip") as whole,
        zipfile.ZipFile(folder / "snapshots.zip", "w") as one,
    ):
        one.writestr(name, whole.read(name))


@pytest.mark.parametrize("name", NAMES)
def test_a_users_mistake_is_one_line(name, here):
    program = PROGRAMS[name]
    done = warm.run(command(name, program.mistake), here)
    one_line(name, done.returncode, program.code, done.stderr)


@pytest.mark.parametrize("name", NAMES)
def test_an_unknown_option_is_one_line_that_names_the_help(name, here):
    done = warm.run(command(name, "--no-such-option"), here)
    assert f"{name} --help" in one_line(name, done.returncode, USAGE, done.stderr)


@pytest.mark.parametrize("name", WRITING)
def test_a_folder_that_cannot_be_made_is_one_line_that_names_it(name, here):
    arguments = PROGRAMS[name].writes.format(out="a-file/out")
    done = warm.run(command(name, arguments), here)
    assert "a-file" in one_line(name, done.returncode, FAILED, done.stderr)


@pytest.mark.parametrize("name", WRITING)
def test_a_folder_that_may_not_be_written_is_one_line_that_names_it(
    name, here, tmp_path, read_only
):
    out = tmp_path / "locked"
    out.mkdir()
    read_only(out)
    arguments = PROGRAMS[name].writes.format(out=out)
    done = warm.run(command(name, arguments), here)
    assert "locked" in one_line(name, done.returncode, FAILED, done.stderr)


def both(name: str) -> list[str]:
    """What a program prints: its help, and what it is for."""
    prints = PROGRAMS[name].prints
    return ["--help"] if prints is None else ["--help", prints]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full, which Linux has")
@pytest.mark.parametrize("name", NAMES)
def test_a_full_output_is_one_line(name, here):
    for arguments in both(name):
        with Path("/dev/full").open("w") as full:
            done = warm.run(command(name, arguments), here, stdout=full)
        said = one_line(name, done.returncode, FAILED, done.stderr)
        assert said == "standard output: No space left on device"


@pytest.mark.parametrize("name", NAMES)
def test_a_closed_pipe_is_one_line(name, here):
    for arguments in both(name):
        closed_pipe(name, functools.partial(warm.run, command(name, arguments), here))


@pytest.mark.parametrize("arguments", ["--help", "bash"])
def test_a_closed_pipe_is_one_line_without_buffers_too(arguments, here):
    name = "kvpeak completion"

    run = functools.partial(
        subprocess.run,
        command(name, arguments),
        cwd=here,
        env=os.environ | {"PYTHONUNBUFFERED": "1"},
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    closed_pipe(name, run)


def closed_pipe(name: str, run: Callable[..., subprocess.CompletedProcess]) -> None:
    """`run` starts the program with a standard output that nobody reads."""
    read, write = os.pipe()
    os.close(read)
    done = run(stdout=write)
    os.close(write)
    said = one_line(name, done.returncode, CLOSED_PIPE, done.stderr)
    assert said == "standard output was closed"


def blocked(process: warm.Started) -> bool:
    """Whether the process waits. False once it has ended."""
    try:
        seen = psutil.Process(process.pid)
        before = seen.cpu_times()
        return seen.status() == psutil.STATUS_SLEEPING and seen.cpu_times() == before
    except psutil.NoSuchProcess:
        return False


@pytest.mark.skipif(sys.platform != "linux", reason="fills a pipe of Linux's size")
@pytest.mark.parametrize("name", PRINTING)
def test_an_interrupt_while_it_waits_is_one_line(name, here):
    """It waits for room in a pipe that nobody reads."""
    read, write = os.pipe()
    os.write(write, b"x" * fcntl.fcntl(write, fcntl.F_GETPIPE_SZ))
    with tempfile.TemporaryFile("a+") as stderr:
        process = warm.start(command(name, PROGRAMS[name].prints), write, stderr.fileno(), here)
        os.close(write)
        while not process.ended() and not blocked(process):
            pass
        process.send_signal(signal.SIGINT)
        with os.fdopen(read, "rb") as pipe:
            while not process.ended() and pipe.read1():
                pass
        code = process.wait()
        stderr.seek(0)
        assert one_line(name, code, INTERRUPTED, stderr.read()) == "interrupted"


@pytest.mark.parametrize("name", sorted({*NAMES} - {"run_cell"}))
def test_an_interrupt_at_its_start_is_one_line(name, here):
    """The signal comes with the first import of a third-party package, or of the command itself."""
    code = f"""
import os, runpy, signal, sys
class Interrupt:
    def find_spec(self, fullname, path=None, target=None):
        if fullname.startswith("kvpeak.commands"):
            sys.meta_path.remove(self)
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Interrupt())
sys.argv = {[str(word) for word in command(name, "")]!r}
sys.argv = sys.argv[1:] if sys.argv[0] == {sys.executable!r} else sys.argv
sys.path.insert(0, {str(SCRIPTS)!r})
runpy.run_path(sys.argv[0], run_name="__main__")
"""
    done = warm.run([sys.executable, "-c", code], here)
    assert one_line(name, done.returncode, INTERRUPTED, done.stderr) == "interrupted"


def test_what_is_printed_of_a_mistake_is_one_line_whatever_it_holds(here):
    done = warm.run([KVPEAK, "plan", "--matrix", "no\nwhere\x1b[31m.yaml"], here)
    assert "\x1b" not in one_line("kvpeak plan", done.returncode, FAILED, done.stderr)


def test_done_is_0(here):
    done = subprocess.run([KVPEAK, "plan"], cwd=here, capture_output=True, check=False)
    assert done.returncode == DONE
