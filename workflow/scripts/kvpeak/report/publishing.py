"""A finding with all that it rests on, in a folder of its own.

What is copied may come from a stranger: every source lies inside the folder that it is said to lie
in, and no link is followed out of it. Tables and records are read and written anew, so that each is
one, and nothing in them is hidden or a formula. The new folder is made beside the old one and takes
its place when it is complete. Its list of hashes says what was written, so that the next time
nothing else is taken away.
"""

import csv
import json
import os
import re
import shutil
import tempfile
from pathlib import Path
from urllib.parse import unquote

from kvpeak.base.columns import PLAN
from kvpeak.base.errors import UserError
from kvpeak.base.files import inside, sha256_of, write_together
from kvpeak.base.layout import CELLS, MEMORY_FILE, cell_folder
from kvpeak.base.tables import csv_text
from kvpeak.base.text import seen
from kvpeak.base.untrusted import (
    MOST_BYTES,
    MOST_DOCUMENT,
    csv_lines,
    csv_rows,
    read_bytes,
    read_csv,
    read_json,
    read_text,
)
from kvpeak.report.figure_list import read_figures
from kvpeak.report.page_text import MOST_PICTURE, reader

TABLES = ("plan.csv", "runs.csv", "processes.csv", "summary.csv", "checks.csv")
RECORDS = (
    *("envs/*/environment.json", "calibration/*.json", "instruments/*.json", "replay/*.csv"),
    *("pools/*.csv", "fits.csv", "turns.csv"),
)
BESIDE = ("details.md", "finding.html")  # where they are there
FOLDERS = ("figures", "config", "results")
SUMS = "SHA256SUMS"  # of what was written; `sha256sum -c SHA256SUMS` compares it
# ![alt](target), where the alt text may hold escaped brackets. Neither part holds what begins
# another one, so that no text is looked through twice.
PICTURE = re.compile(r"(!\[(?:[^\[\]\\]|\\.)*\]\()([^()]+)(\))")


def publish(matrix: Path, report: Path, results: Path, target: Path) -> list[str]:
    """Write the folder `target` anew; returns a line for each record of a cell that cannot be read
    and is left out, and for each file that was put beside the others by hand and is kept. Only what
    has the name of something that is written does not stay.

    `report` is finding.md; the other documents and the figures lie beside it. Raises UserError
    where a part of the finding is missing or leads out of its folder; then an earlier `target`
    stays as it was.
    """
    for path in (report, *(results / name for name in TABLES)):
        if not path.exists():
            raise UserError(f"{path}: no such file; make it: make finding")
    if target.is_symlink():
        raise UserError(f"{target}: is a link; expected a folder or nothing")
    report, results = report.parent.resolve() / report.name, results.resolve()  # once, as page()
    target.parent.mkdir(parents=True, exist_ok=True)
    new = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    try:
        for path in (report, *(report.with_name(name) for name in BESIDE)):
            if path.exists():
                _copy_document(path, results, new)
        for path in (matrix, matrix.with_name("expected.yaml")):
            _write(new / "config" / path.name, _bytes_of(_own(path), path.parent.resolve()))
        left_out = _copy_results(report.parent, results, new)
        lines = [_line(path, new) for path in sorted(new.rglob("*")) if path.is_file()]
        _write(new / SUMS, "\n".join([*lines, ""]))
        kept = _keep(target, new)
        _replace(target, new)
    except BaseException:
        shutil.rmtree(new, ignore_errors=True)
        raise
    return [f"left out: {line}" for line in left_out] + [f"kept: {name}" for name in kept]


def _line(path: Path, root: Path) -> str | None:
    """The line of a regular file in a list of hashes, as sha256sum prints it."""
    if path.is_symlink() or not path.is_file():
        return None
    return f"{sha256_of(path)}  {path.relative_to(root).as_posix()}"


def _refuse(error: OSError) -> None:
    raise error


def _written(target: Path) -> set[str]:
    """The lines of what was written into the folder `target`; none where there is no list."""
    try:
        return set(read_text(_own(target / SUMS)).splitlines())
    except FileNotFoundError:
        return set()


def _keep(target: Path, new: Path) -> list[str]:
    """Copy what was put into the folder `target` by hand: what its list does not name, or with
    another hash. A link stays one. Returns the names of what lies beside what is written.

    Raises UserError for a file in whose place there is a folder now, or the other way round.
    """
    written, kept = _written(target), []
    for folder, folders, files in os.walk(target, onerror=_refuse) if target.exists() else ():
        links = [name for name in folders if Path(folder, name).is_symlink()]
        for path in (Path(folder, name) for name in sorted([*files, *links])):
            name = path.relative_to(target)
            if (new / name).is_file() or _line(path, target) in written:
                continue
            if (new / name).is_dir() or any((new / above).is_file() for above in name.parents):
                raise UserError(f"{path}: something else has its name now; move it elsewhere")
            (new / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, new / name, follow_symlinks=False)
            kept += [name.as_posix()] * (name.parts[0] in FOLDERS)
    return kept


