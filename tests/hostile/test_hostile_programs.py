"""Another program counts with everything that it has started: its peak, the guard, its end, and
what it prints. It sees no secrets, and it ends whatever becomes of its runner.
"""

import fcntl
import hashlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from cells import NAMES, Cell
from conftest import Project
from stranger import EVIL, hidden

from kvpeak.base.errors import Unavailable, UserError
from kvpeak.environments.external import Build
from kvpeak.experiment.preparation import lacks_its_programs
from kvpeak.protocol.events import MOST_BYTES
from kvpeak.runner.capped import Capped
from kvpeak.system import leash, programs
from kvpeak.system.git import git
from kvpeak.system.programs import run_program

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads Linux's /proc")
# Touches so many MiB, holds them while it is sampled, and writes the table.
PROGRAM = """#!{python}
import sys, time
held = bytearray({mib} << 20)
held[::4096] = b"x" * len(held[::4096])
time.sleep(0.6)
with open(sys.argv[1], "w") as table:
    print("p,g,rate", "64,9,100", "64,9,100", "64,9,100", sep="\\n", file=table)
"""


@pytest.fixture
def command(tmp_path):
    """A cell of a program that is a shell script; `command(script)` makes it, with `program` beside
    it.
    """

    def make(script: str, mib: int = 600) -> Cell:
        source = tmp_path / ".kvpeak/engines/made-up/source"
        source.mkdir(parents=True)
        for name, text in (
            ("wrapper", f"#!/bin/bash\n{script}\n"),
            ("program", PROGRAM.format(python=sys.executable, mib=mib)),
        ):
            (source / name).write_text(text)
            (source / name).chmod(0o755)
        wrapper = source / "wrapper"
        record = {
            "program": str(wrapper),
            "program_sha256": hashlib.sha256(wrapper.read_bytes()).hexdigest(),
            "revision": "0" * 40,
            "toolchain": {},
        }
        (source.parent / "engine.json").write_text(json.dumps(record))
        columns = {"prompt_tokens": "p", "generated_tokens": "g", "prefill_tok_s": "rate"}
        output = {"file": "{out}/t.csv", "format": "csv", "columns": columns}
        external = {
            "program": str(wrapper),
            "folder": str(source),
            "run": ["wrapper", "{out}/t.csv"],
            "output": output,
        }
        cell = Cell(tmp_path)
        protocol = {"warmup": 1, "recorded": 2, "generate": 9, "seed": 0}
        asked = {
            "engine": "command",
            "external": external,
            "protocol": protocol,
            "cell": NAMES | {"round": 1},
        }
        cell.asked = asked
        return cell

    return make


def test_a_shell_wrapper_around_a_program_measures_the_program(command):
    cell = command('./program "$1"; true')
    done = cell.run(**cell.asked)
    assert done.returncode == 0, done.stderr
    memory = cell.record()["memory"]
    assert memory["peak_footprint_mib"] == pytest.approx(600 + 8, rel=0.02)  # with the interpreter
    assert "lower bound" in memory["peak_footprint_source"]


def test_what_leaves_the_session_counts_and_ends_with_it(command):
    cell = command('setsid ./program "$1" & echo $! > pid; sleep 0.4; exit 0')
    done = cell.run(**cell.asked)
    assert done.returncode == 1  # it was killed before it wrote its table
    assert "the engine wrote no such file" in done.stderr
    pid = int((cell.folder / ".kvpeak/engines/made-up/source/pid").read_text())
    assert not psutil.pid_exists(pid)


# A lock that is held as long as a process that began as this one, or was started by it, is there.
HOLD = "exec 9>held; flock 9\n"
# It has left the session before this goes on.
LEAVE = "setsid sh -c 'touch left; sleep 1000' & while [ ! -e left ]; do :; done"
# Each process leaves the session, starts the next and exits, for ever. It holds so many MiB.
CHAIN = """{python} -c '
import os, sys
held = bytearray(b"x") * (int(*sys.argv[1:] or ["0"]) << 20)
if not os.fork():
    while True:
        os.setsid()
        if os.fork():
            os._exit(0)
'"""


