"""kvpeak plot as it is called, on the small result set and a folder of two cells made here."""

import json
import shutil
from pathlib import Path

import pytest

from kvpeak.base.program import main
from kvpeak.commands import plot
from kvpeak.report.timelines import read_timeline

ROOT = Path(__file__).parents[1]
SMALL = ROOT / "tests/data/small"
MATRIX = """
commits: {mlx-0.32.4: {engine: mlx}}
models: {tiny: {kind: random, config: tiny.json}}
prompts: {alice-512: {tokens: 513, corpus: corpus.txt}}
kv_caches: [cat, prealloc]
caps: [none, 32MiB]
variants: {default: {}}
compare: [{axis: cap, before: none, after: 32MiB}]
"""
RECORD = {
    "engine": {"device": {"accelerator": "cpu"}},
    "phases": [{"phase": "load", "start_s": 0.1, "end_s": 0.5}],
    "request": {"protocol": {"warmup": 1}},
}
MEMORY = """t_s,phase,footprint_mib,rss_mib,device_mib
0.000,start,2.00,2.00,
0.200,load,{peak}.00,20.00,7.00
"""


@pytest.fixture
def project(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config").mkdir()
    (tmp_path / "config/matrix.yaml").write_text(MATRIX)
    (tmp_path / "tiny.json").write_text("{}")
    (tmp_path / "corpus.txt").write_text("a" * 1000)
    shutil.copytree(SMALL, tmp_path / "results")
    for cap, peak in (("none", 990), ("32MiB", 430)):
        folder = tmp_path / f"results/cells/mlx-0.32.4/tiny/alice-512/cat/{cap}/default/r1"
        folder.mkdir(parents=True)
        (folder / "cell.json").write_text(json.dumps(RECORD))
        (folder / "memory.csv").write_text(MEMORY.format(peak=peak))
    return tmp_path


def run(*arguments):
    return main(plot, [*arguments])


def test_every_figure_is_written_and_described(project):
    (project / "report/figures").mkdir(parents=True)
    (project / "report/figures/of-an-earlier-time.svg").write_text("<svg/>")
    assert run() == 0
    described = json.loads((project / "report/figures/figures.json").read_text())
    assert [figure["file"] for figure in described] == [
        "peak-by-length-cap-none-32MiB.svg",
        "where-bytes-are-cap-none-32MiB.svg",
        "memory-over-time.svg",
        "peak-by-counter-cap-none-32MiB.svg",
        "speed-ratio-cap-none-32MiB.svg",
    ]
    keys = {"file", "title", "alt", "caption", "about", "sources"}
    assert all(set(figure) == keys for figure in described)
    assert all(figure[name] for figure in described for name in ("title", "alt", "caption"))
    assert "no cap, default: up to 990 MiB" in described[2]["alt"]
    assert [source.split("/")[-4] for source in described[2]["sources"]] == ["none", "32MiB"]
    assert all((project / "results" / source).is_file() for source in described[2]["sources"])
    written = {file.name for file in (project / "report/figures").iterdir()}
    assert written == {figure["file"] for figure in described} | {"figures.json"}


def test_under_cuda_the_device_is_drawn(project):
    folder = next((project / "results/cells").rglob("none/default/r1"))
    record = RECORD | {"engine": {"device": {"accelerator": "cuda"}}}
    (folder / "cell.json").write_text(json.dumps(record))
    assert read_timeline(folder, "a").mib == [7.0]


def test_without_results_there_is_no_figure(project):
    for name in ("summary.csv", "runs.csv"):
        table = project / "results" / name
        table.write_text(table.read_text().splitlines()[0] + "\n")
    assert run() == 0
    assert [file.name for file in (project / "report/figures").iterdir()] == ["figures.json"]
    assert json.loads((project / "report/figures/figures.json").read_text()) == []


def test_a_mistake_is_one_line(project, capsys):
    assert run("--summary", "nowhere.csv") == 1
    assert capsys.readouterr().err.startswith(
        "plot: nowhere.csv: No such file or directory; make it"
    )
