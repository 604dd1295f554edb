"""The runner against engines that answer well, badly, or not at all. All are real processes."""

import fcntl
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from cells import CELL, RUN_CELL, Cell
from fake_nvml import UUID, Nvml, process

from kvpeak.base.errors import UserError
from kvpeak.runner import attempt
from kvpeak.runner.cell import run_cell
from kvpeak.runner.cpu_time import count_cpu_s
from kvpeak.system.nvml import Gpu


@pytest.fixture
def cell(tmp_path) -> Cell:
    return Cell(tmp_path)


def failure(done: subprocess.CompletedProcess) -> str:
    """The one line that a failed job ends with."""
    assert done.returncode == 1, done.stderr
    line = done.stderr.splitlines()[-1]
    assert line.startswith(f"run_cell: {CELL}: "), done.stderr
    assert "Traceback" not in done.stderr
    return line


def alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_every_run_is_a_row_with_the_figures_of_the_definitions(cell):
    cell.engine("answer()")
    done = cell.run()
    assert done.returncode == 0, done.stderr
    rows = cell.rows()
    assert [(row["run"], row["warmup"]) for row in rows] == [
        ("0", "true"),
        ("1", "false"),
        ("2", "false"),
    ]
    assert (rows[0]["commit"], rows[0]["round"], rows[0]["order"]) == ("made-up", "1", "3")
    assert float(rows[0]["prefill_tok_s"]) == 64 / 0.5
    assert float(rows[0]["ttft_ms"]) == 750
    assert float(rows[0]["decode_tok_s"]) == (9 - 1) / 2
    assert rows[0]["tokens_sha256"] == "ab" * 32


def test_the_record_says_what_was_asked_what_answered_and_where(cell):
    cell.engine("answer()")
    cell.run()
    record = cell.record()
    assert record["outcome"] == "ok"
    assert record["request"] == cell.request()
    assert record["engine"]["versions"] == {"made-up": "1"}
    assert (record["memory"]["peak_active_mib"], record["memory"]["peak_pool_mib"]) == (7.0, 8.0)
    assert record["memory"]["loaded_mib"] == 5.0
    assert record["machine"]["before"]["memory_mib"] > 0
    assert record["harness"]["version"] == "0.1.0"
    phases = [phase["phase"] for phase in record["phases"] if phase["phase"] != "idle"]
    assert phases == [
        "start",
        "load",
        "prefill-0",
        "decode-0",
        "prefill-1",
        "decode-1",
        "prefill-2",
        "decode-2",
        "exit",
    ]
    assert (cell.folder / record["log"] / "events.jsonl").read_text().count("\n") == 12


def test_the_engine_gets_the_variables_of_its_variant(cell):
    cell.engine("""
load()
say("outcome", outcome="unsupported", detail=os.environ["MADE_UP"])
""")
    cell.run(env={"MADE_UP": "as asked"})
    assert cell.record()["detail"] == "as asked"
    assert cell.record()["request"]["env"] == {"MADE_UP": "as asked"}


def test_figures_that_the_engine_does_not_know_are_empty(cell):
    cell.engine("""
load()
begin(0)
say("prefilled", run=0)
say("run", run=0, warmup=True, prompt_tokens=64, generated_tokens=1,
    prefill_s=None, ttft_s=None, decode_s=None, tokens_sha256=None,
    peak_active_mib=None, peak_pool_mib=None)
say("outcome", outcome="unsupported", detail="enough")
""")
    cell.run()
    row = cell.rows()[0]
    for key in ("temperature_c", "thermal_pressure"):
        assert row.pop(key) == str(cell.record()["machine"]["before"].get(key) or "")
    assert {key for key, value in row.items() if not value} == {
        "prefill_s",
        "prefill_tok_s",
        "prefill_j",
        "ttft_ms",
        "decode_s",
        "decode_tok_s",
        "decode_j",
        "tokens_sha256",
        "peak_active_mib",
        "peak_pool_mib",
    }