def nothing_holds(lock: Path) -> bool:
    with lock.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


def test_processes_that_start_the_next_and_exit_for_ever_end_with_the_cell(command):
    cell = command(HOLD + CHAIN.format(python=sys.executable) + '\n./program "$1"', mib=1)
    assert cell.run(**cell.asked).returncode == 0
    assert nothing_holds(cell.folder / ".kvpeak/engines/made-up/source/held")


def test_the_guard_counts_processes_that_start_the_next_and_exit_for_ever(command):
    from kvpeak.system.machine import available_mib

    chain = CHAIN.format(python=sys.executable)
    cell = command(f"{HOLD}{chain} 600\nsleep 1000")
    limits = {"guard_fraction": 300 / available_mib(), "timeout_s": 60}
    assert cell.run(**cell.asked, limits=limits).returncode == 0
    assert cell.record()["outcome"] == "guard"
    assert nothing_holds(cell.folder / ".kvpeak/engines/made-up/source/held")


def test_the_guard_stops_a_wrapper_for_what_its_program_holds(command):
    from kvpeak.system.machine import available_mib

    cell = command('./program "$1"; true')
    limits = {"guard_fraction": 400 / available_mib()}
    assert cell.run(**cell.asked, limits=limits).returncode == 0
    record = cell.record()
    assert record["outcome"] == "guard"
    assert record["memory"]["peak_footprint_mib"] < 620


def test_a_flood_of_messages_keeps_its_beginning_and_its_end(command):
    flood = "head -c 100000000 /dev/zero | tr '\\0' x"
    cell = command(f'echo first >&2; {flood} >&2; echo last >&2; {flood}; ./program "$1"', mib=1)
    assert cell.run(**cell.asked).returncode == 0
    attempt = cell.attempts()[0]
    messages = (attempt / "stderr.txt").read_bytes()
    assert len(messages) < 17 << 20 and (attempt / "stdout.txt").stat().st_size < 17 << 20
    assert messages.startswith(b"first\n") and messages.endswith(b"last\n")
    assert b"bytes left out" in messages


def test_a_short_log_is_kept_as_it_is(tmp_path):
    with Capped(tmp_path / "log", most=10) as log:
        log.write(b"0123456")
        log.write(b"789abc")
    assert (tmp_path / "log").read_bytes() == b"0123456789abc"


def test_another_program_sees_no_secrets(command, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "secret")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("LC_TOKEN", "secret")
    cell = command('env > seen; ./program "$1"', mib=1)
    cell.environment = os.environ | {"TMPDIR": str(cell.folder)}
    assert cell.run(**cell.asked).returncode == 0
    seen = (cell.folder / ".kvpeak/engines/made-up/source/seen").read_text()
    assert "PATH=" in seen and "secret" not in seen


def alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def gone(pid: int) -> bool:
    """Whether the process ends; one that stays is noticed after a while."""
    deadline = time.monotonic() + 30
    while alive(pid) and time.monotonic() < deadline:
        time.sleep(0.01)
    return not alive(pid)


# A process that has left the session of its engine, and its own parent.
DAEMON = """
load()
start = 'setsid sleep 1000 & echo $! > daemon.new; mv daemon.new daemon'
subprocess.run(["sh", "-c", start])
begin(0)
time.sleep(1000)
"""


def with_daemon(cell: Cell) -> tuple[subprocess.Popen, int]:
    """A runner whose engine hangs, and the process that the engine has left behind."""
    cell.engine(DAEMON)
    runner = cell.start()
    while "prefill-0" not in runner.stderr.readline():
        assert runner.poll() is None
    return runner, int((cell.folder / "daemon").read_text())


def test_what_left_the_session_ends_with_a_runner_that_is_killed(tmp_path):
    runner, daemon = with_daemon(Cell(tmp_path))
    assert alive(daemon)
    runner.kill()
    runner.communicate()
    assert gone(daemon)


