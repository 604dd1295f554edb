"""A finding with all that it rests on, in a folder of its own.

What is copied may come from a stranger: every source lies inside the folder that it is said to lie
in, and no link is followed out of it. The new folder is made beside the old one and takes its place
when it is complete.
"""

import json
import re
import shutil
import tempfile
from pathlib import Path

from kvpeak.base.columns import PLAN
from kvpeak.base.errors import UserError
from kvpeak.base.files import inside, write_text
from kvpeak.base.layout import MEMORY_FILE
from kvpeak.base.untrusted import read_csv, read_json, read_text

TABLES = ("plan.csv", "runs.csv", "processes.csv", "summary.csv", "checks.csv")
RECORDS = (
    *("envs/*/environment.json", "calibration/*.json", "instruments/*.json", "replay/*.csv"),
    *("pools/*.csv", "fits.csv", "turns.csv"),
)
KEPT = "README.md"  # written by hand, and kept when a finding is published again
BESIDE = ("details.md", "finding.html")  # where they are there
# ![alt](target), where the alt text may hold escaped brackets
PICTURE = re.compile(r"(!\[(?:[^\]\\]|\\.)*\]\()([^)]+)(\))")


def publish(matrix: Path, report: Path, results: Path, target: Path) -> int:
    """Write the folder `target` anew; returns the number of its files.

    `report` is finding.md; the other documents and the figures lie beside it. Raises UserError
    where a part of the finding is missing or leads out of its folder; then an earlier `target`
    stays as it was.
    """
    for path in (report, *(results / name for name in TABLES)):
        if not path.exists():
            raise UserError(f"{path}: no such file; make it: make finding")
    if target.is_symlink():
        raise UserError(f"{target}: is a link; expected a folder or nothing")
    target.parent.mkdir(parents=True, exist_ok=True)
    new = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    try:
        for path in (report, *(report.with_name(name) for name in BESIDE)):
            if path.exists():
                _copy_document(path, results, new)
        for path in (matrix, matrix.with_name("expected.yaml")):
            write_text(new / "config" / path.name, _text_of(path))
        if (target / KEPT).exists():
            write_text(new / KEPT, read_text(inside(target, KEPT)))
        for path in [*_files(results), *_sources(report.parent, results)]:
            write_text(new / "results" / path, _text_of(inside(results, path)))
        _replace(target, new)
    except BaseException:
        shutil.rmtree(new, ignore_errors=True)
        raise
    return sum(path.is_file() for path in target.rglob("*"))


def _copy_document(document: Path, results: Path, new: Path) -> None:
    """A document and the figures that it shows; their links are made to work in the folder
    `new`.
    """

    def copied(found: re.Match) -> str:
        source = document.parent / found[2]
        near = source.resolve().is_relative_to(results.resolve())
        root, name = (
            (results, source.resolve().relative_to(results.resolve()))
            if near
            else (document.parent, found[2])
        )
        write_text(new / "figures" / source.name, _text_of(inside(root, name)))
        return f"{found[1]}figures/{source.name}{found[3]}"

    text = _text_of(document)
    write_text(new / document.name, PICTURE.sub(copied, text) if document.suffix == ".md" else text)


def _files(results: Path) -> list[Path]:
    """What is copied of the results, relative to their folder: the tables, what says where they
    come from, each process's cell.json and runs.csv, and the timeline of each cell's first, from
    which lines on growth and the page's charts are made.
    """
    found = [Path(name) for name in TABLES]
    for pattern in RECORDS:
        found += [path.relative_to(results) for path in sorted(results.glob(pattern))]
    for row in read_csv(results / "plan.csv", PLAN.names):
        folder = inside(results.parent, row["path"]).relative_to(results.parent.resolve())
        cell = Path(*folder.parts[1:])
        found += [cell / name for name in ("cell.json", "runs.csv")]
        found += [cell / MEMORY_FILE] * (row["round"] == "1")
    return [path for path in found if (results / path).exists()]


def _sources(report: Path, results: Path) -> list[Path]:
    """The files below results/ that the figures were drawn from."""
    described = report / "figures/figures.json"
    figures = read_json(described) if described.exists() else []
    if not isinstance(figures, list):
        raise UserError(f"{described}: expected a list of figures")
    named = [source for figure in figures for source in figure.get("sources", ())]
    return [path for path in map(Path, named) if inside(results, path).exists()]


def _text_of(path: Path) -> str:
    """A file's text; a cell's record without the line breaks that make up most of it."""
    if path.name == "cell.json":
        return json.dumps(read_json(path)) + "\n"
    try:
        return read_text(path)
    except FileNotFoundError:
        raise UserError(f"{path}: no such file; make it: make finding") from None


def _replace(target: Path, new: Path) -> None:
    """Put the folder `new` in the place of `target`."""
    new.chmod(0o755)
    if not target.exists():
        new.rename(target)
        return
    old = Path(tempfile.mkdtemp(prefix=f".{target.name}.old.", dir=target.parent))
    target.rename(old / target.name)
    new.rename(target)
    shutil.rmtree(old)
