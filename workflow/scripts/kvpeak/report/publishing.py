"""A finding in a folder of its own, with all that it rests on."""

import csv
import json
import re
import shutil
from pathlib import Path

from kvpeak.base.errors import UserError

TABLES = ("plan.csv", "runs.csv", "summary.csv", "checks.csv")
RECORDS = ("envs/*/environment.json", "calibration/*.json", "replay/*.csv")
PICTURE = re.compile(
    r"(!\[(?:[^\]\\]|\\.)*\]\()([^)]+)(\))"
)  # an alt text may hold escaped brackets


def publish(matrix: Path, report: Path, results: Path, target: Path) -> int:
    """Write the folder anew; the number of files. Raises UserError where a part of the finding is missing."""
    experiment = (matrix, matrix.with_name("expected.yaml"))
    described = report.parent / "figures/figures.json"
    needed = (report, described, *(results / name for name in TABLES), *experiment)
    missing = [path for path in needed if not path.exists()]
    if missing:
        raise UserError(f"{missing[0]}: no such file; make it: make finding")
    shutil.rmtree(target, ignore_errors=True)
    (target / "figures").mkdir(parents=True)
    text = PICTURE.sub(
        lambda found: found[1] + picture(report.parent / found[2], target) + found[3],
        report.read_text(encoding="utf-8"),
    )
    (target / "finding.md").write_text(text, encoding="utf-8")
    (target / "config").mkdir()
    for path in experiment:
        shutil.copyfile(path, target / "config" / path.name)
    for path in files(results) + [results / source for source in sources(described)]:
        copy = target / "results" / path.relative_to(results)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text(text_of(path), encoding="utf-8")
    return sum(path.is_file() for path in target.rglob("*"))


def text_of(path: Path) -> str:
    """A file's text; a cell's record without the line breaks that make up most of it."""
    text = path.read_text(encoding="utf-8")
    return json.dumps(json.loads(text)) + "\n" if path.name == "cell.json" else text


def picture(path: Path, target: Path) -> str:
    """Copy a figure; its link from the document in `target`."""
    shutil.copyfile(path, target / "figures" / path.name)
    return f"figures/{path.name}"


def files(results: Path) -> list[Path]:
    """The tables, what says where they come from, and each measured cell's cell.json and runs.csv."""
    found = [results / name for name in TABLES]
    found += [path for pattern in RECORDS for path in sorted(results.glob(pattern))]
    with (results / "plan.csv").open(newline="", encoding="utf-8") as file:
        cells = [Path(row["path"]).relative_to("results") for row in csv.DictReader(file)]
    found += [results / cell / name for cell in cells for name in ("cell.json", "runs.csv")]
    return [path for path in found if path.exists()]


def sources(described: Path) -> list[str]:
    """The files below results/ that the figures of figures.json were drawn from."""
    figures = json.loads(described.read_text(encoding="utf-8"))
    return [source for figure in figures for source in figure.get("sources", ())]