def test_a_runner_that_is_stopped_has_a_time_limit(tmp_path):
    """An engine may stop its runner; then nobody is left to look at the clock but the leash."""
    reading, writing = os.pipe()
    code = """
import os, signal, subprocess, sys
from kvpeak.system import leash
leash.LATE_S = 0.1
tied = leash.Leash(0.2)
start = ["sleep", "1000"]
env = tied.marked(dict(os.environ))
child = subprocess.Popen(start, start_new_session=True, preexec_fn=tied.tie, env=env)
os.write(int(sys.argv[1]), str(child.pid).encode())
os.kill(os.getpid(), signal.SIGSTOP)
"""
    scripts = Path(__file__).parents[2] / "workflow/scripts"
    runner = subprocess.Popen(
        [sys.executable, "-c", code, str(writing)],
        pass_fds=[writing],
        env=os.environ | {"PYTHONPATH": str(scripts)},
    )
    try:
        assert gone(int(os.read(reading, 100)))
        assert psutil.Process(runner.pid).status() == psutil.STATUS_STOPPED
    finally:
        runner.kill()
        runner.wait()
        os.close(reading)
        os.close(writing)


def test_a_leash_that_is_let_go_ends_nothing():
    tied = leash.Leash(60)
    child = subprocess.Popen(["sleep", "1000"], start_new_session=True, preexec_fn=tied.tie)
    tied.release()
    assert child.poll() is None
    child.kill()
    child.wait()


def test_a_program_that_closes_its_pipes_is_watched_to_its_end(command):
    cell = command('exec >&- 2>&-; ./program "$1"', mib=50)
    assert cell.run(**cell.asked).returncode == 0
    assert cell.record()["memory"]["peak_footprint_mib"] > 50


def test_a_name_that_imitates_a_record_of_the_kernel_changes_no_number(command):
    """The system tells a process's name beside its numbers, in one line."""
    cell = command('exec -a "x) R 1 1 1 (" ./program "$1"', mib=50)
    program = cell.folder / ".kvpeak/engines/made-up/source/program"
    named = "open('/proc/self/comm', 'w').write(') R 1 (')"
    program.write_text(program.read_text().replace("held = ", f"{named}\nheld = "))
    assert cell.run(**cell.asked).returncode == 0
    assert 50 < cell.record()["memory"]["peak_footprint_mib"] < 90


def test_events_without_end_are_stopped_and_not_kept(tmp_path):
    cell = Cell(tmp_path)
    cell.engine("load(); begin(0)\nwhile True: say('run_started', run=0, warmup=True)")
    done = cell.run(limits={"timeout_s": 60})
    assert done.returncode == 1
    assert "garbled answer in phase prefill-0: event run_started where " in done.stderr
    assert (cell.attempts()[0] / "events.jsonl").stat().st_size < 17 << 20


def test_turns_without_end_are_stopped_and_not_kept(tmp_path):
    """Every one of them is in its place, so that only their size tells."""
    cell = Cell(tmp_path)
    cell.engine(
        "load(); begin(0)\n"
        "for turn in range(1, 10**9):\n"
        "    say('turn_started', run=0, turn=turn); say('prefilled', run=0, more='x' * 100_000)"
    )
    done = cell.run(limits={"timeout_s": 60})
    assert done.returncode == 1
    assert f"more than {MOST_BYTES} bytes of events" in done.stderr


@pytest.mark.parametrize(
    ("key", "value"),
    [("peak_rss_mib", [1]), ("peak_reserved_mib", "1"), ("decode_steps", 10**299)],
)
def test_a_key_that_an_event_may_have_is_of_its_kind(tmp_path, key, value):
    cell = Cell(tmp_path)
    more = f"say = lambda event, more=say, **keys: more(event, **keys, **{{{key!r}: {value!r}}})"
    cell.engine(f"{more}\nanswer()")
    done = cell.run()
    assert done.returncode == 1
    assert f"event run: {key} is " in done.stderr.splitlines()[-1]


