"""Render report/finding.md from the tables and the cells' records. Nothing in the document is written by hand."""

import argparse
import csv
import json
import sys
from collections import Counter
from pathlib import Path

import jinja2
import pandas as pd

from kvpeak.analysis.comparisons import PRACTICAL, Lead, compare, leading
from kvpeak.analysis.results import read_results, read_table, rows
from kvpeak.analysis.statistics import MIN_OUTLIER_GROUP
from kvpeak.base.axes import AXES
from kvpeak.base.errors import UserError
from kvpeak.base.files import write_together
from kvpeak.base.kv_caches import kv_cache
from kvpeak.base.numbers import percent
from kvpeak.experiment.matrix import Matrix, load_matrix
from kvpeak.experiment.status import missing_cells
from kvpeak.report import markdown, sections, sources
from kvpeak.report.markdown import Markdown, code, number

TEMPLATES = "report/templates"
NO_COMPARISON = Lead(
    "What these cells take",
    "The matrix compares nothing that was measured here; the tables show each cell.",
    None,
)

DEFAULT_MATRIX = "config/matrix.yaml"
FAR_OFF_SHOWN = 12  # cells with a far-off run; the others are only counted


def environment(templates: str = TEMPLATES) -> jinja2.Environment:
    """Jinja that refuses undefined variables and escapes every value for Markdown."""
    jinja = jinja2.Environment(
        loader=jinja2.FileSystemLoader(templates),
        undefined=jinja2.StrictUndefined,
        finalize=markdown.escape,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    jinja.filters |= {
        "code": code,
        "number": number,
        "times": markdown.times,
        "percent": percent,
        "listed": listed,
        "cell_path": cell_path,
        "picture": picture,
        "verbatim": verbatim,
    }
    jinja.globals |= {
        "table": markdown.table,
        "SHOWN": sections.SHOWN,
        "FAR_OFF_SHOWN": FAR_OFF_SHOWN,
        "PRACTICAL": PRACTICAL,
        "MIN_OUTLIER_GROUP": MIN_OUTLIER_GROUP,
    }
    return jinja


def listed(values) -> Markdown:
    """'a, b and c' in code marks."""
    *first, last = [code(value) for value in values]
    return Markdown(f"{', '.join(first)} and {last}" if first else last)


def picture(figure: dict) -> Markdown:
    """A drawn figure, its alt text escaped."""
    return Markdown(f"![{markdown.escape(figure['alt'])}](figures/{figure['file']})")


def verbatim(value) -> Markdown:
    """One line inside a block of code, where nothing is markup."""
    return Markdown(" ".join(str(value).split()))


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
        "summary": summary,
        "memory_table": sections.memory_table(summary),
        "growth": sections.growth_section(results),
        "limits": sections.limits_section(summary, calibrations, sources.dtypes(records)),
        "claims": sections.claims_section(checks),
        "outcomes": [row for row in summary if row["outcome"] != "ok"],
        "flagged": flagged(summary),
        "gpus": len(names_of(summary, "gpu")),  # several: cells ran side by side
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
        "methods": names_of(summary, "method"),
        "variants": names_of(summary, "variant"),
        "kv_caches": names_of(summary, "kv_cache"),
        "kv_cache_words": {c: kv_cache(c).words for c in names_of(summary, "kv_cache")},
        "caps": names_of(summary, "cap"),
        "machines": names_of(summary, "machine"),
        "harness": names_of(summary, "harness"),
        "dirty": any(row["dirty"] == "yes" for row in summary),
        "single": {axis: names[0] for axis in AXES if len(names := names_of(summary, axis)) == 1},
        "period": period(read_table(folder / "runs.csv")),
        "engines": sources.engines(summary),
        "models": sources.models(records),
        "prompts": sources.prompts(records),
        "environments": sources.environments(folder),
        "builds": sources.builds(folder),
        "commands": commands(matrix.file, records),
        "example": example(lead, matrix, summary),
        "figures": read_figures(figures),
        "replay": read_replay(folder) if sources.replayed(matrix) else None,
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
    return list(dict.fromkeys(name for field in fields for name in field.split("; ")))


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
        for kind in dict.fromkeys(
            flag.split(":")[0] for flag in (row["flags"] or "").split("; ") if flag
        ):
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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--matrix", default=DEFAULT_MATRIX, help="default: %(default)s")
    parser.add_argument(
        "--results", type=Path, default=Path("results"), help="default: %(default)s"
    )
    parser.add_argument(
        "--out", type=Path, default=Path("report/finding.md"), help="default: %(default)s"
    )
    arguments = parser.parse_args()
    try:
        matrix = load_matrix(arguments.matrix)
        text = (
            environment()
            .get_template("finding.md.j2")
            .render(context(matrix, arguments.results, arguments.out.parent / "figures"))
        )
    except (UserError, jinja2.TemplateError) as error:
        print(f"{arguments.out}: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"{error.filename}: {error.strerror}; make it: snakemake --cores 1", file=sys.stderr)
        return 1
    try:
        write_together(arguments.out.parent, {arguments.out.name: text})
    except OSError as error:
        print(f"{error.filename}: {error.strerror}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
