"""Which release changed a peak: the search, and a search of real processes over a repository's
revisions.
"""

import json
import subprocess
import sys
import tempfile
from math import ceil, log2
from pathlib import Path

import pytest
from test_command_engine import git

from kvpeak.base.errors import UserError
from kvpeak.base.layout import engine_record
from kvpeak.base.made import note_made_here
from kvpeak.bisection.candidates import candidates_of
from kvpeak.bisection.measured import Search
from kvpeak.bisection.search import BAD, GOOD, SKIPPED, Bisection, verdict
from kvpeak.commands.bisect import names_of
from kvpeak.experiment.matrix import Matrix

NAMES = ("m", "p", "cat", "none", "v")


def names(count: int) -> list[str]:
    return [f"r{number}" for number in range(count)]


def search(candidates: list[str], first_bad: int, broken=()) -> tuple[Bisection, int]:
    """Search to the end; returns the search and how many it asked for."""
    found = Bisection(candidates, {candidates[0]: GOOD, candidates[-1]: BAD})
    asked = 0
    while name := found.next():
        asked += 1
        bad = candidates.index(name) >= first_bad
        found.verdicts[name] = SKIPPED if name in broken else (BAD if bad else GOOD)
    return found, asked


@pytest.mark.parametrize("count", range(2, 40))
def test_a_step_is_found_with_the_logarithm_of_the_releases(count):
    for first_bad in range(1, count):
        found, asked = search(names(count), first_bad)
        assert found.found == (f"r{first_bad - 1}", f"r{first_bad}")
        assert asked <= ceil(log2(count - 1))


def test_five_processes_are_enough_for_22_releases():
    assert Bisection(names(22)).at_most == 5


def test_what_cannot_be_measured_is_left_out_and_named_where_it_matters():
    found, _ = search(names(9), 5, broken=("r4",))
    assert found.found == ("r3", "r5")
    assert found.between == ["r4"]
    assert search(names(9), 7, broken=("r4",))[0].between == []


@pytest.mark.parametrize(
    ("peak", "ends", "expected"),
    [
        (110, (100, 400, None), GOOD),
        (390, (100, 400, None), BAD),
        # nearer as a ratio: 199 is less than twice the good end
        (199, (100, 400, None), GOOD),
        (201, (100, 400, None), BAD),
        # a peak that falls
        (120, (400, 100, None), BAD),
        (201, (None, None, 200), BAD),
        (200, (None, None, 200), GOOD),
    ],
)
def test_a_peak_is_like_the_end_that_is_nearer(peak, ends, expected):
    assert verdict(peak, *ends) == expected


@pytest.mark.parametrize(
    "cell", ["m/p/cat/none/v", "old/m/p/cat/none/v", "results/cells/old/m/p/cat/none/v/r1"]
)
def test_a_cells_commit_does_not_matter(cell):
    assert names_of(cell) == NAMES


def test_a_cell_with_too_few_names_is_refused():
    with pytest.raises(UserError, match="expected MODEL/PROMPT/KV_CACHE/CAP/VARIANT"):
        names_of("m/p/cat")


PROGRAM = """#!{python}
import sys, time
held = bytearray({mib} << 20)
with open(sys.argv[1] + "/runs.csv", "w") as table:
    table.write("prompt_tokens,generated_tokens\\n17,8\\n17,8\\n")
time.sleep(0.3)
"""
COMMAND = {
    "engine": "command",
    "run": ["bench.py", "{out}"],
    "kv_caches": ["cat"],
    "output": {
        "file": "{out}/runs.csv",
        "columns": {"prompt_tokens": "prompt_tokens", "generated_tokens": "generated_tokens"},
    },
}