def test_the_peak_and_the_timeline_show_memory_that_was_freed_again(cell):
    cell.engine("""
load()
begin(0)
held = bytearray(300 * MIB)
for start in range(0, len(held), 4096):
    held[start] = 1
time.sleep(0.3)  # so that it is sampled
say("prefilled", run=0)
del held
time.sleep(0.3)
say("outcome", outcome="oom", detail="the end")
""")
    cell.run()
    memory, timeline = cell.record()["memory"], cell.rows("memory.csv")
    assert 300 <= memory["peak_footprint_mib"] < 360
    largest = {
        phase: max(float(row["footprint_mib"]) for row in timeline if row["phase"] == phase)
        for phase in ("prefill-0", "decode-0")
    }
    assert largest["prefill-0"] > 250
    assert min(float(row["footprint_mib"]) for row in timeline if row["phase"] == "decode-0") < 100


def test_progress_is_a_line_a_phase_with_the_figures_so_far(cell):
    cell.engine("answer()")
    lines = cell.run().stderr.splitlines()
    assert lines[0] == f"cell 3 of 24: {CELL}"
    assert any("decode-2" in line and "prefill 128.0, decode 4.0 tok/s" in line for line in lines)
    assert lines[-1].startswith("cell 3 of 24  ok  ")
    assert (cell.attempts()[0] / "runner.log").read_text().splitlines() == lines


WHERE = {
    "load": ("say('started', versions={}, device={}, cap_bytes=None); CRASH", "load"),
    "warm-up": ("load(); begin(0); CRASH", "prefill-0"),
    "a recorded run": ("load(); begin(0); finish(0); begin(1); CRASH", "prefill-1"),
    "after the last event": ("answer(); CRASH", "exit"),
}


@pytest.mark.fault(
    "engine killed: SIGKILL, SIGSEGV, SIGABRT; loading, warm-up, recorded run, after its last event"
)
@pytest.mark.parametrize("name", ["SIGKILL", "SIGSEGV", "SIGABRT"])
@pytest.mark.parametrize("where", WHERE)
def test_a_killed_engine_fails_its_job_and_leaves_the_old_results(cell, where, name):
    old = cell.old_results()
    body, phase = WHERE[where]
    cell.engine(body.replace("CRASH", f"os.kill(os.getpid(), signal.{name})"))
    line = failure(cell.run())
    assert f"engine crashed in phase {phase}: killed by {name}" in line
    assert f"log: {cell.attempts()[0].relative_to(cell.folder)}" in line
    assert cell.results() == old


METAL = (
    "libc++abi: terminating due to uncaught exception of type std::runtime_error: [METAL] Command "
    "buffer execution failed: Insufficient Memory "
    "(00000008:kIOGPUCommandBufferCallbackErrorOutOfMemory)."  # pragma: allowlist secret
)


@pytest.mark.parametrize("last", ["", "Abort trap: 6\\n"])
def test_metals_abort_for_want_of_memory_is_an_outcome(cell, last):
    body = f"load(); begin(0); print({METAL!r}, file=sys.stderr); sys.stderr.write('{last}')"
    cell.engine(f"{body}; sys.stderr.flush(); os.kill(os.getpid(), signal.SIGABRT)")
    assert cell.run().returncode == 0
    record = cell.record()
    assert record["outcome"] == "oom"
    assert record["detail"].startswith("in phase prefill-0: libc++abi: terminating")
    assert "kIOGPUCommandBufferCallbackErrorOutOfMemory" in record["detail"]


def test_an_engine_that_fails_gives_its_last_words(cell):
    cell.engine("load(); raise ValueError('no such thing')")
    line = failure(cell.run())
    assert "engine crashed in phase idle: exit code 1: ValueError: no such thing" in line
    assert cell.results() == {}
    assert "Traceback" in (cell.attempts()[0] / "stderr.txt").read_text()