@pytest.mark.parametrize("more", ['"x": 1%s' % ("0" * 400), '"run": 0', '"a\\u200b": 1'])
def test_an_event_that_no_record_could_hold_is_refused_at_once(tmp_path, more):
    """Else the cell is measured, and its record is refused by everybody who reads it."""
    cell = Cell(tmp_path)
    line = f'{{"event": "run_started", "run": 0, "warmup": true, {more}}}'
    cell.engine(f"load()\nprint({line!r}, flush=True)")
    done = cell.run()
    assert done.returncode == 1
    assert "garbled answer in phase idle: not a JSON event: " in done.stderr


def test_a_record_that_nobody_could_read_again_is_not_written(tmp_path):
    """Its lines are indented, so that a deep list of a few bytes has megabytes."""
    cell = Cell(tmp_path)
    deep = "[" * 900 + "]" * 900
    cell.engine(
        f"more = json.loads({deep!r})\nsay('started', versions={{}}, device={{}}, "
        "cap_bytes=None, more=[more] * 20)\nload = lambda: say('loaded', load_s=0.25, "
        "loaded_mib=5.0, weights_mapped=False, dtype='float32')\nanswer()"
    )
    done = cell.run()
    assert done.returncode == 1
    assert "cell.json: would have more than 16 MiB" in done.stderr


def test_a_figure_that_no_record_can_hold_is_refused_before_anything_is_measured(tmp_path):
    cell = Cell(tmp_path)
    cell.engine("answer()")
    done = cell.run(protocol={"warmup": 1, "recorded": 2, "repeat_penalty": float("nan")})
    assert done.returncode == 1
    assert done.stderr.startswith("run_cell: request: NaN is no number; expected")
    assert not (tmp_path / "results").exists()


def test_what_an_engine_says_is_plain_text_on_the_terminal_and_in_the_log(tmp_path):
    cell = Cell(tmp_path)
    evil = EVIL.replace("\ud800", "")
    cell.engine(f"load(); sys.stderr.write({evil!r}); sys.stderr.flush(); sys.exit(1)")
    said = cell.run().stderr
    assert "\\x1b]0;owned\\x07" in said.splitlines()[-1]
    assert not hidden(said)
    assert not hidden((cell.attempts()[0] / "runner.log").read_text())


