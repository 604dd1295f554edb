"""An external engine at two git revisions: really cloned, built with cargo, run as cells, and
compared.

The crate has fornace-bench's command line and no dependencies. At the first revision it keeps a
large buffer for each layer, at the second it releases them, so the operating system's peak must
fall.
"""

import json
import os
import signal
import subprocess
import time

import pandas as pd
import psutil
import pytest
from conftest import TINY_MATRIX

CRATE = """[package]
name = "fornace-bench"
version = "0.1.0"
edition = "2021"
"""
PROGRAM = """use std::fs;
use std::io::Write;

const MIB: usize = 1 << 20;

fn value(name: &str) -> String {
    let arguments: Vec<String> = std::env::args().collect();
    let at = arguments.iter().position(|a| a == name).expect(name);
    arguments[at + 1].clone()
}

fn main() {
    let (cache, prompt, out) = (value("--kv-cache"), value("--prompts"), value("--out"));
    assert!(fs::metadata(value("--model")).is_ok(), "no model");
    let mut kept: Vec<Vec<u8>> = Vec::new();
    for layer in 0..24u8 {
        let mut scores = vec![1u8; 8 * MIB];
        for byte in scores.iter_mut().step_by(4096) {
            *byte = layer;
        }
        if KEEPS && cache != "prealloc" {
            kept.push(scores);
        }
    }
    let mut table = fs::File::create(out).expect("out");
    let header = "prompt,kv_cache,prompt_tokens,generated,prefill_tok_s,ttft_ms,decode_tok_s";
    writeln!(table, "{header}").unwrap();
    for _ in 0..3 {
        writeln!(table, "{prompt},{cache},17,8,1000,17.5,100").unwrap();
    }
    println!("{} buffers kept", kept.len());
}
"""
ENTRY = {
    "engine": "command",
    "build": ["cargo", "build", "--release", "--offline"],
    "verify": ["cargo", "tree", "--offline"],
    "run": [
        "target/release/fornace-bench",
        "--model",
        "{model_folder}",
        "--kv-cache",
        "{kv_cache}",
        "--prompts",
        "{prompt}",
        "--out",
        "{out}/runs.csv",
    ],
    "needs": {"programs": ["cargo"]},
    "output": {
        "file": "{out}/runs.csv",
        "columns": {
            "prompt_tokens": "prompt_tokens",
            "generated_tokens": "generated",
            "prefill_tok_s": "prefill_tok_s",
            "ttft_s": {"name": "ttft_ms", "unit": "ms"},
            "decode_tok_s": "decode_tok_s",
        },
    },
}


def cargo_answers() -> bool:
    """Whether there is a cargo that works: rustup's stand-in without a toolchain does not."""
    try:
        return subprocess.run(["cargo", "--version"], capture_output=True).returncode == 0
    except OSError:  # not there, or in a folder that is closed to this user
        return False


no_cargo = pytest.mark.skipif(
    not cargo_answers(), reason="no cargo answers to --version, so nothing can be built from source"
)


def needs_cargo(test):
    """A test that builds programs, which takes its time."""
    return pytest.mark.slow(no_cargo(test))