ANSWERS = {
    "nothing": ("", "exited without done or outcome"),
    "too little": ("load(); begin(0); finish(0)", "exited without done or outcome"),
    "not JSON": ("print('Segmentation fault')", "not a JSON event: Segmentation fault"),
    "a list": ("print('[1, 2]')", "not an event of the protocol: [1, 2]"),
    "an unknown event": ("say('finished')", "not an event of the protocol"),
    "a truncated line": (
        'load(); sys.stdout.write(\'{"event": "run_st\')',
        "its last line is truncated",
    ),
    "not UTF-8": ("os.write(1, b'\\xff\\xfe{}\\n')", "not a JSON event"),
    "NaN": (
        "say('started', versions={}, device={}, cap_bytes=None);"
        "say('loaded', load_s=float('nan'), loaded_mib=1, weights_mapped=False, dtype='x')",
        "not a JSON event",
    ),
    "a negative figure": (
        "say('started', versions={}, device={}, cap_bytes=-1)",
        "cap_bytes is -1; expected a whole number from 0 or null",
    ),
    "a missing figure": (
        "say('started', versions={}, device={})",
        "event started without cap_bytes",
    ),
    "a run before loading": (
        "say('started', versions={}, device={}, cap_bytes=None); begin(0)",
        "event run_started where loaded was expected",
    ),
    "the wrong run": ("load(); begin(1)", "event run_started of run 1 where run 0 was expected"),
    "done too early": (
        "load(); begin(0); finish(0); done()",
        "event done where run_started was expected",
    ),
    "more after done": ("answer(); done()", "event done where nothing was expected"),
}


@pytest.mark.fault(
    "engine's answer: nothing, garbage, truncated, NaN, negative, missing, out of order"
)
@pytest.mark.parametrize("case", ANSWERS)
def test_a_garbled_answer_fails_the_job_and_says_what_is_wrong(cell, case):
    body, expected = ANSWERS[case]
    cell.engine(body)
    assert expected in failure(cell.run())
    assert cell.results() == {}


@pytest.mark.fault("engine fails after its answer")
def test_a_failure_after_done_is_a_failure(cell):
    cell.engine("answer(); sys.exit(3)")
    assert "engine crashed in phase exit: exit code 3" in failure(cell.run())


@pytest.mark.fault("engine writes 100 MB")
def test_endless_output_without_a_newline_is_cut_off_in_bounded_memory(cell):
    cell.engine("for _ in range(100): os.write(1, b'x' * 1_000_000)")
    runner = cell.start()
    if hasattr(
        resource, "prlimit"
    ):  # Linux; a limit on all that it may allocate, below the output's size
        resource.prlimit(runner.pid, resource.RLIMIT_DATA, (60 << 20, 60 << 20))
    shown = runner.stderr.read()
    assert runner.wait() == 1
    runner.stderr.close()
    assert "a line of more than 1048576 bytes" in shown
    assert (cell.attempts()[0] / "events.jsonl").stat().st_size < 4 << 20


def test_messages_are_one_printable_line_whatever_the_engine_says(cell):
    cell.engine("sys.stderr.write('\\x1b[2J\\x07bad\\r\\nworse \\x1b[31m\\n'); sys.exit(1)")
    line = failure(cell.run())
    assert "worse" in line and line.isprintable()


@pytest.mark.parametrize("outcome", ["oom", "unsupported"])
def test_an_outcome_is_a_result_with_the_runs_so_far(cell, outcome):
    cell.engine(
        f"load(); begin(0); finish(0); say('outcome', outcome='{outcome}', detail='no more')"
    )
    assert cell.run().returncode == 0
    record = cell.record()
    assert (record["outcome"], record["detail"]) == (outcome, "no more")
    assert len(cell.rows()) == 1
    assert record["memory"]["peak_footprint_mib"] > 0


