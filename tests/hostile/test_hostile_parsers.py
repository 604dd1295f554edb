"""Files of chance for every reader of other people's files (parsers.py, readers.py): each is read
or refused in one line, with at most 1 GiB, in time, and nothing is written outside or started.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
SCRIPTS = HERE.parents[1] / "workflow/scripts"
PARSERS = (
    *("matrix", "expected", "shapes", "config.json", "model.json", "safetensors", "GGUF"),
    *("tokenizer", "cell.json", "runs.csv", "events", "plan.csv", "summary.csv", "processes.csv"),
    *("checks.csv", "figure list", "a command's CSV", "a command's JSON", "environment.json"),
    *("engine.json", "calibration", "instruments", "a trace as CSV", "a trace", "a snapshot"),
)


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess:
    environment = os.environ | {
        "PYTHONPATH": f"{SCRIPTS}{os.pathsep}{HERE.parent}",
        "HYPOTHESIS_STORAGE_DIRECTORY": str(folder),
        "OPENBLAS_NUM_THREADS": "1",
    }
    command = [sys.executable, HERE / "parsers.py", folder, *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def found(tmp_path_factory) -> dict[str, str | None]:
    """Parser → what went wrong with it."""
    done = run(tmp_path_factory.mktemp("parsers"))
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    return {line["parser"]: line["wrong"] for line in lines} | {"ended": done.stderr[-2000:]}


@pytest.mark.parametrize("name", PARSERS)
def test_any_file_is_read_or_refused_in_one_line(found, name):
    assert name in found, found["ended"]
    assert found[name] is None


def test_every_parser_is_listed_here(found):
    assert {*found} - {"ended"} == {*PARSERS}


FAULTS = {
    "a traceback": ("{}['x']", "KeyError"),
    "a file outside": ("open('../outside', 'w')", "writes ../outside"),
    "a program": ("__import__('os').system('true')", "starts"),
    "a program of its own": ("__import__('subprocess').run(['true'])", "starts"),
    "memory": ("bytearray(3 << 30)", "MemoryError"),
}


@pytest.mark.parametrize("case", FAULTS)
def test_a_reader_that_does_what_none_may_do_is_noticed(tmp_path, case):
    """The test's own test."""
    code, said = FAULTS[case]
    if case == "memory" and sys.platform != "linux":
        pytest.skip("macOS limits no memory")
    done = run(tmp_path, "--fault", code)
    (line,) = done.stdout.splitlines()
    assert said in json.loads(line)["wrong"]
