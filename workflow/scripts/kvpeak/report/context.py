"""What the finding says: from the tables and the cells' records to the values of the templates."""

import csv
import json
from collections import Counter
from pathlib import Path

import pandas as pd

from kvpeak.analysis.comparisons import compare
from kvpeak.analysis.history import histories
from kvpeak.analysis.lead import Lead, leading
from kvpeak.analysis.results import Results, read_results, read_table, rows
from kvpeak.analysis.statistics import MIN_OUTLIER_GROUP
from kvpeak.base.axes import AXES
from kvpeak.base.fields import split_texts
from kvpeak.base.kv_caches import kv_cache
from kvpeak.experiment.matrix import Matrix
from kvpeak.experiment.status import missing_cells
from kvpeak.report import sections, sources, tables
from kvpeak.report.answers import answers_section
from kvpeak.report.claims import claims_section
from kvpeak.report.growth import growth_section
from kvpeak.report.history import history_section
from kvpeak.report.limits import limits_section

NO_COMPARISON = Lead(
    "What these cells take",
    "The matrix compares nothing that was measured here; the tables show each cell.",
    None,
)

DEFAULT_MATRIX = "config/matrix.yaml"


def cell_path(row: dict) -> str:
    """A cell's path below results/cells/."""
    return "/".join(row[axis] for axis in AXES)


def context(matrix: Matrix, folder: Path, figures: Path) -> dict:
    """Everything the template may use, from the tables of `folder` (results/)."""
    results = read_results(folder / "plan.csv", folder / "summary.csv", folder / "runs.csv")
    plan = rows(read_table(folder / "plan.csv"))
    checks = rows(read_table(folder / "checks.csv"))
    summary = list(results.summary.values())
    records = sources.read_records(plan)
    comparisons = [compare(results, **entry) for entry in matrix.compare]
    comparisons = [comparison for comparison in comparisons if comparison.pairs]
    lead = leading(comparisons) or NO_COMPARISON
    calibrations = sources.calibrations(folder)
    return {
        "lead": lead,
        "matrix": matrix,
        "protocol": matrix.protocol,
        "expected": Path(matrix.file).with_name("expected.yaml"),
        "comparisons": [sections.comparison_section(comparison) for comparison in comparisons],
        "memory_table": tables.memory_table(summary),
        "answers": answers_section(records),
        "history": history_section(histories(results, releases_of(matrix))),
        "growth": growth_section(results),
        "limits": limits_section(summary, calibrations, sources.dtypes(records)),
        "claims": claims_section(checks),
        **measured(summary),
        **doubts(matrix, results, plan),
        "period": period(read_table(folder / "runs.csv")),
        **origin(folder, records),
        "commands": commands(matrix.file, records),
        "example": example(lead, matrix, summary),
        "figures": read_figures(figures),
        "replay": read_replay(folder) if sources.replayed(matrix) else None,
    }


def releases_of(matrix: Matrix) -> dict[str, str]:
    """commit → engine, in the matrix's order."""
    return {name: entry["engine"] for name, entry in matrix.commits.items()}


def measured(summary: list[dict]) -> dict:
    """What was measured: the cells and the names on their axes."""
    return {
        "summary": summary,
        "engines": sources.engines(summary),
        "methods": names_of(summary, "method"),
        "variants": names_of(summary, "variant"),
        "kv_caches": names_of(summary, "kv_cache"),
        "kv_cache_words": {name: kv_cache(name).words for name in names_of(summary, "kv_cache")},
        "caps": names_of(summary, "cap"),
        "machines": names_of(summary, "machine"),
        "harness": names_of(summary, "harness"),
        "dirty": any(row["dirty"] == "yes" for row in summary),
        "single": {axis: names[0] for axis in AXES if len(names := names_of(summary, axis)) == 1},
        # several: cells ran side by side
        "gpus": len(names_of(summary, "gpu")),
    }


