"""How planning and analysis grow with the number of cells: time and memory of each step, from cells
made up here.

    PYTHONPATH=tests python tests/bench/many_cells.py 1000 10000 50000

The cells' files have the real formats and sizes; nothing is measured. The limits that the project
set itself for 10,000 cells: plan and dry run 12 s and 300 MiB, aggregate + check + figures + render
30 s and 1 GiB.
"""

import argparse
import csv
import io
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import yaml
from conftest import Project

from kvpeak.base.axes import Cell
from kvpeak.base.columns import MEMORY, RUNS
from kvpeak.base.files import sha256_of
from kvpeak.base.made import note_made_here
from kvpeak.experiment.matrix import load_matrix

ROOT = Path(__file__).parents[2]

SCRIPTS = "workflow/scripts"
DRY_RUN = ["-m", "snakemake", "--cores", "1", "-n", "--quiet", "all"]
STEPS = {
    "plan": [f"{SCRIPTS}/plan.py", "--out", "results/plan.csv"],
    "dry again": DRY_RUN,
    "aggregate": [f"{SCRIPTS}/aggregate.py"],
    "check": [f"{SCRIPTS}/check.py"],
    "figures": [f"{SCRIPTS}/plot.py", "--out", "report/figures"],
    "render": [f"{SCRIPTS}/render.py"],
}
ANALYSIS = ("aggregate", "check", "figures", "render")
GENERATE, RUN_COUNT, SAMPLES = 128, 4, 150
KV_BYTES = 2 * 2 * 2 * 16 * 4  # of the tiny model: layers, KV heads, head size, float32
CLAIMS = [
    {
        "claim": "A growing cache's peak exceeds prealloc's",
        "kind": "pool-growth",
        "of": {"kv_cache": "cat", "cap": "none"},
        "to": {"kv_cache": "prealloc"},
        "column": "peak_mib",
        "tolerance_pct": 10,
    },
    {
        "claim": "With the cap the caches have almost the same peak",
        "kind": "spread",
        "of": {"cap": "32MiB"},
        "across": "kv_cache",
        "column": "peak_mib",
        "tolerance_pct": 10,
    },
    {
        "claim": "No cache and no cap changes the tokens",
        "kind": "same-tokens",
        "of": {},
        "across": ["kv_cache", "cap"],
    },
    {
        "claim": "The cap does not change the decode speed",
        "kind": "equivalence",
        "of": {"cap": "32MiB"},
        "to": {"cap": "none"},
        "column": "decode_tok_s",
        "margin_pct": 5,
        "fold": True,
    },
]


