"""A small project that tests may run, change and break."""

import contextlib
import fcntl
import os
import shutil
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import warm
import yaml
from disks import Disks

from kvpeak.base.untrusted import open_root
from kvpeak.live.blas import load_blas
from kvpeak.report.page_text import to_html

# Before any test imports MLX. With one thread, because another process of tests has the other core;
# what the tests start does not see that.
with pytest.MonkeyPatch.context() as patch:
    patch.setenv("OPENBLAS_NUM_THREADS", "1")
    load_blas()
# A shell's job in the background is started without it, and so would be what the tests interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)

ROOT = Path(__file__).parents[1]
# The files that take longest: no process of tests is left alone with one at the end. The first
# measures the project that others wait for.
LONG = (
    *("test_programs.py", "test_render.py", "test_mlx_engine.py", "test_replay_finding.py"),
    *("test_power_cut.py", "test_slurm.py", "test_environments.py", "test_mistralrs_live.py"),
    *("test_run_cell.py", "test_projects.py", "test_workflow.py", "test_hostile_results.py"),
    *("test_hostile_matrix.py", "test_hostile_programs.py", "test_unavailable.py"),
    *("test_model_types_finding.py", "test_mac_matrix.py", "test_pools_live.py", "test_report.py"),
    *("test_instruments.py", "test_pools_fuzz.py", "test_page.py", "test_hostile_parsers.py"),
)
TINY_MATRIX = {
    "commits": {"mlx-0.32.4": {"engine": "mlx", "packages": {"mlx": "0.32.4", "mlx-lm": "0.32.2"}}},
    "models": {"tiny": {"kind": "random", "config": "config/models/tiny.json", "dtype": "float32"}},
    "prompts": {"alice-16": {"tokens": 17}},
    "kv_caches": ["cat", "prealloc"],
    "caps": ["none", "1MiB"],
    "variants": {"default": {}},
    "compare": [{"axis": "cap", "before": "none", "after": "1MiB"}],
    "protocol": {"generate": 8, "recorded": 2},
}
TINY_MODEL = """{
  "model_type": "qwen2", "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
  "num_attention_heads": 2, "num_key_value_heads": 2, "vocab_size": 512,
  "max_position_embeddings": 512, "rms_norm_eps": 1e-06, "rope_theta": 10000.0,
  "tie_word_embeddings": false, "torch_dtype": "float32"
}
"""
TINY_EXPECTED = "claims: []\n"


class Project:
    """A copy of this project's own files in a folder of its own, with a matrix of a few tiny
    cells.
    """

    def __init__(self, folder: Path):
        self.folder = folder

    @classmethod
    def make(cls, folder: Path) -> "Project":
        for name in ("Snakefile", "workflow", "profiles", "requirements", "report/templates"):
            source, target = ROOT / name, folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            if source.is_dir():
                shutil.copytree(source, target)
            else:
                shutil.copy2(source, target)
        (folder / "prompts").mkdir()
        shutil.copy2(ROOT / "prompts/alice.txt", folder / "prompts")
        (folder / "config/models").mkdir(parents=True)
        project = cls(folder)
        project.calibrate_quickly()
        project.write("config/models/tiny.json", TINY_MODEL)
        project.write("config/expected.yaml", TINY_EXPECTED)
        project.set_matrix(TINY_MATRIX)
        return project

    def write(self, name: str, text: str) -> None:
        (self.folder / name).write_text(text, encoding="utf-8")

    def read(self, name: str) -> str:
        return (self.folder / name).read_text(encoding="utf-8")

    def calibrate_quickly(self) -> None:
        """Do without arrays larger than the cache and without repeats: what they are for,
        tests/test_calibrate.py tries.
        """
        name = "workflow/scripts/kvpeak/live/calibration.py"
        text = self.read(name)
        for figure in ("BEYOND_CACHE = 2", "BUDGET_S = 0.5"):
            assert text.count(f"\n{figure} ") == 1
            text = text.replace(figure, figure.split("=")[0] + "= 0")
        self.write(name, text)

    def set_matrix(self, matrix: dict) -> None:
        self.write("config/matrix.yaml", yaml.safe_dump(matrix, sort_keys=False))

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "snakemake", "--cores", "1", *arguments]

    @property
    def environment(self) -> dict[str, str]:
        """Temporary files of its own, and so a machine-wide lock of its own."""
        temporary = self.folder / ".tmp"
        temporary.mkdir(exist_ok=True)
        return os.environ | {"TMPDIR": str(temporary)}

    def snakemake(self, *arguments: str) -> subprocess.CompletedProcess:
        """Really run Snakemake; its standard error follows its standard output in `stdout`."""
        command = self.command(*arguments)
        return warm.run(command, self.folder, self.environment, together=True)

    def planned(self, *arguments: str) -> dict[str, int]:
        """How many jobs of each rule a dry run plans."""
        shown = self.snakemake("-n", *arguments).stdout
        if "Job stats:" not in shown:
            assert "Nothing to be done" in shown, shown
            return {}
        lines = shown.split("Job stats:")[-1].splitlines()[3:]
        jobs = {}
        for line in lines:
            if line.startswith("total"):
                break
            rule, count = line.split()
            jobs[rule] = int(count)
        return jobs


