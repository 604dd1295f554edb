"""The workflow as its users run it: real Snakemake, real engine, a tiny model."""

import contextlib
import copy
import csv
import fcntl
import json
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
import termios
import time
from datetime import datetime

import psutil
import pytest
import warm
import yaml
from conftest import ROOT, TINY_MATRIX

CELL = "results/cells/mlx-0.32.4/tiny/alice-16/{}/{}/default/r1"
ANALYSIS = {"planned", "aggregate", "checks", "fits", "figures", "render", "page", "finding"}


def changed(**sections) -> dict:
    return copy.deepcopy(TINY_MATRIX) | sections


def test_one_command_measures_every_cell_and_renders_the_finding(measured):
    for kv_cache in ("cat", "prealloc"):
        for cap in ("none", "1MiB"):
            for name in ("runs.csv", "cell.json", "memory.csv"):
                assert (measured.folder / CELL.format(kv_cache, cap) / name).stat().st_size > 0
    assert measured.read("results/runs.csv").count("\n") == 1 + 4 * 3
    assert measured.read("results/summary.csv").count("\n") == 1 + 4
    assert measured.read("report/finding.md").startswith("# ")
    assert measured.read("results/fits.csv").count("measured at 1 length; needs 3") == 4
    assert measured.read("report/finding.html").startswith("<!DOCTYPE html>")


def test_after_a_run_there_is_nothing_to_do(measured):
    assert measured.planned() == {}


def test_a_dry_run_shows_the_plan_and_runs_nothing(project):
    shown = project.snakemake("-n").stdout
    assert "config/matrix.yaml: 4 cells, 4 run here" in shown
    assert not (project.folder / "results").exists()
    assert not (project.folder / "models").exists()


def test_the_plan_target_writes_the_plan_and_measures_nothing(project):
    assert project.snakemake("plan").returncode == 0
    assert project.read("results/plan.csv").count("\n") == 5
    assert not (project.folder / "results/cells").exists()