def matrix_of(count: int) -> dict:
    """A matrix of `count` cells: models × prompts × 2 caches × 2 caps."""
    prompts = min(250, count // 40)
    models = count // (4 * prompts)
    entry = {"kind": "random", "config": "config/models/tiny.json", "dtype": "float32"}
    return {
        "commits": {"mlx-0.32.4": {"engine": "mlx"}},
        "models": {f"m{number}": entry for number in range(models)},
        "prompts": {f"p{tokens}": {"tokens": tokens} for tokens in range(17, 17 + prompts)},
        "kv_caches": ["cat", "prealloc"],
        "caps": ["none", "32MiB"],
        "variants": {"default": {}},
        "compare": [{"axis": "cap", "before": "none", "after": "32MiB"}],
        "protocol": {"generate": GENERATE},
    }


def make_project(folder: Path, count: int) -> None:
    """A project of so many cells, none of them measured; it becomes the working directory."""
    project = Project.make(folder)
    project.set_matrix(matrix_of(count))
    project.write(
        "config/expected.yaml",
        yaml.safe_dump({"claims": [c | {"source": "made up"} for c in CLAIMS]}),
    )
    os.chdir(folder)


def measure_cells() -> None:
    """Give every cell of the working directory's project its results."""
    matrix = load_matrix()
    model = Path("config/models/tiny.json").read_text()
    for name in matrix.models:
        write(Path("models", name, "config.json"), model)
        write(Path("models", name, "model.json"), json.dumps({"name": name}))
        note_made_here(Path("models", name, "model.json"))
        for prompt in matrix.prompts:
            write(Path("prompts", name, f"{prompt}.json"), "{}")
    write(
        Path("results/envs/mlx-0.32.4/environment.json"),
        json.dumps({"commit": "mlx-0.32.4", "freeze": []}),
    )
    chance = random.Random(0)
    record = json.loads((ROOT / "tests/data/cell.json").read_text())
    record["inputs"]["shapes_sha256"] = sha256_of(Path("config/models/tiny.json"))
    for order, cell in enumerate(matrix.cells_here):
        write_cell(cell, matrix.request(cell), order, record, chance)


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def write_cell(cell: Cell, request: dict, order: int, record: dict, chance: random.Random) -> None:
    """The three files of a cell, as run_cell.py writes them: peaks as the shapes say, speeds that
    vary.
    """
    folder, tokens = Path("results/cells", cell.path), request["prompt"]["tokens"]
    grown = sum(KV_BYTES * (tokens + step) for step in range(GENERATE - 1)) / 2**20
    pool = 20 + (grown if (cell.kv_cache, cell.cap) == ("cat", "none") else 0)
    runs = [
        {
            **cell.as_dict(),
            "run": run,
            "warmup": "true" if run == 0 else "false",
            "prompt_tokens": tokens,
            "generated_tokens": GENERATE,
            "prefill_s": 0.05,
            "prefill_tok_s": chance.gauss(2000, 100),
            "ttft_ms": 51,
            "decode_s": 2,
            "decode_tok_s": chance.gauss(60, 3),
            "tokens_sha256": "ab" * 32,
            "peak_active_mib": 20,
            "peak_pool_mib": pool,
            "order": order,
            "started_at": "2026-11-30T07:26:57.250Z",
        }
        for run in range(RUN_COUNT)
    ]
    ids = [chance.randrange(4096) for _ in range(GENERATE)]
    events = [{"event": "run", "run": run, "tokens": ids} for run in range(RUN_COUNT)]
    memory = record["memory"] | {
        "peak_footprint_mib": pool + 40,
        "peak_pool_mib": pool,
        "peak_active_mib": 20,
    }
    told = {"cell": cell.as_dict(), "request": request, "memory": memory}
    text = json.dumps(record | told | {"events": record["events"] + events}, indent=1)
    samples = [{"t_s": t / 50, "phase": "decode-0", "footprint_mib": pool} for t in range(SAMPLES)]
    write(folder / "memory.csv", table(MEMORY.names, samples))
    write(folder / "cell.json", text)
    write(folder / "runs.csv", table(RUNS.names, runs))


def table(names: tuple[str, ...], rows: list[dict]) -> str:
    out = io.StringIO()
    writer = csv.DictWriter(out, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


def measured(command: list[str]) -> tuple[float, float, float]:
    """Seconds, processor seconds and MiB of a program that has to succeed."""
    began = time.perf_counter()
    with tempfile.TemporaryFile() as said:
        child = subprocess.Popen([sys.executable, *command], stdout=said, stderr=said)
        _, status, usage = os.wait4(child.pid, 0)
        if status:
            said.seek(0)
            sys.exit(f"{' '.join(command)}:\n{said.read().decode()[-2000:]}")
    mib = usage.ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)
    return time.perf_counter() - began, usage.ru_utime + usage.ru_stime, mib


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("counts", nargs="*", type=int, default=[1000, 10000, 50000])
    found = {}
    counts = parser.parse_args().counts
    for count in counts:
        with tempfile.TemporaryDirectory() as folder:
            make_project(Path(folder, "project"), count)
            found[count] = {"dry run": measured(DRY_RUN)}
            measure_cells()
            found[count] |= {name: measured(command) for name, command in STEPS.items()}
            lines = Path("report/finding.md").read_text(encoding="utf-8").count("\n")
            os.chdir(ROOT)
        print(f"{count:,} cells, a finding of {lines} lines")
        print("  step             s   CPU s     MiB")
        total = [sum(found[count][name][i] for name in ANALYSIS) for i in (0, 1)]
        rows = found[count] | {"analysis": (*total, max(found[count][n][2] for n in ANALYSIS))}
        for name, (seconds, cpu, mib) in rows.items():
            print(f"  {name:10} {seconds:7.1f} {cpu:7.1f} {mib:7.0f}", flush=True)


if __name__ == "__main__":
    main()