@pytest.fixture
def project(tmp_path, monkeypatch) -> dict:
    """A project whose engine has seven revisions; the one in `step` is the first to hold much
    more.
    """
    folder = tmp_path / "engine"
    git(tmp_path, "init", "--quiet", str(folder))
    revisions = []
    for mib in (8, 8, 9, 8, 160, 160, 161):
        program = folder / "bench.py"
        program.write_text(PROGRAM.format(python=sys.executable, mib=mib) + f"# {len(revisions)}\n")
        program.chmod(0o755)
        git(folder, "add", "--all")
        git(folder, "commit", "--quiet", "--message", "change")
        revisions.append(git(folder, "rev-parse", "HEAD"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # a lock of its own
    for path in ("models/m/model.json", "prompts/m/p.json", "alice.txt", "config.json"):
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_text("{}")
    Path("models/m/model.json").write_text('{"name": "m"}')
    note_made_here(Path("models/m/model.json"))
    ends = {"old": revisions[0], "new": revisions[-1]}
    data = {
        "commits": {
            name: COMMAND | {"repository": str(folder), "revision": revision}
            for name, revision in ends.items()
        },
        "models": {"m": {"kind": "random", "config": "config.json"}},
        "prompts": {"p": {"corpus": "alice.txt", "tokens": 1}},
        **{"kv_caches": ["cat"], "caps": ["none"], "variants": {"v": {}}},
        "protocol": {"warmup": 1, "recorded": 1, "generate": 2},
    }
    return {"matrix": Matrix(data, "matrix.yaml"), "step": revisions[4], "data": data}


def searched(project: dict, above: float | None = None) -> Search:
    matrix = project["matrix"]
    return Search(matrix, NAMES, candidates_of(matrix, "old", "new"), above)


def test_the_revision_of_a_step_is_found_and_a_stopped_search_goes_on(project):
    first = searched(project)
    assert len(first.candidates.names) == 7
    lines = first.run()
    stopped = [next(lines), next(lines), next(lines)]
    assert [line.split(": ")[0] for line in stopped[:2]] == ["old", "new"]
    assert first.processes == 3
    again = searched(project)
    *rest, found = again.run()
    assert f"changed at new-{project['step'][:10]}" in found
    assert next(line for line in rest if "kept from before" in line).startswith("old: ")
    # two ends, and of six steps' candidates at most three
    assert again.processes <= 5
    *kept, same = searched(project).run()
    assert same == found
    assert all("kept from before" in line for line in kept)


@pytest.mark.parametrize("record", ["{}", '{"kvpeak": {"outcome": "failed", "reason": "x"}}'])
def test_a_record_of_a_build_that_was_not_made_here_is_no_build(project, record):
    """Such as one that was imported, or that says that the build failed."""
    there = engine_record("new")
    there.parent.mkdir(parents=True)
    there.write_text(record)
    assert len(searched(project).candidates.names) == 7
    assert (
        json.loads(there.read_text())["revision"] == project["data"]["commits"]["new"]["revision"]
    )
    built = there.stat().st_mtime_ns
    searched(project)
    assert there.stat().st_mtime_ns == built


@pytest.mark.parametrize(
    "measured",
    [
        ["old"],
        {"old": "good"},
        {"old": {"verdict": ["measured"], "peak_mib": 8, "detail": None}},
        {"old": {"verdict": "measured", "peak_mib": "8", "detail": None}},
        {"old": {"verdict": "measured", "peak_mib": -8, "detail": None}},
        {"old": {"verdict": "measured", "peak_mib": 8, "detail": ["\x1b[31m"]}},
    ],
)
def test_a_state_of_somebody_else_that_is_none_is_one_line(project, measured):
    search = searched(project)
    search.folder.mkdir(parents=True)
    state = {"candidates": search.candidates.names, "measured": measured}
    (search.folder / "state.json").write_text(json.dumps(state))
    with pytest.raises(UserError, match=r"state.json: measured: expected a verdict") as error:
        searched(project)
    assert str(error.value).isprintable()


def test_a_release_that_nobody_asked_for_is_not_taken_from_a_state(project):
    search = searched(project)
    search.folder.mkdir(parents=True)
    said = {"verdict": "measured", "peak_mib": 8, "detail": None}
    state = {"candidates": search.candidates.names, "measured": {"../../evil": said}}
    (search.folder / "state.json").write_text(json.dumps(state))
    assert searched(project).measured == {}


def test_a_search_begins_only_if_the_results_hold_files_and_folders(project):
    Path("results/bisect").mkdir(parents=True)
    Path("results/bisect/x").symlink_to("/")
    with pytest.raises(UserError, match="results/bisect/x: a link that leads out of results"):
        searched(project)


def test_with_a_limit_the_ends_are_not_measured(project):
    found = searched(project, above=100)
    *_, last = found.run()
    assert f"changed at new-{project['step'][:10]}" in last
    assert not {"old", "new"} & found.measured.keys()
    assert found.processes <= 3


def test_ends_of_different_kinds_are_refused(project):
    data = project["data"]
    data["commits"]["other"] = {"engine": "candle-replay"}
    with pytest.raises(UserError, match="different engines"):
        candidates_of(Matrix(data, "matrix.yaml"), "old", "other")
    with pytest.raises(UserError, match="--bad: nowhere; expected a commit"):
        candidates_of(project["matrix"], "old", "nowhere")
    with pytest.raises(UserError, match="does not come after"):
        candidates_of(project["matrix"], "new", "old")


def releases_matrix(project: dict, **commits) -> Matrix:
    data = project["data"] | {
        "commits": {
            name: {"engine": "mlx", "packages": packages} for name, packages in commits.items()
        }
    }
    return Matrix(data, "matrix.yaml")


def test_the_releases_between_two_versions_are_candidates_in_their_order(project):
    matrix = releases_matrix(project, a={"mlx": "0.31.0"}, b={"mlx": "0.32.1"})
    found = candidates_of(matrix, "a", "b")
    assert found.names == ["a", "mlx-0.31.1", "mlx-0.31.2", "mlx-0.32.0", "b"]
    assert found.entry("mlx-0.31.2")["packages"] == {"mlx": "0.31.2"}
    assert candidates_of(matrix, "b", "a").names[1] == "mlx-0.32.0"


def test_two_entries_that_differ_in_two_packages_are_refused(project):
    matrix = releases_matrix(
        project,
        a={"mlx": "0.31.0", "mlx-lm": "0.31.1"},
        b={"mlx": "0.32.1", "mlx-lm": "0.32.0"},
    )
    with pytest.raises(UserError, match="differ in mlx, mlx-lm; expected another version of one"):
        candidates_of(matrix, "a", "b")


def test_the_command_names_a_model_that_is_not_made(project, tmp_path):
    Path("models/m/model.json").unlink()
    Path("matrix.yaml").write_text(json.dumps(project["data"]))
    program = Path(__file__).parents[1] / "workflow/scripts/kvpeak/cli.py"
    ends = ["--good", "old", "--bad", "new", "--cell", "/".join(NAMES), "--matrix", "matrix.yaml"]
    done = subprocess.run(
        [sys.executable, "-m", "kvpeak.cli", "bisect", *ends],
        capture_output=True,
        text=True,
        env={"PYTHONPATH": str(program.parents[1]), "PATH": "/usr/bin:/bin"},
        cwd=tmp_path,
    )
    assert done.returncode == 1
    assert (
        "models/m/model.json was not made here; make it: snakemake --cores 1 models/" in done.stderr
    )
    assert done.stderr.strip().endswith("--config matrix=matrix.yaml")
