"""The instruments are held against processes whose memory is known, right ones and broken ones."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from fake_nvml import Nvml, process

from kvpeak.runner.instruments import fallen, read
from kvpeak.runner.timeline import Timeline
from kvpeak.system.instruments import COUNTERS, Fall, Reading, advice, table, wrong
from kvpeak.system.nvml import Gpu
from kvpeak.system.process_memory import Peaks

SCRIPTS = Path(__file__).parents[1] / "workflow/scripts"
KVPEAK = Path(sys.executable).with_name("kvpeak")


def run(command: list, folder: Path) -> subprocess.CompletedProcess:
    """Run it with a lock of the machine of its own.

    A shell is between: a process's ru_maxrss begins with the memory of who started it, and what has
    run many tests is larger than the probes.
    """
    environment = os.environ | {"TMPDIR": str(folder)}
    between = ["sh", "-c", '"$@"; exit $?', "sh", *map(str, command)]
    return subprocess.run(between, env=environment, capture_output=True, text=True, check=False)


def doctor(tmp_path, broken: str = "", python: str = sys.executable) -> dict:
    """The record of a check, by a runner in which `broken` was executed before."""
    out = tmp_path / "instruments.json"
    code = f"""
import sys
sys.path.insert(0, {str(SCRIPTS)!r})
from kvpeak.base.program import main
from kvpeak.commands import doctor
{broken}
sys.exit(main(doctor, ["--out", {str(out)!r}, "--python", {python!r}]))
"""
    done = run([sys.executable, "-c", code], tmp_path)
    assert done.returncode == 0, done.stderr
    return json.loads(out.read_text())


def test_every_counter_of_this_machine_is_right(tmp_path):
    done = run([KVPEAK, "doctor"], tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Every counter is within 2 % or 4 MiB of what is known." in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80


# What is broken in the runner → the counters whose numbers are wrong then, and no others.
RUNNER = "import kvpeak.system.process_memory as memory\n"
STATUS = """
was = memory.parse_status
memory.parse_status = lambda text: {name: size * %s for name, size in was(text).items()}
"""
USAGE = """
from types import SimpleNamespace
was = memory.LinuxMemory.exited
def exited(self, usage, own=None):
    return was(self, SimpleNamespace(ru_maxrss=int(usage.ru_maxrss * %s)), own)
