"""Another program counts with everything that it has started: its peak, the guard, its end, and
what it prints.
"""

import hashlib
import json
import os
import sys

import psutil
import pytest
from cells import NAMES, Cell

from kvpeak.runner.capped import Capped

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