def test_secrets_of_the_environment_are_in_no_record_and_no_log(command, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_very_secret")
    cell = command('env >&2; ./program "$1"', mib=1)
    cell.environment = os.environ | {"TMPDIR": str(cell.folder)}
    done = cell.run(**cell.asked)
    assert done.returncode == 0, done.stderr
    files = [file for file in cell.folder.glob("results/**/*") if file.is_file()]
    assert len(files) > 5
    assert not [file for file in files if "hf_very_secret" in file.read_text(errors="replace")]


@pytest.mark.parametrize("link", [Path.symlink_to, Path.hardlink_to])
def test_an_engine_that_writes_through_the_file_of_the_moment_reaches_nothing(tmp_path, link):
    """Results from elsewhere may hold a link under the name that the runner writes most often."""
    cell = Cell(tmp_path)
    (tmp_path / "mine").write_text("mine")
    now = tmp_path / "results/logs/made-up/m/p/cat/none/default/now.txt"
    now = now.parent / "r1" / now.name
    now.parent.mkdir(parents=True)
    link(now, tmp_path / "mine")
    cell.engine("answer()")
    assert cell.run().returncode == 0
    assert (tmp_path / "mine").read_text() == "mine"


IN_ITS_PLACE = """
file = os.path.join(os.path.dirname(sys.argv[2]), {name!r})
if os.path.exists(file): os.unlink(file)
{make}
{then}
"""


@pytest.mark.parametrize("make", ["os.symlink(os.path.abspath('mine'), file)", "os.mkfifo(file)"])
@pytest.mark.parametrize(
    ("name", "then", "code"), [("runner.log", "answer()", 0), ("failure.txt", "sys.exit(3)", 1)]
)
def test_an_engine_that_puts_a_link_or_a_pipe_in_the_place_of_a_log_reaches_nothing(
    tmp_path, name, make, then, code
):
    """A pipe that nobody reads would hold the runner, and its lock, beyond every limit."""
    cell = Cell(tmp_path)
    (tmp_path / "mine").write_text("mine")
    cell.engine(IN_ITS_PLACE.format(name=name, make=make, then=then))
    done = subprocess.run(
        cell.command(),
        cwd=cell.folder,
        env=cell.environment,
        stderr=subprocess.PIPE,
        timeout=60,
        check=False,
    )
    assert done.returncode == code, done.stderr
    assert (tmp_path / "mine").read_text() == "mine"


INSTEAD = """
load(); begin(0)
mine, folder = os.path.abspath("mine"), {folder}
while os.path.exists(folder) and not os.path.exists(os.path.join({logs}, "now.txt")): pass
os.makedirs(folder, exist_ok=True)
os.rename(folder, folder + "-moved")
os.{put}(mine, folder)
{then}
"""
ATTEMPT = "os.path.dirname(os.path.abspath(sys.argv[2]))"
LOGS = f"os.path.dirname({ATTEMPT})"
RESULT = f"{LOGS}.replace('/logs/', '/cells/')"


REST = "finish(0)\nfor number in 1, 2: begin(number); finish(number)\ndone()"


@pytest.mark.parametrize("put", ["symlink", "rename"])
@pytest.mark.parametrize("then", [REST, "sys.exit(3)"], ids=["answers", "crashes"])
@pytest.mark.parametrize("folder", [ATTEMPT, LOGS, RESULT], ids=["its own", "above", "result"])
def test_an_engine_that_puts_another_folder_in_the_place_of_the_runners_reaches_nothing(
    tmp_path, folder, then, put
):
    """By a link, or by moving a folder of the user's there."""
    cell, mine = Cell(tmp_path), tmp_path / "mine"
    mine.mkdir()
    names = ("runs.csv", "cell.json", "memory.csv", "failure.txt", "now.txt", "stderr.txt")
    for name in (*names, "marker"):
        (mine / name).write_text("mine")
    cell.engine(INSTEAD.format(folder=folder, logs=LOGS, put=put, then=then))
    done = subprocess.run(
        [*cell.command(), "--record-failure"],
        cwd=tmp_path,
        env=cell.environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "something else was put in the place of this folder" in done.stderr.splitlines()[-1]
    assert done.returncode == (1 if folder == RESULT else 0)
    (marker,) = tmp_path.rglob("marker")
    found = {path.name: path.read_text() for path in marker.parent.iterdir()}
    assert found == dict.fromkeys((*names, "marker"), "mine")
    if folder != RESULT:
        assert "something else" in cell.record()["detail"]


def test_a_folder_of_results_that_leads_elsewhere_is_not_written_through(tmp_path):
    """Another cell's engine may have put it there."""
    cell = Cell(tmp_path)
    cell.engine("answer()")
    (tmp_path / "mine").mkdir()
    cell.out.parent.mkdir(parents=True)
    cell.out.symlink_to(tmp_path / "mine")
    done = cell.run()
    assert done.returncode == 1
    assert "leads out of results; expected a path inside it" in done.stderr
    assert not [*(tmp_path / "mine").iterdir()]


# Builds


@pytest.mark.parametrize("left", [LEAVE, CHAIN], ids=["one process", "one after the other"])
def test_what_a_program_leaves_ends_with_it(tmp_path, left):
    run_program(["bash", "-c", HOLD + left.format(python=sys.executable)], 60, folder=tmp_path)
    assert nothing_holds(tmp_path / "held")


@pytest.mark.parametrize("left", [LEAVE, CHAIN], ids=["one process", "one after the other"])
def test_a_program_that_does_not_end_is_ended_with_what_left_its_session(tmp_path, left):
    start = HOLD + left.format(python=sys.executable) + "\nsleep 1000"
    with pytest.raises(Unavailable, match="not finished after 1 s"):
        run_program(["bash", "-c", start], 1, folder=tmp_path)
    assert nothing_holds(tmp_path / "held")


@pytest.mark.parametrize("capture", [True, False])
def test_what_a_program_prints_without_end_is_neither_kept_nor_shown(capture, monkeypatch, capsys):
    monkeypatch.setattr(programs, "MOST_SAID", 1 << 20)
    flood = "head -c 30000000 /dev/zero | tr '\\0' x"
    done = run_program(["sh", "-c", f"{flood}; {flood} >&2; echo last >&2"], 60, capture=capture)
    shown = capsys.readouterr().err
    assert done.returncode == 0 and shown.count("more is not shown") == 2 * (not capture)
    assert max(map(len, (done.stdout, done.stderr, shown))) < 3 << 20
    assert capture or programs.last_line(done.stderr).endswith("last")


def test_a_build_leaves_nothing(project, repository):
    done = build(project, repository | {"build": ["bash", "-c", HOLD + LEAVE]})
    assert done.returncode == 0, done.stderr
    assert nothing_holds(project.folder / ".kvpeak/engines/x/source/held")


@pytest.fixture
def repository(tmp_path) -> dict[str, str]:
    """A repository whose program is a script, as an entry of the matrix."""
    folder = tmp_path / "repository"
    folder.mkdir()
    (folder / "x").write_text("#!/bin/sh\n")
    (folder / "x").chmod(0o755)
    identity = ["-c", "user.name=x", "-c", "user.email=x@example.org"]
    for words in (["init", "--quiet"], ["add", "x"], [*identity, "commit", "--quiet", "-m", "x"]):
        subprocess.run(["git", "-C", folder, *words], check=True)
    asked = ["git", "-C", folder, "rev-parse", "HEAD"]
    revision = subprocess.run(asked, capture_output=True, text=True).stdout.strip()
    return {"repository": str(folder), "revision": revision, "run": ["x"]}


def build(project: Project, entry: dict) -> subprocess.CompletedProcess:
    out = "results/engines/x/engine.json"
    program = "workflow/scripts/build_engine.py"
    arguments = ["--commit", "x", "--entry", json.dumps(entry), "--out", out]
    return subprocess.run(
        [sys.executable, program, *arguments],
        cwd=project.folder,
        env=os.environ | {"HF_TOKEN": "hf_very_secret", "TMPDIR": str(project.folder)},
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_build_sees_no_secrets(project, repository):
    done = build(project, repository | {"build": ["sh", "-c", "env > seen"]})
    assert done.returncode == 0, done.stderr
    seen = project.read(".kvpeak/engines/x/source/seen")
    assert "PATH=" in seen and "hf_very" not in seen


@pytest.mark.parametrize(
    "changes",
    [
        {"repository": "ext::sh -c touch% executed"},
        {"repository": "--upload-pack=touch executed"},
        {"revision": "--output=executed"},
    ],
    ids=["a transport that is a command", "an option as the address", "an option as the revision"],
)
def test_git_takes_no_command_and_no_option_from_an_entry(project, repository, changes):
    done = build(project, repository | changes)
    assert done.returncode in (1, 69)
    assert "Traceback" not in done.stderr
    assert not [*project.folder.rglob("executed*")]


def test_git_starts_no_filter_that_a_local_repository_names(project, repository):
    """Its configuration is in no revision."""
    folder, wire = Path(repository["repository"]), project.folder / "executed"
    (folder / ".git/info").mkdir(exist_ok=True)
    (folder / ".git/info/attributes").write_text("x filter=evil\n")
    for key in ("clean", "process"):
        subprocess.run(["git", "-C", folder, "config", f"filter.evil.{key}", f"touch {wire}"])
    subprocess.run(["git", "-C", folder, "config", "filter.evil.required", "true"], check=True)
    (folder / "x").write_text("#!/bin/zh\n")  # as many bytes as before: git has to look into it
    assert "has uncommitted changes" in build(project, repository).stderr
    assert not wire.exists()


@pytest.mark.parametrize("name", ["a=b", "a\u2028b", "a\x0cb"])
def test_a_filter_whose_name_hides_it_is_refused(tmp_path, name):
    """`-c filter.a=b.clean=` would set filter.a; some characters end a line, or so it seems."""
    made = changed_repository(tmp_path / "made", tmp_path / "executed", name)
    with pytest.raises(UserError, match=r"configuration names filter\.a.*expected a filter's"):
        Build("x", {"repository": str(made), "revision": "HEAD"})._refuse_uncommitted()
    assert not (tmp_path / "executed").exists()


def test_git_starts_no_filter_of_a_submodule(tmp_path):
    inner = changed_repository(tmp_path / "outer/inner", tmp_path / "executed", "x")
    outer = inner.parent
    git("init", "--quiet", str(outer))
    git("-c", "advice.addEmbeddedRepo=false", "add", "inner", folder=outer)
    git(*IDENTITY, "commit", "--quiet", "--message", "x", folder=outer)
    Build("x", {"repository": str(outer), "revision": "HEAD"})._refuse_uncommitted()
    assert not (tmp_path / "executed").exists()


IDENTITY = ("-c", "user.name=x", "-c", "user.email=x@example.org")


def changed_repository(folder: Path, wire: Path, name: str) -> Path:
    """A repository with a file that was changed, and a filter that git would look at it through."""
    folder.mkdir(parents=True)
    git("init", "--quiet", str(folder))
    (folder / "a").write_text("old\n")
    git("add", "a", folder=folder)
    git(*IDENTITY, "commit", "--quiet", "--message", "x", folder=folder)
    (folder / ".git/info").mkdir(exist_ok=True)
    (folder / ".git/info/attributes").write_text(f"a filter={name}\n")
    with (folder / ".git/config").open("a") as config:
        config.write(f'[filter "{name}"]\n\tclean = touch {wire}; cat\n')
    (folder / "a").write_text("new\n")
    return folder


def test_a_foreign_build_is_not_started(project, repository, monkeypatch):
    """Its record lies in results/, its program does not; a copy that differs is another build's."""
    monkeypatch.chdir(project.folder)
    assert build(project, repository).returncode == 0
    record = Path("results/engines/x/engine.json")
    assert not lacks_its_programs(record)
    record.write_text(record.read_text().replace('"x"', '"y"', 1))
    assert lacks_its_programs(record)


def test_a_program_that_was_changed_after_its_build_is_not_started(command):
    cell = command('./program "$1"', mib=1)
    wrapper = cell.folder / ".kvpeak/engines/made-up/source/wrapper"
    wrapper.write_text(wrapper.read_text() + "touch executed\n")
    done = cell.run(**cell.asked)
    assert done.returncode == 1
    assert "is not the program that was built" in done.stderr


def test_nobody_else_can_hold_the_lock_of_a_mirror(project, repository):
    """Who may read a file may hold it."""
    mirrors = project.folder / ".kvpeak/mirrors"
    assert build(project, repository).returncode == 0
    (lock,) = mirrors.glob("*.lock")
    lock.chmod(0o644)  # as an earlier version made it
    assert build(project, repository).returncode == 0
    assert lock.stat().st_mode & 0o777 == 0o600


def test_signals_that_a_program_ignores_end_it_all_the_same(command):
    cell = command("trap '' TERM INT HUP; while :; do sleep 1; done")
    limits = {"timeout_s": 0.5, "grace_s": 0.1}
    assert cell.run(**cell.asked, limits=limits).returncode == 0
    assert cell.record()["outcome"] == "timeout"