@pytest.mark.fault("engine hangs and ignores SIGTERM")
def test_an_engine_that_hangs_and_ignores_term_is_killed_at_the_timeout(cell):
    cell.engine("signal.signal(signal.SIGTERM, signal.SIG_IGN); load(); begin(0); time.sleep(1000)")
    assert cell.run(limits={"timeout_s": 0.5, "grace_s": 0.1}).returncode == 0
    record = cell.record()
    assert (record["outcome"], record["detail"]) == (
        "timeout",
        "in phase prefill-0: not finished after 0.5 s",
    )
    assert cell.rows() == []


@pytest.mark.fault("engine takes too much memory: the guard")
def test_the_guard_stops_an_engine_that_takes_too_much(cell):
    from kvpeak.system.machine import available_mib

    cell.engine("""
load()
begin(0)
held = []
while True:
    held.append(os.urandom(4 * MIB))
""")
    assert cell.run(limits={"guard_fraction": 400 / available_mib()}).returncode == 0
    record = cell.record()
    assert record["outcome"] == "guard"
    assert "the guard allows" in record["detail"]
    assert record["memory"]["peak_footprint_mib"] > 300


def test_what_the_engine_leaves_running_ends_with_it(cell):
    cell.engine("""
answer()
left = subprocess.Popen(["sleep", "1000"])  # holds the engine's standard output
print(left.pid, file=sys.stderr)
""")
    assert cell.run().returncode == 0
    assert not alive(int((cell.attempts()[0] / "stderr.txt").read_text()))


def hanging(cell: Cell) -> tuple[subprocess.Popen, int]:
    """A runner whose engine hangs, and the engine's process id."""
    cell.engine(
        "print(os.getpid(), file=sys.stderr, flush=True); load(); begin(0); time.sleep(1000)"
    )
    runner = cell.start()
    while "prefill-0" not in runner.stderr.readline():
        assert runner.poll() is None
    return runner, int((cell.attempts()[0] / "stderr.txt").read_text())