memory.LinuxMemory.exited = exited
"""
BROKEN = {
    # the sample's VmHWM is too large as well, and the largest of what was read is the peak
    "samples, too large": (
        STATUS % 1.1,
        {"footprint_mib", "rss_mib", "peak_tree_mib", "peak_footprint_mib", "peak_rss_mib"},
    ),
    # the peak comes from wait4 then
    "samples, too small": (STATUS % 0.9, {"footprint_mib", "rss_mib", "peak_tree_mib"}),
    "wait4, too large": (USAGE % 1.1, {"peak_footprint_mib", "peak_rss_mib"}),
}


@pytest.mark.skipif(sys.platform != "linux", reason="breaks Linux's readers")
@pytest.mark.parametrize("what", BROKEN)
def test_a_broken_reader_of_the_runner_is_found_with_exactly_its_numbers(tmp_path, what):
    broken, counters = BROKEN[what]
    record = doctor(tmp_path, RUNNER + broken)
    assert set(wrong(record)) == counters
    assert record["problems"] == []


# The same in the engine's process: MLX says something else.
MLX = {
    "the pool is not seen": ("mx.get_cache_memory = lambda: 0", {"peak_pool_mib"}),
    "live bytes, halved": (
        "was = mx.get_peak_memory\nmx.get_peak_memory = lambda: was() // 2",
        {"peak_active_mib"},
    ),
}


@pytest.mark.parametrize("what", MLX)
def test_a_broken_reader_of_the_engine_is_found_with_exactly_its_numbers(tmp_path, what):
    broken, counters = MLX[what]
    python = tmp_path / "python"
    python.write_text(
        f"#!{sys.executable}\nimport runpy, sys\nsys.argv.pop(0)\nsys.path.insert(0, "
        f"{str(SCRIPTS)!r})\n"
        f"import mlx.core as mx\n{broken}\nrunpy.run_path(sys.argv[0], run_name='__main__')\n"
    )
    python.chmod(0o755)
    record = doctor(tmp_path, python=str(python))
    assert set(wrong(record)) == counters


def test_an_engine_that_cannot_start_is_a_problem_and_no_reading(tmp_path):
    record = doctor(tmp_path, python="/bin/false")
    assert record["readings"] == []
    assert len(record["problems"]) == 5
    assert all("exit code 1" in problem for problem in record["problems"])
    assert advice(record)[0].startswith("Not measured: touch: engine crashed")


@pytest.mark.parametrize(
    ("known", "read_mib", "right"),
    [
        (1000, 1020, True),
        (1000, 1020.1, False),
        (1000, 980, True),
        (1000, 979.9, False),
        (10, 14, True),
        (10, 14.1, False),
        (10, 5.9, False),
        (10, None, False),
    ],
)
def test_right_is_within_two_percent_or_four_mib_in_both_directions(known, read_mib, right):
    assert Reading("touch", "peak_rss_mib", known, read_mib).right is right


def timeline(*rows: tuple[float, str, float, float | None]) -> Timeline:
    made = Timeline()
    for t_s, phase, footprint, device in rows:
        made.add(t_s, phase, footprint, footprint, device)
    return made


def ended(known: dict, rows: Timeline, counted: dict | None = None) -> SimpleNamespace:
    """A probe that has ended."""
    run = {"known": known} | (counted or {})
    conversation = SimpleNamespace(runs=[run], first=lambda name: {})
    phases = [{"phase": "decode-0", "start_s": 1.0}]
    watched = SimpleNamespace(
        conversation=conversation, timeline=rows, phases=phases, peak_tree_mib=None
    )
    return SimpleNamespace(watched=watched, peaks=Peaks(300.0, "test", 300.0))


@pytest.fixture
def gpu() -> Gpu:
    nvml = Nvml()
    card = Gpu(nvml, nvml.nvmlDeviceGetHandleByIndex(0))
    for mib in (500, 756):
        nvml.processes = [process(7, mib)]
        card.sample(7)
    return card


@pytest.mark.parametrize(("largest", "off"), [(756.0, 0.0), (700.0, -56.0), (None, None)])
def test_the_device_is_known_by_what_it_was_before_and_the_buffer(gpu, largest, off):
    rows = timeline(
        (0.1, "idle", 50, 490.0), (0.2, "idle", 50, 500.0), (0.3, "prefill-0", 50, largest)
    )
    attempt = SimpleNamespace(gpu=gpu)
    counted = {"peak_active_mib": 256.0, "peak_pool_mib": 256.0}
    known = {"active_mib": 256, "pool_mib": 256, "device_growth_mib": 256}
    found = {each.counter: each for each in read("hold", attempt, ended(known, rows, counted))}
    assert set(found) == {"peak_device_mib", "device_mib", "peak_active_mib", "peak_pool_mib"}
    assert (found["peak_device_mib"].known_mib, found["peak_device_mib"].read_mib) == (756, 756)
    sampled = found["device_mib"]
    assert sampled.off_mib == (off if largest else -256.0)
    assert sampled.right is (largest == 756.0)


LAG = [(1.0 + 0.5 * step, "decode-0", 15_400 if step < 8 else 107, None) for step in range(10)]
AT_ONCE = [(1.0, "decode-0", 15_400, None), (1.02, "decode-0", 101, None)]
NEVER = [(1.0, "decode-0", 15_400, None), (7.0, "decode-0", 15_400, None)]


@pytest.mark.parametrize(
    ("rows", "after_s", "left"), [(LAG, 4.0, 7), (AT_ONCE, 0.02, 1), (NEVER, None, 15_300)]
)
def test_the_fall_of_the_footprint_is_timed(rows, after_s, left):
    """In MLX's issue 3896 it stood at 15 GB for four seconds after the pool was empty."""
    before = [(0.1, "idle", 100, None), (0.5, "prefill-0", 15_400, None)]
    [fall] = fallen(ended({"footprint_mib": 15_400}, timeline(*before, *rows)))
    assert fall.counter == "footprint_mib"
    assert fall.left_mib == pytest.approx(left)
    assert fall.after_s == (None if after_s is None else pytest.approx(after_s))


def record_with(*readings: Reading, falls: tuple[Fall, ...] = ()) -> dict:
    return {
        "machine": "Test CPU, 2 CPUs, 8 GiB",
        "environment": "mlx",
        "readings": [reading.record() for reading in readings],
        "falls": [fall.record() for fall in falls],
        "problems": [],
    }


def test_the_table_says_what_is_wrong_and_what_to_do():
    shown = table(
        record_with(
            Reading("hold", "peak_device_mib", 756, None),
            Reading("hold", "peak_active_mib", 256, 256),
            Reading("pool", "peak_pool_mib", 98765.4, 1),
            falls=(
                Fall("footprint_mib", 100, 500, 4.0, 0),
                Fall("device_mib", 100, 500, None, 384),
            ),
        )
    )
    assert max(map(len, shown.splitlines())) <= 80
    words = " ".join(shown.split())
    assert "MLX's live and kept bytes 98765.4 1.0 -98764.4 wrong" in words
    assert "After the pool was cleared, the footprint fell within 4.00 s." in shown
    assert "After the pool was cleared, 384 MiB of the device's memory stayed." in shown
    assert "MLX's live and kept bytes: reads 98764.4 MiB too little." in shown
    assert "The finding marks the numbers of these counters." in shown
    assert "A counter without a reading" in shown


def test_every_counter_has_words_that_fit():
    assert all(len(words) <= 32 for words in COUNTERS.values())