def test_in_a_terminal_no_line_is_wider_than_it(project):
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (24, 80))
    environment = project.environment | {"TERM": "xterm", "COLUMNS": "80"}
    process = warm.start(project.command("plan"), theirs, theirs, project.folder, environment)
    os.close(theirs)
    shown = b""
    with contextlib.suppress(OSError):  # Linux says so that the other end was closed
        while more := os.read(ours, 4096):
            shown += more
    os.close(ours)
    assert process.wait() == 0
    lines = re.split(r"[\r\n]+", re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", shown.decode()))
    assert lines[0].startswith("Using workflow specific profile profiles/default for ")
    assert max(map(len, lines)) <= 80


def test_a_new_prompt_length_plans_exactly_its_cells_and_the_analysis(measured):
    prompts = {"alice-16": {"tokens": 17}, "alice-24": {"tokens": 25}}
    measured.set_matrix(changed(prompts=prompts))
    jobs = measured.planned()
    assert jobs.pop("cell") == 4
    assert jobs.pop("prompt") == 1
    assert set(jobs) <= ANALYSIS and {"planned", "aggregate", "render"} <= set(jobs)


def test_a_changed_protocol_reruns_every_cell(measured):
    measured.set_matrix(changed(protocol=TINY_MATRIX["protocol"] | {"generate": 9}))
    assert measured.planned()["cell"] == 4


def test_a_deleted_result_reruns_exactly_that_cell(measured):
    (measured.folder / CELL.format("cat", "none") / "runs.csv").unlink()
    others = measured.folder / CELL.format("cat", "1MiB") / "runs.csv"
    before = others.stat().st_mtime_ns
    assert measured.planned()["cell"] == 1
    assert measured.snakemake("results/checks.csv").returncode == 0
    assert (measured.folder / CELL.format("cat", "none") / "runs.csv").exists()
    assert others.stat().st_mtime_ns == before
    assert measured.planned("results/checks.csv") == {}
    assert set(measured.planned()) <= ANALYSIS


def test_one_cell_can_be_run_by_its_path(prepared):
    target = CELL.format("prealloc", "none") + "/runs.csv"
    assert prepared.snakemake(target).returncode == 0
    assert len(list(prepared.folder.glob("results/cells/**/runs.csv"))) == 1


@pytest.mark.parametrize("chosen", [None, "1"])
def test_the_engine_computes_with_as_many_threads_as_without_snakemake(
    prepared, monkeypatch, chosen
):
    """Snakemake gives its steps one thread with --cores 1; no measurement may depend on that."""
    if chosen:
        monkeypatch.setenv("OPENBLAS_NUM_THREADS", chosen)
    else:
        for name in ("OPENBLAS_NUM_THREADS", "GOTO_NUM_THREADS", "OMP_NUM_THREADS"):
            monkeypatch.delenv(name, raising=False)
    plain = subprocess.run(
        [sys.executable, "-c", "from kvpeak.live.blas import load_blas; print(load_blas())"],
        cwd=prepared.folder / "workflow/scripts",
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    cell = CELL.format("cat", "none")
    assert prepared.snakemake(f"{cell}/runs.csv").returncode == 0
    said = json.loads(prepared.read(f"{cell}/cell.json"))["engine"]["blas"]
    assert said == plain
    assert f"{chosen or len(os.sched_getaffinity(0))} threads" in said or "OpenBLAS" not in said


def test_braces_in_what_the_user_has_set_are_no_placeholders(project, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "{threads} {0} '$(false)'")
    assert project.snakemake("plan").returncode == 0


def kill_engine_of(cell: str, snakemake: subprocess.Popen) -> None:
    """Wait for the cell's engine to appear among Snakemake's descendants, and kill it."""
    while snakemake.poll() is None:
        for process in psutil.Process(snakemake.pid).children(recursive=True):
            try:
                command = process.cmdline()
            except psutil.Error:
                continue
            if any("mlx_engine.py" in part for part in command[:3]) and cell in command[-1]:
                process.send_signal(signal.SIGKILL)
                return
        time.sleep(0.02)
    raise AssertionError("Snakemake ended before the engine appeared")


@pytest.mark.slow
@pytest.mark.fault("engine killed under Snakemake")
def test_a_killed_engine_fails_its_cell_alone_and_the_next_run_repeats_only_that(prepared):
    killed = "cat/1MiB"
    running = subprocess.Popen(
        prepared.command(),
        cwd=prepared.folder,
        env=prepared.environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    kill_engine_of(killed, running)
    shown, _ = running.communicate()
    assert running.returncode == 1
    line = next(line for line in shown.splitlines() if "SIGKILL" in line)
    assert " ".join(killed.split("/")) in line
    assert "1 failed; kvpeak failed lists every log" in shown
    done = {
        path.parent.parent.parent.parent.name + "/" + path.parent.parent.parent.name
        for path in prepared.folder.glob("results/cells/**/runs.csv")
        if path.read_text().count("\n") > 1
    }
    assert f"failed: mlx-0.32.4/tiny/alice-16/{killed}/default/r1: engine crashed" in shown
    finding = prepared.read("report/finding.md")
    assert finding.index(f"{killed}/default/r1`: engine crashed") < finding.index("\n## ")
    assert done == {"cat/none", "prealloc/none", "prealloc/1MiB"}
    assert prepared.planned()["cell"] == 1
    assert prepared.snakemake().returncode == 0
    assert prepared.planned() == {}


def test_a_cell_that_fails_again_is_tried_again(measured):
    """Snakemake does not repeat a step for a newer input whose content it knows already."""
    record = min(measured.folder.glob("results/cells/**/cell.json"))
    marker = str(record.with_name("runs.csv").relative_to(measured.folder))
    for _ in range(2):
        record.write_text(record.read_text().replace('"outcome": "ok"', '"outcome": "failed"', 1))
        assert measured.planned()["cell"] == 1
        assert measured.snakemake(marker).returncode == 0


@pytest.mark.slow
@pytest.mark.fault("engine killed in turn 17 of 40, under Snakemake")
def test_a_session_killed_in_turn_17_of_40_counts_for_nothing_and_runs_again(prepared):
    prepared.set_matrix(
        changed(
            prompts={"session": {"turns": [{"tokens": 5, "generate": 4, "times": 40}]}},
            kv_caches=["cat"],
            caps=["none"],
            variants={"default": {"repeat_penalty": 1}},
            compare=[],
            protocol={"warmup": 0, "recorded": 1},
        )
    )
    engine = "workflow/scripts/kvpeak/live/running.py"
    begins = "    marks.begun(number)\n"
    dies = "    if number == 17:\n        import os\n\n        os.kill(os.getpid(), 9)\n"
    whole = prepared.read(engine)
    prepared.write(engine, whole.replace(begins, begins + dies))
    done = prepared.snakemake()
    assert done.returncode == 1
    assert "engine crashed in phase prefill-0, turn 17: killed by SIGKILL" in done.stdout
    assert prepared.read("results/turns.csv").count("\n") == 1
    assert prepared.read("results/runs.csv").count("\n") == 1
    assert prepared.planned()["cell"] == 1

    prepared.write(engine, whole)
    assert prepared.snakemake().returncode == 0
    turns = list(csv.DictReader(prepared.read("results/turns.csv").splitlines()))
    assert [row["turn"] for row in turns] == [str(turn) for turn in range(1, 41)]
    assert prepared.read("results/runs.csv").count("\n") == 2
    assert prepared.planned() == {}


def test_a_mistake_in_the_matrix_is_one_line_and_nothing_runs(project):
    project.set_matrix(changed(caps=["none", "4 x"]))
    done = project.snakemake()
    assert done.returncode == 1
    lines = [line for line in done.stdout.splitlines() if not line.startswith("Using ")]
    assert len(lines) == 1, done.stdout
    assert lines[0].startswith('config/matrix.yaml: caps[1]: "4 x": expected none')
    assert not (project.folder / "results").exists()


@pytest.mark.parametrize(
    ("given", "line"),
    [
        (
            "matrx=config/other.yaml",
            "--config matrx: unknown key; expected matrix, partial or gpus",
        ),
        ("partial=maybe", "--config partial: maybe; expected true or false"),
        (
            "matrix=other.yaml",
            "expected.yaml: no such file; expected the claims beside the matrix (none: claims: [])",
        ),
    ],
)
def test_a_mistake_in_config_is_one_line_and_nothing_runs(project, given, line):
    (project.folder / "other.yaml").write_text(project.read("config/matrix.yaml"))
    done = project.snakemake("-n", "--config", given)
    assert done.returncode == 1
    assert done.stdout.splitlines()[-1] == line
    assert not (project.folder / "results").exists()


def test_several_gpus_without_one_are_one_line_and_nothing_runs(project):
    done = project.snakemake("-n", "--config", "gpus=2")
    assert done.returncode == 1
    assert "--config gpus: 2; expected none, because MLX runs on cpu here" in done.stdout
    assert "Traceback" not in done.stdout


TWO_GPUS = """
    import os, sys
    sys.path.append({tests!r})
    from fake_nvml import Nvml
    class Two(Nvml):
        def nvmlDeviceGetHandleByIndex(self, index): return index
        def nvmlDeviceGetUUID(self, handle): return f"GPU-{{handle}}"
        def nvmlDeviceGetName(self, handle): return "run " + os.environ["KVPEAK_RUN"]
    return Two()
"""


@pytest.mark.slow
def test_two_gpus_measure_two_cells_at_once(project, monkeypatch):
    monkeypatch.setenv("KVPEAK_ACCELERATOR", "cuda")
    nvml = "workflow/scripts/kvpeak/system/nvml.py"
    head, _ = project.read(nvml).split("    try:\n        ctypes.CDLL", 1)
    project.write(nvml, head + TWO_GPUS.format(tests=str(ROOT / "tests")))
    project.set_matrix(changed(kv_caches=["cat"]))
    done = project.snakemake("--cores", "2", "--config", "gpus=2")
    assert done.returncode == 0, done.stdout
    records = [
        json.loads(file.read_text()) for file in project.folder.glob("results/cells/**/cell.json")
    ]
    assert sorted(record["request"]["gpu"] for record in records) == [0, 1]
    spans = []
    for record in records:
        start = datetime.fromisoformat(record["started_at"]).timestamp()
        spans.append((start, start + record["elapsed_s"]))
    assert max(start for start, _ in spans) < min(end for _, end in spans)
    assert len({record["machine"]["before"]["gpu"]["name"] for record in records}) == 1
    assert "on one of 2 GPUs, with others beside it" in project.read("report/details.md")


@pytest.mark.slow
def test_a_failing_claim_fails_check_and_not_the_finding(measured):
    claims = {
        "claims": [
            {
                "claim": "the cell takes one MiB",
                "kind": "value",
                "of": {"model": "tiny", "kv_cache": "cat", "cap": "none"},
                "column": "peak_footprint_mib",
                "expected": 1.0,
                "tolerance_pct": 5,
                "source": "this test",
            }
        ]
    }
    measured.write("config/expected.yaml", yaml.safe_dump(claims))
    assert measured.snakemake().returncode == 0
    assert "fails" in measured.read("results/checks.csv")
    done = measured.snakemake("check")
    assert done.returncode == 1
    assert "the cell takes one MiB" in done.stdout


def test_the_html_report_is_written_offline(measured):
    done = measured.snakemake("--report", "report.html")
    assert done.returncode == 0, done.stdout
    assert (measured.folder / "report.html").stat().st_size > 100_000


@pytest.mark.fault("two invocations at once")
def test_a_second_run_of_the_same_project_says_so_and_ends(project):
    lock = project.folder / ".snakemake/kvpeak.lock"
    lock.parent.mkdir()
    with lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        held.write("process 123")
        held.flush()
        done = project.snakemake("plan")
        assert done.returncode == 1
        assert "another run of this project is under way (process 123); wait for it" in done.stdout
        assert "Traceback" not in done.stdout
        assert not (project.folder / "results/plan.csv").exists()
    assert project.snakemake("plan").returncode == 0


@pytest.mark.slow
def test_without_a_terminal_a_run_is_a_line_for_each_cell_and_the_finding(measured):
    shutil.rmtree(measured.folder / "results/cells/mlx-0.32.4/tiny/alice-16/cat")
    done = measured.snakemake()
    assert done.returncode == 0, done.stdout
    lines = done.stdout.splitlines()
    assert (
        sum(bool(re.match(r"[12]/2 (none|1MiB): \d+ MiB, [\d.]+ s$", line)) for line in lines) == 2
    )
    assert re.match(r"2 cells to measure, about .+, as earlier runs took here$", lines[2])
    assert lines[-1].startswith("report/finding.md (2 cells measured in ")
    slow_steps = [line for line in lines if re.search(r": (\d+ min )?\d+ s$", line)]
    assert len(lines) - len(slow_steps) == 7
    everything = measured.snakemake("--force", "results/plan.csv", "--printshellcmds").stdout
    assert "Shell command" not in done.stdout and "plan.py" in everything