@pytest.fixture(scope="session")
def _measured(tmp_path_factory) -> Path:
    """The tiny project after one full run, made once, by the first process that needs it."""
    own = tmp_path_factory.getbasetemp()
    folder = own.parent if "PYTEST_XDIST_WORKER" in os.environ else own
    made = folder / "measured"
    with (folder / "measured.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists():
            project = Project.make(tmp_path_factory.mktemp("project") / "measured")
            done = project.snakemake()
            assert done.returncode == 0, done.stdout
            project.folder.rename(made)
    return made


@pytest.fixture
def project(tmp_path) -> Project:
    """The tiny project, nothing run yet."""
    return Project.make(tmp_path / "project")


@pytest.fixture
def measured(_measured, tmp_path) -> Project:
    """A copy of the tiny project with every cell measured and the finding rendered."""
    shutil.copytree(_measured, tmp_path / "measured", symlinks=True)
    return Project(tmp_path / "measured")


@pytest.fixture
def prepared(measured) -> Project:
    """The tiny project with all that its cells need, and no cell measured."""
    for name in ("results/cells", "results/logs", "report/figures"):
        shutil.rmtree(measured.folder / name)
    for pattern in ("results/*.csv", "report/*.md", "report/*.html"):
        for file in measured.folder.glob(pattern):
            file.unlink()
    return measured


@pytest.fixture
def small_disk(tmp_path):
    """A function that mounts a disk of so many KiB at a folder and copies into it what was
    there.
    """
    with Disks(tmp_path) as disks:
        yield disks.small


@pytest.fixture
def read_only(tmp_path):
    """A function that makes a folder read-only, for root too."""
    with Disks(tmp_path) as disks:
        yield disks.read_only


def pytest_configure(config):
    """Each of several processes of tests begins to collect elsewhere: what pytest makes of a file's
    assertions takes long, and is kept for the others.
    """
    if config.args == ["tests"] and (name := os.environ.get("PYTEST_XDIST_WORKER")):
        files = sorted(str(file) for file in Path(__file__).parent.rglob("test_*.py"))
        first = int(name.removeprefix("gw")) * len(files) // config.workerinput["workercount"]
        config.args = files[first:] + files[:first]
        sys.dont_write_bytecode = False


def pytest_collection_modifyitems(items):
    """Long files first. Tests that inject a fault say which: the marker `fault`, for the table at
    the end.
    """
    places = {name: place for place, name in enumerate(LONG)}
    items.sort(key=lambda item: (places.get(item.path.name, len(LONG)), item.path))
    for item in items:
        if marker := item.get_closest_marker("fault"):
            item.user_properties.append(("fault", marker.args[0]))


def pytest_terminal_summary(terminalreporter):
    """Print how often each fault was injected, survived, and lost something (a test that
    failed).
    """
    counts = {outcome: Counter() for outcome in ("passed", "failed", "skipped")}
    for outcome, count in counts.items():
        for report in terminalreporter.getreports(outcome):
            if report.when == "call" or outcome != "passed":
                count.update(value for key, value in report.user_properties if key == "fault")
    passed, failed, skipped = counts.values()
    if not passed + failed + skipped:
        return
    terminalreporter.section("faults")
    line = "{:<100} {:>8} {:>8} {:>4}".format
    terminalreporter.write_line(line("fault", "injected", "survived", "lost"))
    for name in sorted({*passed, *failed, *skipped}):
        note = f"  ({skipped[name]} not possible here)" if skipped[name] else ""
        row = line(name, passed[name] + failed[name], passed[name], failed[name])
        terminalreporter.write_line(row + note)
    injected, survived, lost = (passed + failed).total(), passed.total(), failed.total()
    terminalreporter.write_line(line("all", injected, survived, lost))


def html_of(text: str, folder: Path, *given, results: Path | None = None, **named) -> str:
    """to_html(), of folders that are opened for it."""
    with contextlib.ExitStack() as opened:
        at, root = (each and opened.enter_context(open_root(each)) for each in (folder, results))
        return to_html(text, at, *given, results=root, **named)
