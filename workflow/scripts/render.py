"""Render report/finding.md from the tables and the cells' records. Nothing in the document is written by hand."""

import argparse
import csv
import json
import sys
from collections import Counter
from pathlib import Path

import jinja2

from kvpeak import markdown
from kvpeak.comparisons import SPEED_NAMES, Comparison, Lead, Pair, compare, lead
from kvpeak.errors import UserError
from kvpeak.files import write_together
from kvpeak.markdown import Markdown, code, number
from kvpeak.matrix import AXES, Matrix, load_matrix
from kvpeak.results import SPEEDS, read_results, read_table, rows

SHOWN_CELLS = 60  # a longer table is left to results/summary.csv
MEMORY_COLUMNS = (
    ("peak_footprint_mib", "Footprint"),
    ("peak_device_mib", "Device"),
    ("peak_pool_mib", "Pool"),
    ("peak_active_mib", "Active"),
    ("peak_rss_mib", "RSS"),
    ("loaded_mib", "Loaded"),
)


NO_COMPARISON = Lead(
    "What these cells take",
    "The matrix compares nothing that was measured here; the tables show each cell.",
    None,
)


def environment() -> jinja2.Environment:
    """Jinja that refuses undefined variables and escapes every value for Markdown."""
    jinja = jinja2.Environment(
        loader=jinja2.FileSystemLoader("report/templates"),
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
        "percent": markdown.percent,
        "listed": listed,
    }
    jinja.globals["table"] = markdown.table
    return jinja


def listed(values) -> Markdown:
    """'a, b and c' in code marks."""
    *first, last = [code(value) for value in values]
    return Markdown(f"{', '.join(first)} and {last}" if first else last)


def context(matrix: Matrix, folder: Path, figures: Path) -> dict:
    """Everything the template may use, from the tables of `folder` (results/)."""
    results = read_results(folder / "plan.csv", folder / "summary.csv", folder / "runs.csv")
    plan = rows(read_table(folder / "plan.csv"))
    summary = rows(read_table(folder / "summary.csv"))
    records = [record for row in plan if (record := read_record(row))]
    comparisons = [compare(results, **entry) for entry in matrix.compare]
    comparisons = [comparison for comparison in comparisons if comparison.pairs]
    return {
        "lead": lead(comparisons[0]) if comparisons else NO_COMPARISON,
        "matrix": matrix,
        "protocol": matrix.protocol,
        "comparisons": [section(comparison) for comparison in comparisons],
        "summary": summary,
        "memory_table": memory_table(summary),
        "outcomes": [row for row in summary if row["outcome"] != "ok"],
        "flagged": [row for row in summary if row["flags"]],
        "checks": rows(read_table(folder / "checks.csv")),
        "not_here": not_here(plan),
        "planned": len(plan),
        "machines": distinct(record["machine"]["before"]["name"] for record in records),
        "engines": engines(records),
        "models": models(records),
        "harness": distinct(harness(record) for record in records),
        "revision": revision(records),
        "period": period(records),
        "builds": builds(folder),
        "single": {axis: names[0] for axis in AXES if len(names := names_of(summary, axis)) == 1},
        "untestable": [row for row in read_checks(folder) if row["verdict"] == "not testable"],
        "figures": read_figures(figures),
        "replay": read_replay(folder),
    }


def read_record(row: dict) -> dict | None:
    """The cell.json of a planned cell, None if it was not measured."""
    path = Path(row["path"], "cell.json")
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


def read_checks(folder: Path) -> list[dict]:
    return rows(read_table(folder / "checks.csv"))


def read_figures(folder: Path) -> list[dict]:
    """The figures that plot.py drew: file, title, alt, caption."""
    path = folder / "figures.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else []


def read_replay(folder: Path) -> dict[str, list[dict]] | None:
    """The replay's tables by name, None if there is no replay."""
    tables = {}
    for path in sorted((folder / "replay").glob("*.csv")):
        with path.open(newline="", encoding="utf-8") as file:
            tables[path.stem] = list(csv.DictReader(file))
    return tables or None


def section(comparison: Comparison) -> dict:
    """One comparison as the template shows it: heading, table and what was found."""
    pairs = sorted(comparison.pairs, key=lambda pair: -abs(pair.peak_change_mib or 0))
    shown = [pair for pair in comparison.pairs if pair in pairs[:SHOWN_CELLS]]
    axes = [
        axis
        for axis in AXES
        if axis != comparison.axis and len({pair.names[axis] for pair in comparison.pairs}) > 1
    ]
    header = [axis.replace("_", " ") for axis in axes]
    header += ["peak before", "after", "after / before", "pool before", "after"]
    header += [f"{name}, {unit}" for name, unit in SPEED_NAMES.values()]
    body = [comparison_row(pair, axes) for pair in shown]
    return {
        "axis": comparison.axis,
        "before": comparison.before,
        "after": comparison.after,
        "found": lead(comparison).sentence,
        "table": markdown.table(header, body, " " * len(axes) + "r" * 8),
        "left_out": len(pairs) - len(shown),
        "flagged": any(pair.flags for pair in shown),
    }