def _copy_results(report: Path, results: Path, new: Path) -> list[str]:
    """The tables and records; a line for each record of a cell that cannot be read."""
    left_out = []
    for path in [*_files(results), *_sources(report, results)]:
        source = inside(results, path)
        try:
            _write(inside(new, Path("results", path)), _read_again(source, results))
        except UserError as error:
            if path.parts[0] != CELLS.name:
                raise
            left_out.append(str(error))
    return left_out


def _copy_document(document: Path, results: Path, new: Path) -> None:
    """A document, and of Markdown the figures that it shows; their links are made to work in the
    folder `new`. Raises UserError where two figures would get one name.
    """
    if document.suffix != ".md":
        return _write(new / document.name, _bytes_of(_own(document), document.parent))
    text = read_text(_own(document), MOST_DOCUMENT, document.parent)
    shown = _pictures(text)
    taken: dict[str, Path] = {}

    def copied(found: re.Match) -> str:
        if found[2] not in shown:  # in code, it is text
            return found[0]
        source = document.parent / found[2]
        path = source.resolve()
        if taken.get(source.name, path) != path:
            raise UserError(f"{document}: two of its figures are called {source.name}")
        if source.name not in taken:
            taken[source.name] = path
            near = path.is_relative_to(results)
            root, name = (
                (results, path.relative_to(results)) if near else (document.parent, found[2])
            )
            picture = _bytes_of(inside(root, name), root, MOST_PICTURE)
            _write(new / "figures" / source.name, picture)
        return f"{found[1]}figures/{source.name}{found[3]}"

    _write(new / document.name, PICTURE.sub(copied, text) if shown else text)


def _pictures(markdown: str) -> set[str]:
    """The targets of the pictures that a Markdown text shows."""
    tokens = reader().parse(markdown)
    inside = (child for token in tokens for child in token.children or [])
    return {unquote(str(child.attrGet("src"))) for child in inside if child.type == "image"}


def _files(results: Path) -> list[Path]:
    """What is copied of the results, relative to their folder: the tables, what says where they
    come from, each process's cell.json and runs.csv, and the timeline of each cell's first, from
    which lines on growth and the page's charts are made.
    """
    found = [Path(name) for name in TABLES]
    for pattern in RECORDS:
        found += [path.relative_to(results) for path in sorted(results.glob(pattern))]
    for row in read_csv(inside(results, "plan.csv"), PLAN.names, root=results):
        cell = cell_folder(results / CELLS.name, row, row["round"]).relative_to(results)
        found += [cell / name for name in ("cell.json", "runs.csv")]
        found += [cell / MEMORY_FILE] * (row["round"] == "1")
    return [path for path in found if (results / path).exists()]


def _sources(report: Path, results: Path) -> list[Path]:
    """The files below results/ that the figures were drawn from."""
    named = [source for each in read_figures(report / "figures") for source in each["sources"]]
    return [path for path in (_below(results, name) for name in named) if (results / path).exists()]


def _below(results: Path, name: str) -> Path:
    """The path of `name` from `results`, without links or `..`; UserError if it leads out."""
    return inside(results, name).relative_to(results)


def _own(path: Path) -> Path:
    """A file that is no link out of its folder. Raises UserError."""
    return inside(path.parent, path.name)


def _read_again(path: Path, root: Path) -> str:
    """A table or a record of the results as kvpeak would write what it reads; a cell's record
    without the line breaks that make up most of it. Raises UserError for anything else.
    """
    if path.suffix == ".json":
        lines = None if path.name == "cell.json" else 1
        return json.dumps(read_json(path, root=root), indent=lines) + "\n"
    if path.suffix != ".csv":
        raise UserError(f"{path}: expected a table or a record (.csv, .json)")
    text = read_text(path, root=root)
    rows = csv_rows(text, path)
    names = csv.DictReader(csv_lines(text)).fieldnames or []
    return csv_text(map(seen, names), rows)


def _bytes_of(path: Path, root: Path, most: int = MOST_BYTES) -> bytes:
    try:
        return read_bytes(path, most, root)
    except FileNotFoundError:
        raise UserError(f"{path}: no such file; make it: make finding") from None


def _write(path: Path, content: str | bytes) -> None:
    write_together(path.parent, {path.name: content})


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
