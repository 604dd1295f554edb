"""Records that somebody else made, in the finding: they speak of their own cells and commits, of
nothing else, and not at length.
"""

import json
import re
from pathlib import Path

import pytest

from kvpeak.base.axes import AXES
from kvpeak.base.files import write_text
from kvpeak.base.made import BY_HAND, note_import
from kvpeak.base.program import main
from kvpeak.commands import aggregate, check, render
from kvpeak.report import records, sources

COMMIT = "mlx-0.32.4"
PEAKS = {"float32": {"flops": 60e9, "copy": 9e9}, "bfloat16": {"flops": 7e9, "copy": 9e9}}
ROOF = re.compile(
    r"<summary>The cells below their roof</summary>\n\n(.*?)\n\n</details>", re.DOTALL
)


class Mine:
    """A project whose cells were measured here, but for those that are said to be imported."""

    def __init__(self, cells: list[Path]):
        self.cells = cells

    def change(self, cell: Path, imported: bool, engine: dict | None = None, **inputs: str) -> None:
        """Write a cell's record anew, as somebody else's or as one's own."""
        said = json.loads((cell / "cell.json").read_text())
        said["engine"] |= engine or {}
        said["inputs"] |= inputs
        text = json.dumps(said, indent=1)
        write_text(cell / "cell.json", text)
        if imported:
            note_import(text.encode())

    def render(self) -> tuple[str, str]:
        """finding.md and details.md."""
        for program in (aggregate, check, render):
            assert main(program, []) == 0
        return tuple(Path("report", name).read_text() for name in ("finding.md", "details.md"))


@pytest.fixture
def mine(measured, monkeypatch) -> Mine:
    monkeypatch.chdir(measured.folder)
    cells = sorted(file.parent for file in Path("results").glob("cells/**/cell.json"))
    machine = json.loads((cells[0] / "cell.json").read_text())["machine"]["before"]["name"]
    write_text(
        Path(f"results/calibration/{COMMIT}.json"),
        json.dumps({"machine": machine, "blas": None, "dtypes": PEAKS}),
    )
    for cell in cells:
        Mine(cells).change(cell, False, {"blas": None})
    return Mine(cells)


def shares(details: str) -> dict[str, str]:
    """The names of a cell that differ → its row below the roof."""
    rows = [line.split("|")[1:] for line in ROOF.search(details)[1].splitlines()[2:]]
    return {"".join(row[:2]): "|".join(row[2:]) for row in rows}


def test_an_imported_record_decides_nothing_of_the_cells_beside_it(mine):
    """Neither in which type they computed, and so their share of the roof, nor of what."""
    before, (theirs, *others) = shares(mine.render()[1]), mine.cells
    assert len(before) == len(mine.cells)
    forged = {"model_sha256": "e" * 64, "prompt_sha256": "f" * 64}
    mine.change(theirs, True, {"dtype": "bfloat16"}, **forged)
    own = json.loads((others[0] / "cell.json").read_text())["inputs"]
    finding, details = mine.render()
    after = shares(details)
    changed = [name for name in before if after[name] != before[name]]
    assert len(changed) == 1 and f"`{theirs.parents[2].name}`" in changed[0]
    assert "Computed in float32 / bfloat16." in finding
    assert "`tiny` | random weights, float32 / bfloat16 |" in details
    for name, said in forged.items():
        assert f"`{own[name]} / {said}`" in details


def test_processes_of_one_cell_that_computed_in_different_types_have_no_share(mine):
    first, *_ = mine.cells
    plan = [
        dict(zip(AXES, first.parts[2:8], strict=True)) | {"round": n, "runs_here": "yes"}
        for n in (1, 2)
    ]
    second = first.with_name("r2")
    second.mkdir()
    (second / "cell.json").write_bytes((first / "cell.json").read_bytes())
    (second / "runs.csv").touch()
    mine.change(second, True, {"dtype": "bfloat16"})
    found = records.read_records(plan, Path("results/cells"), records.Reader())
    assert [each["engine"]["dtype"] for each in found] == ["float32", "bfloat16"]
    assert sources.dtypes(found) == {first.parts[2:8]: None}


