"""What cannot be had is a result: its cells say why, everything else is measured, and the next run
tries again.
"""

import copy
import csv
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import TINY_MATRIX, Project

SCRIPTS = Path(__file__).parents[1] / "workflow/scripts"

NO_HUB = {"kind": "hub", "repository": "no/such", "revision": "0" * 40, "dtype": "float32"}
NO_REPOSITORY = {
    "engine": "command",
    "repository": "no/such/repository",
    "revision": "0" * 40,
    "run": ["bin/x", "{kv_cache}", "{out}/t.csv"],
    "output": {"file": "{out}/t.csv", "columns": {"prompt_tokens": "p", "generated_tokens": "g"}},
}
MLX, TINY = "mlx-0.32.4", "tiny"


@pytest.fixture
def unreachable(monkeypatch) -> None:
    """No hub and no index answers."""
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("UV_DEFAULT_INDEX", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("UV_HTTP_RETRIES", "0")


def rows(project: Project, name: str) -> dict[tuple, dict]:
    """The rows of a table by commit, model, prompt and cap."""
    table = csv.DictReader(project.read(f"results/{name}.csv").splitlines())
    return {(row["commit"], row["model"], row["prompt"], row["cap"]): row for row in table}


def matrix() -> dict:
    """One model, one prompt, one engine and one package cannot be had; the rest is one good cell
    and one that crashes.
    """
    found = copy.deepcopy(TINY_MATRIX)
    found["commits"] |= {
        "no-package": {"engine": "mlx", "packages": {"mlx": "0.0.999"}},
        "no-repository": NO_REPOSITORY,
    }
    found["models"]["no-model"] = NO_HUB
    found["prompts"]["too-long"] = {"tokens": 200, "corpus": "prompts/short.txt"}
    found["kv_caches"] = ["cat"]
    return found


@pytest.mark.slow
@pytest.mark.fault("a model, a prompt, an engine and a package cannot be had, and a cell crashes")
def test_each_thing_that_cannot_be_had_is_named_and_everything_else_is_measured(
    project, unreachable
):
    (project.folder / "prompts/short.txt").write_text("é" * 100)  # 200 bytes, but 100 characters
    words = (
        '{"version": "1.0", "model": '
        '{"type": "WordLevel", "vocab": {"[UNK]": 0}, "unk_token": "[UNK]"}}'
    )
    (project.folder / "models/tiny").mkdir(parents=True)
    project.write("models/tiny/tokenizer.json", words)
    data = matrix()
    data["prompts"]["alice-16"]["tokens"] = 1
    project.set_matrix(data)
    crash(project)

    done = project.snakemake()

    assert done.returncode == 1, done.stdout
    assert "Traceback" not in done.stdout
    summary, plan = rows(project, "summary"), rows(project, "plan")
    assert summary[MLX, TINY, "alice-16", "none"]["outcome"] == "ok"
    causes = {
        (MLX, "no-model", "alice-16", "none"): "model no-model: no/such@",
        (MLX, TINY, "too-long", "none"): "200 tokens asked for, but it has",
        ("no-repository", TINY, "alice-16", "none"): "no-repository: repository no/such/repository",
        ("no-package", TINY, "alice-16", "none"): "no-package: ",
    }
    finding = project.read("report/finding.md").replace("\\", "")
    for cell, cause in causes.items():
        assert summary[cell]["outcome"] == "unavailable", cell
        assert cause in summary[cell]["detail"]
        assert plan[cell]["runs_here"] == "no"
        assert plan[cell]["reason"].startswith("unavailable: ")
        assert cause in plan[cell]["reason"]
        assert cause in finding
    assert (MLX, TINY, "alice-16", "1MiB") not in summary  # the cell that crashed
    assert f"{MLX}/{TINY}/alice-16/cat/1MiB/default/r1" in finding
    assert "engine crashed" in finding

    jobs = project.planned()
    assert jobs["model"] == 1 and jobs["prompt"] >= 1 and jobs["engine"] == 1
    assert jobs["cell"] == 15  # all but the good one


def crash(project: Project) -> None:
    """Let the engine crash in cells with a cap of 1MiB."""
    file = "workflow/scripts/mlx_engine.py"
    text = project.read(file)
    line = 'import os, sys\nif \'"cap": "1MiB"\' in open(sys.argv[-1]).read(): os._exit(3)\n'
    project.write(file, line + text)


@pytest.mark.slow
def test_what_can_be_had_again_is_made_by_the_next_run_and_nothing_is_left_to_do(
    project, unreachable
):
    data = copy.deepcopy(TINY_MATRIX) | {"kv_caches": ["cat"], "caps": ["none"], "compare": []}
    data["models"]["late"] = NO_HUB
    project.set_matrix(data)
    done = project.snakemake()
    assert done.returncode == 0, done.stdout
    assert rows(project, "summary")[MLX, "late", "alice-16", "none"]["outcome"] == "unavailable"
    folder = project.folder / "models/late"
    folder.mkdir(parents=True, exist_ok=True)
    project.set_matrix(data | {"models": data["models"] | {"late": data["models"]["tiny"]}})
    assert project.snakemake().returncode == 0
    assert rows(project, "summary")[MLX, "late", "alice-16", "none"]["outcome"] == "ok"
    assert project.planned() == {}


def try_step(folder: Path, limit: str, *step: str) -> subprocess.CompletedProcess:
    program = Path(__file__).parents[1] / "workflow/scripts/try_step.py"
    command = [sys.executable, program, "--out", "made.json", "--limit", limit, "--", *step]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


STEPS = {
    "asks on the terminal": (
        "60",
        "exec 3<>/dev/tty || exit 1; read answer <&3",
        ("failed", "No such device or address"),
    ),
    "asks on standard input": (
        "60",
        "read answer || { echo nobody >&2; exit 1; }",
        ("failed", "nobody"),
    ),
    "never ends": ("0.5", "sleep 1000 & sleep 1000", ("unavailable", "not finished after 0.5 s")),
    "is killed": ("60", "kill -9 $$", ("failed", "killed by SIGKILL")),
    "says nothing": ("60", "exit 3", ("failed", "ended with exit code 3")),
    "makes nothing": ("60", "true", ("failed", "ended with exit code 0")),
    "cannot have something": (
        "60",
        "echo no such thing >&2; exit 69",
        ("unavailable", "no such thing"),
    ),
}


@pytest.mark.parametrize("case", STEPS)
def test_a_step_that_makes_nothing_leaves_the_reason(tmp_path, case):
    limit, script, (outcome, reason) = STEPS[case]
    done = try_step(tmp_path, limit, "bash", "-c", script)
    assert done.returncode == 0, done.stderr
    said = json.loads((tmp_path / "made.json").read_text())["not_made"]
    assert said["outcome"] == outcome
    assert reason in said["reason"]


@pytest.fixture
def asking(tmp_path, monkeypatch) -> Path:
    """A git and a cargo that ask questions, first on the PATH; returns where they write that they
    were answered.
    """
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("git", "cargo"):
        program = folder / name
        program.write_text(
            "#!/bin/sh\n"
            f"( read answer < /dev/tty && echo $answer > {tmp_path}/answered ) 2>/dev/null\n"
            f"read answer && echo $answer > {tmp_path}/answered\n"
            "echo 'no answer' >&2\nexit 1\n"
        )
        program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return tmp_path / "answered"


@pytest.mark.fault("git and cargo ask questions")
def test_programs_that_ask_get_no_answer_and_nothing_waits(project, asking):
    engine = NO_REPOSITORY | {"build": ["cargo", "build"], "needs": {"programs": ["cargo"]}}
    project.set_matrix(copy.deepcopy(TINY_MATRIX) | {"commits": {"x": engine}, "compare": []})
    done = project.snakemake("results/engines/x/engine.json")
    assert done.returncode == 0, done.stdout
    said = json.loads(project.read("results/engines/x/engine.json"))["not_made"]
    assert said["outcome"] == "unavailable" and "no answer" in said["reason"]
    assert not asking.exists()


@pytest.fixture
def silent():
    """The address of a server that takes every connection and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


def test_a_hub_that_never_answers_is_given_up(silent, tmp_path):
    code = """
import sys
from pathlib import Path
from kvpeak.inputs import hub
hub.TIMEOUT_S = 0.5
hub.download("some/model", "main", ["*"], {}, Path(sys.argv[1]))
"""
    done = run_python(code, tmp_path, {"HF_ENDPOINT": silent})
    assert "Unavailable: cannot be downloaded from the hub (timed out)" in done.stderr


def test_an_index_that_never_answers_is_given_up(silent, tmp_path):
    code = """
import sys
from pathlib import Path
from kvpeak.inputs import wheel
wheel.PATIENCE = ["--timeout", "1", "--retries", "1"]
wheel.fetch("some-package==1", Path(sys.argv[1]), None)
"""
    variables = {"PIP_INDEX_URL": f"{silent}/simple", "PIP_CONFIG_FILE": os.devnull}
    done = run_python(code, tmp_path, variables)
    expected = "some-package==1 cannot be downloaded (the package index cannot be reached)"
    assert expected in done.stderr


def run_python(code: str, folder: Path, variables: dict) -> subprocess.CompletedProcess:
    """Run it with kvpeak's packages; the test fails if it takes a minute."""
    return subprocess.run(
        [sys.executable, "-c", code, str(folder)],
        env=os.environ | {"PYTHONPATH": str(SCRIPTS), "PIP_NO_INDEX": "0"} | variables,
        capture_output=True,
        text=True,
        timeout=60,
    )