def wait_for_lock(cell: Cell) -> None:
    """Wait until nobody holds the machine: neither a runner nor what watches over its engine."""
    with (cell.folder / f"kvpeak-{os.getuid()}/machine.lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)


@pytest.mark.fault("runner stopped: SIGTERM, SIGINT, SIGHUP")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_stopped_runner_stops_its_engine_and_keeps_the_log(cell, number):
    runner, engine = hanging(cell)
    runner.send_signal(number)
    _, shown = runner.communicate()
    assert runner.returncode == 1
    assert f"{CELL}: stopped by {number.name}; log: results/logs/" in shown.splitlines()[-1]
    assert not alive(engine)
    assert (cell.attempts()[0] / "events.jsonl").read_text().count("\n") == 3


@pytest.mark.fault("runner killed")
def test_a_killed_runner_takes_its_engine_with_it(cell):
    runner, engine = hanging(cell)
    runner.kill()
    runner.communicate()
    wait_for_lock(cell)
    assert not alive(engine)
    assert cell.results() == {}


@pytest.mark.fault("two runners at once")
def test_a_second_runner_waits_and_says_for_whom(cell):
    gate = cell.folder / "gate"
    os.mkfifo(gate)
    cell.engine(
        f"load(); begin(0); open({str(gate)!r}).read(); finish(0); begin(1); finish(1); begin(2); "
        "finish(2); done()"
    )
    first = cell.start()
    while "prefill-0" not in first.stderr.readline():
        assert first.poll() is None
    cell.engine("answer()")
    second = cell.start()
    waiting = second.stderr.readline()
    assert f"waiting for process {first.pid}, cell {CELL}" in waiting
    gate.write_text("go")
    first.communicate()
    second.communicate()
    assert (first.returncode, second.returncode) == (0, 0)
    assert len(cell.attempts()) == 2


def test_a_waiting_runner_can_be_stopped(cell):
    running, engine = hanging(cell)
    waiting = cell.start()
    assert "waiting for" in waiting.stderr.readline()
    waiting.terminate()
    _, shown = waiting.communicate()
    assert waiting.returncode == 1
    assert f"{CELL}: stopped by SIGTERM" in shown
    assert alive(engine)
    running.terminate()
    running.communicate()


def test_new_results_replace_old_ones_and_no_log(cell):
    cell.engine("answer()")
    cell.old_results()
    cell.run()
    cell.run()
    assert sorted(cell.results()) == ["cell.json", "memory.csv", "runs.csv"]
    assert "old" not in cell.results().values()
    assert [len(list(attempt.iterdir())) for attempt in cell.attempts()] == [7, 7]


def test_a_result_that_was_deleted_is_kept_with_its_log_and_named_when_the_next_start_fails(cell):
    cell.engine("answer()")
    cell.run()
    measured = cell.results()
    for file in cell.out.iterdir():  # as Snakemake does before it runs a cell again
        file.unlink()
    cell.engine("sys.exit(3)")
    line = failure(cell.run())
    first, second = cell.attempts()
    assert line.endswith(f"its last result is kept in {first.relative_to(cell.folder)}")
    assert {name: (first / name).read_text() for name in measured} == measured
    assert "exit code 3" in (second / "failure.txt").read_text()


def test_a_read_only_results_folder_is_one_line(cell):
    (cell.folder / "results").write_text("not a folder")
    cell.engine("answer()")
    assert "Not a directory" in failure(cell.run())


@pytest.mark.fault("engine not there")
def test_an_engine_that_is_not_there_is_one_line(cell):
    assert "engine: No such file or directory" in failure(cell.run())


@pytest.mark.fault("out of memory: control group")
@pytest.mark.skipif(
    os.getuid() != 0 or not os.access("/sys/fs/cgroup/memory", os.W_OK),
    reason="needs root and version 1 memory control groups",
)
def test_an_engine_that_the_kernel_kills_for_memory_is_oom(cell):
    group = Path(f"/sys/fs/cgroup/memory/kvpeak-test-{os.getpid()}")
    group.mkdir()
    try:
        (group / "memory.limit_in_bytes").write_text("200M")
        cell.engine("load(); begin(0); held = os.urandom(400 * MIB)")
        limited = ["sh", "-c", f'echo $$ > {group}/cgroup.procs; exec "$@"', "sh"]
        command = [*limited, *cell.command(limits={"guard_fraction": 1000})]
        subprocess.run(command, cwd=cell.folder, env=cell.environment, check=True)
    finally:
        group.rmdir()
    record = cell.record()
    assert record["outcome"] == "oom"
    assert "killed by the kernel" in record["detail"]
    assert record["machine"]["before"]["available_mib"] < 200


class BusyNvml(Nvml):
    """A card on which every child that this process starts from now on takes 250 MiB, and a
    stranger 7. Makes the file `sampled` when it was looked at while the engine ran."""

    def __init__(self):
        super().__init__()
        self.earlier = set(psutil.Process().children())

    def nvmlDeviceGetComputeRunningProcesses(self, handle):
        children = [child for child in psutil.Process().children() if child not in self.earlier]
        if len(children) == 2:  # the engine, and what watches over it
            Path("sampled").touch()
        return [process(child.pid, 250) for child in children] + [process(99, 7)]


def test_a_cell_with_a_gpu_sees_that_one_alone_and_its_memory_is_sampled(cell, monkeypatch):
    opened = []

    def open_gpu(selector):
        opened.append(selector)
        return Gpu(BusyNvml(), "handle")

    cell.engine("""
print(os.environ["CUDA_VISIBLE_DEVICES"], file=sys.stderr)
while not os.path.exists("sampled"):
    time.sleep(0.01)
answer()
""")
    monkeypatch.chdir(cell.folder)
    monkeypatch.setattr(attempt, "open_gpu", open_gpu)
    assert run_cell(cell.request(gpu=1), cell.out.relative_to(cell.folder)) == "ok"
    assert opened == ["1"]
    assert (cell.attempts()[0] / "stderr.txt").read_text() == f"{UUID}\n"
    record = cell.record()
    assert record["memory"]["peak_device_mib"] == 250
    assert record["memory"]["peak_device_source"].endswith("(a lower bound)")
    assert record["machine"]["after"]["gpu"]["name"] == "NVIDIA H200"
    assert "gpu: other processes were on the GPU: process 99" in record["flags"]
    assert {row["device_mib"] for row in cell.rows("memory.csv")} == {"250.00"}


BURN = """
import subprocess, sys
subprocess.run([sys.executable, "-c", "import time\\nwhile time.process_time() < 0.6: pass"])
print("burnt", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def burner(tmp_path):
    """A process, still there, whose child has taken 0.6 processor seconds and ended."""
    (tmp_path / "burn.py").write_text(BURN)
    command = [sys.executable, tmp_path / "burn.py"]

    def start() -> subprocess.Popen:
        child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        started.append(child)
        return child

    started = []
    yield start
    for child in started:
        child.communicate()


def test_a_cell_beside_others_does_not_take_them_for_strangers(burner, monkeypatch):
    monkeypatch.setenv("KVPEAK_RUN", str(os.getpid()))
    beside, alone = count_cpu_s({"gpu": 0}), count_cpu_s({})
    burner().stdout.readline()
    assert alone() < 0.5 < beside()


def test_a_cell_whose_snakemake_has_ended_counts_its_own_time(burner, monkeypatch):
    run = burner()
    run.stdout.readline()
    monkeypatch.setenv("KVPEAK_RUN", str(run.pid))
    counted = count_cpu_s({"gpu": 0})
    run.communicate()
    assert 0 <= counted() < 5


def test_a_gpu_that_is_asked_for_and_not_there_is_one_line(cell, monkeypatch):
    monkeypatch.chdir(cell.folder)
    monkeypatch.setattr(attempt, "open_gpu", lambda selector: None)
    with pytest.raises(UserError, match=f"{CELL}: request: gpu: 1; expected none"):
        run_cell(cell.request(gpu=1), cell.out.relative_to(cell.folder))


BAD_REQUESTS = {
    "engine": ({"engine": "magic"}, 'engine: "magic"; expected one of mlx, '),
    "cell": ({"cell": {"commit": "../../etc"}}, 'cell.commit: "../../etc"; expected a name'),
    "runs": (
        {"protocol": {"warmup": 1, "recorded": 0}},
        "protocol.recorded: 0; expected a whole number from 1",
    ),
    "limits": ({"limits": {"timeout": 3}}, "limits.timeout: 3; expected one of timeout_s"),
    "gpu": ({"gpu": "all"}, 'gpu: "all"; expected a GPU\'s number, from 0'),
}


@pytest.mark.parametrize("key", BAD_REQUESTS)
def test_a_wrong_request_is_one_line_that_names_the_key(cell, key):
    changes, expected = BAD_REQUESTS[key]
    done = cell.run(**changes)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert expected in done.stderr


def test_results_go_nowhere_but_to_the_folder_of_their_cell(cell):
    cell.engine("answer()")
    cell.out = cell.folder / "results/cells/made-up/m/p/cat/4x/default/r1"
    done = cell.run()
    assert done.returncode == 1
    assert f"expected a path that ends with cells/{CELL}" in done.stderr


def test_the_runner_imports_nothing_heavy():
    heavy = {"mlx", "numpy", "pandas", "yaml", "jsonschema", "snakemake", "jinja2", "pynvml"}
    code = f"import sys, kvpeak.commands.run_cell; print(*sorted({heavy} & set(sys.modules)))"
    shown = subprocess.run(
        [sys.executable, "-c", code],
        cwd=RUN_CELL.parent,
        capture_output=True,
        text=True,
        check=True,
    )
    assert shown.stdout.strip() == ""
