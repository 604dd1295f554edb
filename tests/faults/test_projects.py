"""Faults under a whole project: real Snakemake on the tiny model. What was measured stays."""

import copy
import csv
import json
import os
import subprocess
import sys

import pytest
import warm
from conftest import TINY_MATRIX, Project

CELL = "mlx-0.32.4/tiny/alice-16/{}/default/r1"


def program(project: Project, name: str, *arguments: str) -> subprocess.CompletedProcess:
    """Run one of the project's steps, or a command of kvpeak in the project's folder."""
    step = project.folder / f"workflow/scripts/{name}.py"
    command = [step] if step.exists() else ["-m", "kvpeak.cli", name]
    command = [sys.executable, *command, *arguments]
    return warm.run(command, project.folder, project.environment)


def contents(project: Project, *patterns: str) -> dict[str, bytes]:
    files = [file for pattern in patterns for file in project.folder.glob(pattern)]
    return {str(file): file.read_bytes() for file in files if file.is_file()}


@pytest.mark.slow
@pytest.mark.fault("model folder broken: a truncated file, under Snakemake")
def test_a_forced_cell_that_fails_loses_nothing_and_the_rest_can_be_rendered(measured):
    cell = CELL.format("cat/none")
    result = measured.folder / "results/cells" / cell / "runs.csv"
    old, others = result.read_bytes(), contents(measured, "results/cells/*/*/*/prealloc/**/*")
    config = measured.folder / "models/tiny/config.json"
    whole = config.read_bytes()
    stat = config.stat()
    config.write_bytes(whole[: len(whole) // 2])
    os.utime(config, ns=(stat.st_atime_ns, stat.st_mtime_ns))

    done = measured.snakemake("--force", str(result.relative_to(measured.folder)))

    assert done.returncode == 1
    assert f"failed: models/tiny/config.json: {len(whole) // 2} bytes, expected" in done.stdout
    assert "Traceback" not in measured.read(f"results/logs/{cell}/cell.log")
    kept = (measured.folder / "results/logs" / cell).glob("*/runs.csv")
    assert old in [file.read_bytes() for file in kept]
    assert result.read_text().count("\n") == 1  # no run: the result says that the cell failed
    assert contents(measured, "results/cells/*/*/*/prealloc/**/*") == others

    shown = program(measured, "failed").stdout
    assert shown.startswith(f"{cell}: ") and shown.count("\n") == 1
    assert "; log: results/logs/" in shown
    assert measured.snakemake("--config", "partial=true").returncode == 0
    assert f"- `{cell}`: " in measured.read("report/finding.md")
    finding = measured.read("report/details.md")
    assert "## What is missing" in finding
    assert finding.count(f"`{cell}` |") == 1
    assert len(list(csv.DictReader(measured.read("results/summary.csv").splitlines()))) == 3

    config.write_bytes(whole)
    os.utime(config, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert measured.snakemake().returncode == 0
    assert "## What is missing" not in measured.read("report/details.md")
    assert measured.planned() == {}


@pytest.mark.slow
@pytest.mark.fault("out of memory: longer prompts after it")
def test_longer_prompts_of_what_hit_the_guard_are_skipped_until_they_are_asked_for_again(measured):
    prompts = {"alice-24": {"tokens": 25}, "alice-16": {"tokens": 17}}
    protocol = TINY_MATRIX["protocol"] | {"guard": 1e-6}
    changed = {"prompts": prompts, "protocol": protocol, "kv_caches": ["cat"], "caps": ["none"]}
    measured.set_matrix(copy.deepcopy(TINY_MATRIX) | changed | {"compare": []})
    assert measured.snakemake().returncode == 0
    rows = list(csv.DictReader(measured.read("results/summary.csv").splitlines()))
    assert {row["prompt"]: row["outcome"] for row in rows} == {
        "alice-16": "guard",
        "alice-24": "skipped",
    }
    assert "would exceed the memory: alice-16 ended with guard" in measured.read(
        "report/details.md"
    )
    assert measured.planned() == {}
    assert len(program(measured, "failed").stdout.splitlines()) == 2
    assert len(program(measured, "failed", "--rerun", "guard").stdout.splitlines()) == 2
    assert measured.planned()["cell"] == 2
    logs = measured.folder.glob("results/logs/*/*/alice-16/cat/none/**/cell.json")
    assert {json.loads(file.read_text())["outcome"] for file in logs} == {"ok", "guard"}


STEPS = {
    "aggregate": ("results", ["results/runs.csv", "results/summary.csv"]),
    "render": ("report", ["report/finding.md"]),
}


@pytest.mark.fault("disk full: the tables, the finding")
@pytest.mark.parametrize("step", STEPS)
def test_a_full_disk_leaves_the_old_tables_and_the_old_finding(measured, small_disk, step):
    folder, files = STEPS[step]
    old = contents(measured, *files)
    cells = contents(measured, "results/cells/**/*")
    small_disk(measured.folder / folder, 0)
    done = program(measured, step)
    assert done.returncode == 1
    assert "No space left on device" in done.stderr and "Traceback" not in done.stderr
    assert contents(measured, *files) == old
    assert contents(measured, "results/cells/**/*") == cells