def git(folder, *arguments) -> str:
    identity = ["-c", "user.name=kvpeak", "-c", "user.email=kvpeak@example.org"]
    command = ["git", "-C", str(folder), *identity, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def repository(tmp_path) -> dict:
    """A git repository of the crate, and its revisions before and after."""
    folder = tmp_path / "fornace"
    (folder / "src").mkdir(parents=True)
    git(tmp_path, "init", "--quiet", str(folder))
    (folder / "Cargo.toml").write_text(CRATE)
    (folder / ".gitignore").write_text("target\n")
    revisions = {"folder": folder}
    for name, keeps in (("before", "true"), ("after", "false")):
        (folder / "src/main.rs").write_text(PROGRAM.replace("KEEPS", keeps))
        git(folder, "add", "--all")
        git(folder, "commit", "--quiet", "--message", name)
        revisions[name] = git(folder, "rev-parse", "HEAD")
    return revisions


def entry(repository, revision, /, **changes) -> dict:
    return {"repository": str(repository["folder"]), "revision": revision} | ENTRY | changes


@pytest.fixture
def fornace(project, repository):
    """The tiny project with both revisions as its only commits."""

    def set_matrix(**commits):
        commits = commits or {
            "fornace-before": entry(repository, repository["before"]),
            "fornace-after": entry(repository, repository["after"][:10]),
        }
        names = list(commits)
        project.set_matrix(
            TINY_MATRIX
            | {
                "commits": commits,
                "caps": ["none"],
                "compare": [{"axis": "commit", "before": names[0], "after": names[-1]}]
                if commits.keys() - names[:1]
                else [],
                "protocol": {"recorded": 3, "generate": 8},
            }
        )
        return project

    return set_matrix


@needs_cargo
def test_two_revisions_are_built_run_and_compared(fornace, repository):
    project = fornace()
    done = project.snakemake()
    assert done.returncode == 0, done.stdout
    summary = pd.read_csv(project.folder / "results/summary.csv").set_index(["commit", "kv_cache"])
    peak = summary["peak_footprint_mib"]
    assert peak["fornace-before", "cat"] - peak["fornace-after", "cat"] > 24 * 8 * 0.8
    assert peak["fornace-before", "prealloc"] < peak["fornace-before", "cat"] / 3
    assert summary.loc[("fornace-after", "cat"), "ttft_ms"] == pytest.approx(17.5)
    assert summary.loc[("fornace-after", "cat"), "decode_tok_s"] == pytest.approx(100)

    finding = project.read("report/finding.md")
    assert "fornace-before" in finding and "fornace-after" in finding
    details = project.read("report/details.md")
    assert "fornace-bench v0.1.0" in details  # the check of the build, quoted

    before, after = (
        json.loads(project.read(f"results/engines/fornace-{name}/engine.json"))
        for name in ("before", "after")
    )
    assert before["revision"] == repository["before"]
    assert after["revision"] == repository["after"]  # a short hash is resolved
    assert before["program_sha256"] != after["program_sha256"]
    assert set(before["lock_files"]) == {"Cargo.lock"}
    assert before["toolchain"]["cargo"].startswith("cargo ")
    assert len(list(project.folder.glob(".kvpeak/mirrors/*.git"))) == 1
    assert project.planned() == {}


@needs_cargo
def test_another_revision_builds_once_and_runs_only_its_cells(fornace, repository):
    first = {"fornace-before": entry(repository, repository["before"])}
    project = fornace(**first)
    assert project.snakemake().returncode == 0
    fornace(**first, **{"fornace-after": entry(repository, repository["after"])})
    jobs = project.planned()
    assert (jobs["engine"], jobs["cell"]) == (1, 2)
    assert project.snakemake().returncode == 0


@needs_cargo
def test_a_build_that_was_killed_starts_again_from_nothing(fornace, repository):
    slow = entry(repository, repository["before"], build=["sh", "-c", "touch half-done; sleep 60"])
    project = fornace(a=slow)
    running = subprocess.Popen(
        project.command("results/engines/a/engine.json"),
        cwd=project.folder,
        env=project.environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    mark = project.folder / ".kvpeak/engines/a/source/half-done"
    while not mark.exists():
        assert running.poll() is None
        time.sleep(0.05)
    os.killpg(running.pid, signal.SIGKILL)
    running.wait()
    fornace(a=entry(repository, repository["before"]))
    done = project.snakemake("results/engines/a/engine.json")
    assert done.returncode == 0, done.stdout
    assert not mark.exists()
    assert (
        json.loads(project.read("results/engines/a/engine.json"))["revision"]
        == repository["before"]
    )


ERRORS = [
    (
        {"revision": "0" * 40},
        "commits.bad: revision 0000000000000000000000000000000000000000 is not in",
    ),
    ({"build": ["false"]}, "commits.bad: build failed with 1: false; its log says more"),
    (
        {"run": ["target/no-such", "{kv_cache}"]},
        "commits.bad: run: the build made no target/no-such in",
    ),
    (
        {"build": ["no-such-compiler"]},
        "commits.bad: build: no-such-compiler: cannot be started (No such file or directory)",
    ),
    (
        {"repository": "no/such/repository"},
        "commits.bad: repository no/such/repository cannot be had: git ls-remote failed (",
    ),
]
UNAVAILABLE = ("revision", "repository", "no-such-compiler")  # the others are failures


@needs_cargo
@pytest.mark.parametrize(
    ("changes", "line"), ERRORS, ids=[next(iter(change)) for change, _ in ERRORS]
)
def test_a_build_error_is_one_line_and_other_commits_go_on(fornace, repository, changes, line):
    good = {"good": entry(repository, repository["after"])}
    project = fornace(**good, bad=entry(repository, repository["after"], **changes))
    done = project.snakemake()
    unavailable = any(word in str(changes) for word in UNAVAILABLE)
    assert done.returncode == (0 if unavailable else 1), done.stdout
    assert line in done.stdout
    assert "Traceback" not in done.stdout
    assert line in project.read("results/logs/engines/bad.log")
    assert len(list(project.folder.glob("results/cells/good/**/runs.csv"))) == 2
    for file in project.folder.glob("results/cells/bad/**/runs.csv"):
        assert file.read_text().count("\n") == 1  # no run
    finding = project.read("report/finding.md")
    assert line.removeprefix("commits.bad: ")[:40].replace("_", "\\_") in finding


@needs_cargo
def test_an_uncommitted_change_is_refused(fornace, repository):
    (repository["folder"] / "Cargo.toml").write_text(CRATE + "# changed\n")
    done = fornace(bad=entry(repository, repository["after"])).snakemake(
        "results/engines/bad/engine.json"
    )
    assert done.returncode == 1
    assert "has uncommitted changes, which revision" in done.stdout


@needs_cargo
def test_a_column_that_is_not_there_fails_its_cells_and_lists_what_is(fornace, repository):
    columns = ENTRY["output"]["columns"] | {"decode_tok_s": "decode_speed"}
    output = ENTRY["output"] | {"columns": columns}
    project = fornace(bad=entry(repository, repository["after"], output=output))
    done = project.snakemake()
    assert done.returncode == 1
    line = next(line for line in done.stdout.splitlines() if "decode_speed" in line)
    assert (
        "output.columns.decode_tok_s) is not there; found prompt, kv_cache, prompt_tokens" in line
    )
    assert "results/logs/" in line


def test_a_program_that_is_missing_is_planned_as_not_here(fornace, repository):
    needs = {"programs": ["no-such-program"]}
    shown = (
        fornace(bad=entry(repository, repository["after"], needs=needs)).snakemake("plan").stdout
    )
    assert "2 do not: unavailable: needs no-such-program on the PATH" in shown


def test_another_operating_system_is_planned_as_not_here(fornace, repository):
    other = "linux" if psutil.MACOS else "macos"
    shown = (
        fornace(bad=entry(repository, repository["after"], needs={"os": other}))
        .snakemake("plan")
        .stdout
    )
    assert f"2 do not: not here: needs {other}, this is" in shown
