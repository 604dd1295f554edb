"""Cut the power of a run of the tiny project at random moments; one more plain run has to end in
the same finding.

    PYTHONPATH=tests python tests/faults/power_cut.py --times 30 --seed 0

A cut is SIGKILL to the whole process group of Snakemake. Afterwards: every result that was complete
at the cut is there, in its place or, if Snakemake measured the cell again, in the folder of its
start; a plain invocation ends well and leaves nothing to do; the tables agree with those of a run
that was not cut in all that does not depend on the machine's load; and the finding is the one that
these tables give.
"""

import argparse
import csv
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from conftest import TINY_MATRIX, Project

ROOT = Path(__file__).parents[2]

MATRIX = TINY_MATRIX | {
    "kv_caches": ["cat"],
    "protocol": {"generate": 8, "recorded": 1, "processes": 2},
}
STEADY = (
    "rounds",
    "runs",
    "outcome",
    "prompt_tokens",
    "generated_tokens",
    "tokens_sha256",
    "weights",
)


def make_project(folder: Path) -> Project:
    project = Project.make(folder)
    project.set_matrix(MATRIX)
    return project


def run_plain(project: Project) -> float:
    """One plain invocation, which has to succeed; seconds."""
    began = time.monotonic()
    done = project.snakemake()
    if done.returncode:
        raise AssertionError(done.stdout)
    return time.monotonic() - began


def cut(project: Project, after_s: float) -> bool:
    """Start a plain invocation and kill its process group after so many seconds; False if it ended
    before.
    """
    running = subprocess.Popen(
        project.command(),
        cwd=project.folder,
        env=project.environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        running.wait(after_s)
    except subprocess.TimeoutExpired:
        os.killpg(running.pid, signal.SIGKILL)
        running.wait()
        return True
    return False


def results(project: Project) -> set[str]:
    """The contents of every complete result."""
    return {file.read_text() for file in project.folder.glob("results/cells/**/runs.csv")}


def kept(project: Project) -> set[str]:
    """The contents of every result that was ever complete."""
    logs = {file.read_text() for file in project.folder.glob("results/logs/**/runs.csv")}
    return results(project) | logs


def tables(project: Project) -> list[tuple]:
    """The rows of summary.csv as far as they do not depend on the machine's load."""
    rows = csv.DictReader(project.read("results/summary.csv").splitlines())
    axes = ("commit", "model", "prompt", "kv_cache", "cap", "variant")
    return [tuple(row[name] for name in (*axes, *STEADY)) for row in rows]


def headings(project: Project) -> list[str]:
    """The sections of the finding below its title, which says the figures."""
    return re.findall(r"^## .*$", project.read("report/finding.md"), re.MULTILINE)


def finding_again(project: Project) -> str:
    """The finding rendered once more from the tables that are there."""
    command = [sys.executable, "workflow/scripts/render.py"]
    subprocess.run(command, cwd=project.folder, check=True)
    return project.read("report/finding.md")


def power_cut(project: Project, after_s: float, expected: tuple[list, list]) -> bool:
    """One cut of a project and one plain run; raises AssertionError if something is lost or
    differs.
    """
    was_cut = cut(project, after_s)
    before = results(project)
    run_plain(project)
    assert before <= kept(project), "a result is lost"
    assert project.planned() == {}, "there is something left to do"
    assert (tables(project), headings(project)) == expected, "the tables or the finding differ"
    finding = project.read("report/finding.md")
    assert finding_again(project) == finding, "the finding is not what its tables give"
    return was_cut


def power_cuts(times: int, seed: int, folder: Path, make=make_project, say=print) -> None:
    """So many cuts, each of a project made by `make(folder)`, at moments drawn from the seed; a
    moment after the run's end does not count.
    """
    draw = random.Random(seed)
    uncut = make(folder / "uncut")
    whole_s = run_plain(uncut)
    expected = tables(uncut), headings(uncut)
    cuts = drawn = 0
    while cuts < times:
        drawn += 1
        after_s = draw.uniform(0.02, 0.98) * whole_s
        if power_cut(make(folder / f"cut-{drawn}"), after_s, expected):
            cuts += 1
            say(f"power cut {cuts} of {times} after {after_s:.1f} of {whole_s:.1f} s: nothing lost")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--times", type=int, default=30, help="default: %(default)s")
    parser.add_argument("--seed", type=int, default=0, help="default: %(default)s")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        power_cuts(arguments.times, arguments.seed, Path(folder))
    print(f"power cuts: {arguments.times} injected, {arguments.times} survived, 0 lost")
    return 0


if __name__ == "__main__":
    sys.exit(main())
