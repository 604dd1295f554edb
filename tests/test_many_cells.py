"""The benchmark of many cells makes cells that the analysis takes for real ones; what it measures
is for a person to read.
"""

import csv
from pathlib import Path

import many_cells

from kvpeak.base.program import main
from kvpeak.commands import aggregate, plan


def test_every_cell_that_is_made_up_is_gathered(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # and back, whatever the benchmark makes the working directory
    many_cells.make_project(tmp_path / "project", 40)
    many_cells.measure_cells()
    assert main(plan, ["--out", "results/plan.csv"]) == 0
    assert main(aggregate, []) == 0
    with Path("results/summary.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 40
    assert {row["outcome"] for row in rows} == {"ok"}
    assert all(float(row["decode_tok_s"]) > 0 and int(row["prefill_flops"]) > 0 for row in rows)