def doubts(matrix: Matrix, results: Results, plan: list[dict]) -> dict:
    """What did not end well, was not measured, or is doubtful."""
    summary = list(results.summary.values())
    return {
        "outcomes": [row for row in summary if row["outcome"] != "ok"],
        "flagged": flagged(summary),
        "far_off": [
            {"row": row, "runs": results.outliers[cell]}
            for cell, row in results.summary.items()
            if cell in results.outliers
        ],
        "runs_too_few": all(row["runs"] < MIN_OUTLIER_GROUP for row in summary),
        "not_here": not_here(plan),
        "missing": list(missing_cells(matrix)),
        "unmeasured": unmeasured(plan, results.summary),
        "planned": len({cell_path(row) for row in plan}),
        "fewer": [row for row in summary if row["rounds"] < matrix.protocol["processes"]],
    }


def origin(folder: Path, records: list[dict]) -> dict:
    """Where the results come from."""
    return {
        "models": sources.models(records),
        "prompts": sources.prompts(records),
        "environments": sources.environments(folder),
        "builds": sources.builds(folder),
    }


def commands(matrix_file: Path | str, records: list[dict]) -> dict[str, str]:
    """What runs this matrix again: with make, with Snakemake, and one cell of it."""
    config = "" if str(matrix_file) == DEFAULT_MATRIX else f"matrix={matrix_file}"
    versions = {name for record in records for name in record["engine"].get("versions", {})}
    accel = [
        f"ACCEL={name[4:].replace('-', '')}" for name in versions if name.startswith("mlx-cuda-")
    ]
    option = f" --config {config}" if config else ""
    return {
        "make": " ".join(
            ["make finding", *accel, *([config.replace("matrix", "MATRIX", 1)] if config else [])]
        ),
        "snakemake": f"snakemake --cores 1 report/finding.md{option}",
        "force": f"snakemake --cores 1{option} --force",
    }


def read_figures(folder: Path) -> list[dict]:
    """The figures that plot.py drew: file, about, title, alt, caption."""
    path = folder / "figures.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else []


def read_replay(folder: Path) -> dict[str, list[dict]] | None:
    """The replay's tables by name, None if there is no replay."""
    tables = {}
    for path in sorted((folder / "replay").glob("*.csv")):
        with path.open(newline="", encoding="utf-8") as file:
            tables[path.stem] = list(csv.DictReader(file))
    return tables or None


def names_of(summary: list[dict], column: str) -> list[str]:
    """The different names in a column; several in one field are split."""
    fields = (row[column] for row in summary if row[column] is not None)
    return list(dict.fromkeys(name for field in fields for name in split_texts(field)))


def not_here(plan: list[dict]) -> list[dict]:
    """Why planned cells do not run here, the most frequent reason first."""
    cells = {cell_path(row): row["reason"] for row in plan if row["reason"]}
    reasons = Counter(cells.values())
    return [{"reason": reason, "cells": count} for reason, count in reasons.most_common()]


def unmeasured(plan: list[dict], measured: dict) -> int:
    """How many cells run here and have no result."""
    here = {tuple(row[axis] for axis in AXES) for row in plan if row["runs_here"] == "yes"}
    return len(here - measured.keys())


def flagged(summary: list[dict]) -> dict:
    """The flagged cells by the kind of flag (its first word), and one example of each."""
    kinds: dict[str, list[dict]] = {}
    for row in summary:
        for kind in dict.fromkeys(flag.split(":")[0] for flag in split_texts(row["flags"])):
            kinds.setdefault(kind, []).append(row)
    return {
        "cells": sum(bool(row["flags"]) for row in summary),
        "kinds": [{"kind": kind, "rows": found} for kind, found in kinds.items()],
    }


def period(runs: pd.DataFrame) -> dict | None:
    """When the first and the last cell started (UTC dates)."""
    starts = runs["started_at"].dropna()
    return {"first": starts.min()[:10], "last": starts.max()[:10]} if len(starts) else None


def example(lead: Lead, matrix: Matrix, summary: list[dict]) -> str | None:
    """The path of the cell that the lead is about, else of the first one; None without cells."""
    row = lead.pair.before if lead.pair else summary[0] if summary else None
    return row and f"results/cells/{cell_path(row)}/r1/runs.csv"