def comparison_row(pair: Pair, axes: list[str]) -> list:
    """One pair of cells as a row: names, peaks, pools, and each speed with what may be said of it."""
    before, after = pair.before or {}, pair.after or {}
    flag = Markdown(" ⚑") if pair.flags else Markdown("")
    names = [code(pair.names[axis]) for axis in axes]
    if names:
        names[0] = Markdown(names[0] + flag)
    return [
        *names,
        peak_or_outcome(before),
        peak_or_outcome(after),
        markdown.times(pair.peak_ratio),
        number(before.get("peak_pool_mib")),
        number(after.get("peak_pool_mib")),
        *(speed(pair, column) for column in SPEEDS),
    ]


def peak_or_outcome(row: dict) -> Markdown:
    """The cell's peak in MiB, or why it has none."""
    if not row:
        return Markdown("not run")
    if row["outcome"] != "ok":
        return Markdown(f"{markdown.escape(row['outcome'])} at {number(row['peak_mib'])}")
    return number(row["peak_mib"])


def speed(pair: Pair, column: str) -> Markdown:
    """E.g. 85.9 → 88.3, with the verdict where there are enough processes for one."""
    change = pair.speeds.get(column)
    if not change:
        return Markdown("–")
    text = f"{number(change.before, 1)} → {number(change.after, 1)}"
    return Markdown(text if change.verdict == "not testable" else f"{text}, {change.verdict}")


def memory_table(summary: list[dict]) -> Markdown:
    """Every measured cell by every counter that has a value anywhere, MiB."""
    columns = [
        (key, title)
        for key, title in MEMORY_COLUMNS
        if any(row[key] is not None for row in summary)
    ]
    axes = [axis for axis in AXES if len(names_of(summary, axis)) > 1] or ["kv_cache"]
    header = [*(axis.replace("_", " ") for axis in axes), *(title for _, title in columns)]
    body = [
        [*(code(row[axis]) for axis in axes), *(number(row[key]) for key, _ in columns)]
        for row in summary[:SHOWN_CELLS]
    ]
    return markdown.table(header, body, " " * len(axes) + "r" * len(columns))


def names_of(summary: list[dict], axis: str) -> list[str]:
    return distinct(row[axis] for row in summary)


def not_here(plan: list[dict]) -> list[dict]:
    """Why planned cells do not run here, the most frequent reason first."""
    reasons = Counter(row["reason"] for row in plan if row["reason"])
    return [{"reason": reason, "cells": cells} for reason, cells in reasons.most_common()]


def engines(records: list[dict]) -> list[dict]:
    """What each commit ran: packages, device, and what else its engine said of itself."""
    by_commit = {record["cell"]["commit"]: record for record in reversed(records)}
    found = []
    for commit in distinct(record["cell"]["commit"] for record in records):
        engine = by_commit[commit]["engine"]
        found.append(
            {
                "commit": commit,
                "versions": engine.get("versions", {}),
                "device": engine.get("device", {}),
                "blas": engine.get("blas"),
            }
        )
    return found


def models(records: list[dict]) -> list[dict]:
    """Each measured model: weights, dtype, and the hash of its folder."""
    by_model = {record["cell"]["model"]: record for record in reversed(records)}
    return [
        {
            "name": name,
            "weights": record["request"]["model"]["weights"],
            "kind": record["request"]["model"]["kind"],
            "dtype": record["engine"].get("dtype"),
            "sha256": (record.get("inputs") or {}).get("model_sha256"),
        }
        for name, record in sorted(by_model.items())
    ]


def harness(record: dict) -> str:
    """Version and revision of kvpeak that measured a cell."""
    made = record["harness"]
    revision = (made["revision"] or "no git revision")[:12]
    return f"kvpeak {made['version']}, {revision}{', with uncommitted changes' if made['dirty'] else ''}"


def revision(records: list[dict]) -> str:
    """The git revision of kvpeak that measured the last cell."""
    revisions = [
        record["harness"]["revision"] for record in records if record["harness"]["revision"]
    ]
    return revisions[-1] if revisions else "main"


def period(records: list[dict]) -> dict | None:
    """When the first and the last cell started (UTC dates)."""
    starts = sorted(record["started_at"][:10] for record in records)
    return {"first": starts[0], "last": starts[-1]} if starts else None


def builds(folder: Path) -> list[dict]:
    """What was built for external engines."""
    paths = sorted((folder / "engines").glob("*/engine.json"))
    return [json.loads(path.read_text(encoding="utf-8")) for path in paths]


def distinct(values) -> list:
    return list(dict.fromkeys(values))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--matrix", default="config/matrix.yaml", help="default: %(default)s")
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
    write_together(arguments.out.parent, {arguments.out.name: text})
    return 0


if __name__ == "__main__":
    sys.exit(main())