def test_an_imported_record_hides_no_model_that_was_put_there_by_hand(mine):
    first, *_, last = mine.cells
    mine.change(first, True, model_source="the hub")
    mine.change(last, False, model_source=BY_HAND)
    assert f", {BY_HAND} |" in mine.render()[1]


def test_of_many_different_hashes_the_first_are_shown(mine):
    for number, cell in enumerate(mine.cells):
        mine.change(cell, number > 0, prompt_sha256=f"{number}" * 64)
    (found,) = re.findall(r"`(0{64} / .*) and (\d+) more` \|", mine.render()[1])
    assert (found[0].count(" / "), int(found[1])) == (2, len(mine.cells) - 3)


BUILD = {"commit": COMMIT, "repository": "r", "revision": "v", "toolchain": {"cargo": "cargo 1"}}
BUILD |= {"build": ["sh", "-c", "make; x"], "verify": {"command": ["a b"], "output": "9"}}


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"build": 5}, "build: expected a list of texts"),
        ({"build": [["x"]]}, "build: expected a list of texts"),
        ({"verify": "x"}, "verify.command: expected an object before command"),
        ({"verify": {"command": [1]}}, "verify.command: expected a list of texts"),
        ({"toolchain": []}, ""),
        ({"toolchain": [1]}, "toolchain: expected an object"),
        ({"toolchain": {"a": {}}}, "toolchain.a: {}: expected text"),
        ({"repository": None}, "repository: not there; expected text"),
        ({"revision": ["x"]}, "revision: ['x']: expected text"),
    ],
)
def test_a_damaged_record_of_a_build_is_named_and_costs_no_finding(mine, changed, said):
    """Of a commit that no cell has nothing is read."""
    for commit in (COMMIT, "foreign"):
        file = Path(f"results/engines/{commit}/engine.json")
        write_text(file, json.dumps(BUILD | changed))
    details = mine.render()[1]
    assert "foreign" not in details
    if not said:
        assert f"`{COMMIT}` was built from `r` at `v`" in details
        return
    assert "was built from" not in details
    (line,) = [line for line in details.splitlines() if "engine.json" in line]
    assert f"results/engines/{COMMIT}/engine.json: {said}" in line.replace("\\", "")


def test_the_command_of_a_build_is_shown_as_a_shell_takes_it(mine):
    write_text(Path(f"results/engines/{COMMIT}/engine.json"), json.dumps(BUILD))
    assert (
        f"`{COMMIT}` was built from `r` at `v` with `sh -c 'make; x'` (cargo 1). `'a b'` printed: "
        "`9`\n"
    ) in mine.render()[1]


@pytest.mark.parametrize("commit", [COMMIT, "foreign"])
def test_records_without_end_cost_the_finding_no_page(mine, commit):
    """A long one of each kind, and many of commits that no cell has."""
    before = mine.render()[1]
    names = [commit] if commit == COMMIT else [f"{commit}{number}" for number in range(20)]
    freeze = ["mlx==" + "x" * 1900] * 120
    reading = {"process": "x" * 1900, "counter": "c" * 1900, "what": "y" * 1900, "known_mib": 1}
    kinds = {
        "envs/{}/environment.json": {"freeze": freeze},
        "engines/{}/engine.json": BUILD | {"build": freeze, "toolchain": dict.fromkeys("ab", "z")},
        "instruments/{}.json": {"readings": [reading] * 40, "problems": freeze[:60]},
        "calibration/{}.json": {"machine": "x", "dtypes": {freeze[0]: {}}},
    }
    for name in names:
        for path, said in kinds.items():
            write_text(Path("results", path.format(name)), json.dumps(said))
    details = mine.render()[1]
    assert len(details) < len(before) + (80_000 if commit == COMMIT else 1)
    assert ("dtypes: expected at most 16 names" in details) == (commit == COMMIT)
