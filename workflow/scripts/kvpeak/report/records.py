"""The records that a finding shows, each checked where it is read.

They may come from a stranger. Only those of the cells and the commits that the tables have are
read, what they say has its type and a bound, and one that is not so is named and left out.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from kvpeak.analysis.answers import question_of, tokens_of
from kvpeak.analysis.processes import Record
from kvpeak.base.axes import AXES
from kvpeak.base.errors import UserError
from kvpeak.base.layout import RECORD_FILE, cell_folder
from kvpeak.base.made import FAILED, UNAVAILABLE, is_imported, why_not_made
from kvpeak.base.text import brief, plain, shell_word
from kvpeak.base.untrusted import MOST_JSON, MOST_RECORD, read_object
from kvpeak.report.sources import models, prompts

NAMED = ("mlx", "mlx-lm", "numpy", "snakemake")  # packages whose versions are shown
LONGEST_WORD, LONGEST_LINE = 100, 500  # characters
MOST_TYPES = 16  # in a calibration, and kernels of each
INPUTS = (
    *("model_sha256", "shapes_sha256", "config_sha256", "prompt_sha256", "model_source"),
    "model_quantization",
)


class Reader:
    """Reads records, and keeps a line for each that cannot be read: one bad file stops no
    finding.
    """

    def __init__(self):
        self.problems: list[str] = []

    def each(
        self, paths: Iterable[Path], take: Callable[[Record], object], most: int = MOST_RECORD
    ) -> Iterator[tuple[Path, object]]:
        """(path, what `take` makes of its record) of every file that was made and can be read, and
        has at most so many bytes. Its texts are cut.
        """
        for path in paths:
            if why_not_made(path):
                continue
            try:
                yield path, brief(take(Record(path, read_object(path, most))))
            except UserError as error:
                self.problems.append(str(error))
            except FileNotFoundError:
                continue
            except (AttributeError, KeyError, TypeError, ValueError) as error:
                self.problems.append(f"{path}: {type(error).__name__} at {error}")


def read_records(
    plan: list[dict], cells: Path, reader: Reader, refused: frozenset[tuple] = frozenset()
) -> list[dict]:
    """What the cell.json of the processes say of where they come from: one of all that say the
    same, with `cells`, the names of those that do. Those that were measured here come first, in
    the plan's order.

    refused: the names and the round of each process whose record aggregate did not take.
    What else may differ between cells is in the tables. One that lacks what the finding shows of it
    is left out.
    """
    found: dict[str, dict] = {}
    for row in plan:
        cell = tuple(row[axis] for axis in AXES)
        if row["runs_here"] != "yes" or (*cell, row["round"]) in refused:
            continue
        try:
            folder = cell_folder(cells, row, row["round"])
        except UserError as error:
            reader.problems.append(str(error))
            continue
        for path, record in reader.each([folder / RECORD_FILE], _of_process, MOST_JSON):
            if not record:
                continue
            record["imported"] = is_imported(path)
            found.setdefault(_said(record), record | {"cells": set()})["cells"].add(cell)
    return sorted(found.values(), key=lambda record: record["imported"])


def _said(record: dict) -> str:
    """What tells records apart: not the cell, but its commit, model and prompt."""
    names = [record["cell"][axis] for axis in ("commit", "model", "prompt")]
    request = [record["request"][name] for name in ("engine", "model", "prompt")]
    return repr((names, request, *(record[key] for key in ("imported", "inputs", "engine"))))


def _of_process(record: Record) -> dict:
    """What the finding shows of a cell.json, nothing of one that was not measured. Raises
    UserError, KeyError or the like where it is not all there.

    The rest is let go: there may be 10,000 of them.
    """
    values = record.values
    if record.text("outcome") in (FAILED, UNAVAILABLE):
        return {}
    request, engine = values["request"], record.items("engine")
    found = {
        "cell": {name: values["cell"][name] for name in (*AXES, "round")},
        "request": {name: request[name] for name in ("engine", "model", "protocol")}
        | {
            "prompt": {
                "name": request["prompt"]["name"],
                "tokens": record.number("request", "prompt", "tokens"),
            },
            "options": {"loop": record.text("request", "options", "loop")},
        },
        "inputs": {name: _input(record, name) for name in INPUTS if name in values["inputs"]},
        "engine": engine
        and {
            "dtype": record.text("engine", "dtype"),
            "versions": sorted(map(str, record.items("engine", "versions"))),
        },
        "events": [{"tokens": _tokens(record)}],
    }
    models([found]), prompts([found]), hash(question_of(found))
    return found


def _tokens(record: Record) -> list[int] | None:
    ids = tokens_of(record.values)
    if ids and not (isinstance(ids, list) and all(type(each) is int for each in ids)):
        raise UserError(f"{record.file}: events: tokens: expected a list of ids")
    return ids


def _input(record: Record, name: str) -> object:
    if name != "model_quantization":
        return record.text("inputs", name)
    return record.at("inputs", name) and {"bits": record.items("inputs", name).get("bits")}


def first_of_each(records: list[dict]) -> list[dict]:
    """One record of each commit, model and prompt."""
    found: dict[tuple, dict] = {}
    for record in records:
        cell = record["cell"]
        found.setdefault((cell["commit"], cell["model"], cell["prompt"]), record)
    return list(found.values())


def environments(folder: Path, commits: Iterable[str], reader: Reader) -> list[dict]:
    """What each engine ran in: its own packages, and how many are installed under which hash."""
    paths = [folder / "envs" / commit / "environment.json" for commit in sorted(commits)]
    return [found | {"path": path.as_posix()} for path, found in reader.each(paths, _environment)]


def _environment(record: Record) -> dict:
    freeze, named = record.texts("freeze", most=None), {}
    for line in freeze:
        if (name := line.split("==")[0]) in NAMED:
            named.setdefault(name, plain(line, LONGEST_WORD))
    return {
        "packages": len(freeze),
        "sha256": hashlib.sha256("\n".join(freeze).encode()).hexdigest(),
        "named": list(named.values()),
    }


def calibrations(folder: Path, commits: Iterable[str], reader: Reader) -> dict[str, dict]:
    """Commit → what calibrate.py measured for it. One that was imported is left out where its
    machine has the name of one that was calibrated here: they need not be the same.
    """
    paths = [folder / "calibration" / f"{commit}.json" for commit in sorted(commits)]
    found = dict(reader.each(paths, _calibration))
    imported = {path for path in found if is_imported(path)}
    here = [found[path]["machine"] for path in found.keys() - imported]
    return {
        path.stem: record
        for path, record in found.items()
        if path not in imported or record["machine"] not in here
    }


def _calibration(record: Record) -> dict:
    return {
        "machine": record.text("machine"),
        "blas": record.text("blas"),
        "last_level_cache_bytes": record.number("last_level_cache_bytes"),
        "dtypes": {
            dtype: {
                kernel: record.number("dtypes", dtype, kernel)
                for kernel in _few(record, "dtypes", dtype)
            }
            for dtype in _few(record, "dtypes")
        },
    }


def _few(record: Record, *path: str) -> dict:
    """An object whose keys are few and short, for they are shown. Raises UserError."""
    found = record.items(*path)
    if len(found) > MOST_TYPES or any(len(name) > LONGEST_WORD for name in found):
        raise UserError(
            f"{record.file}: {'.'.join(path)}: expected at most {MOST_TYPES} names of at most "
            f"{LONGEST_WORD} characters"
        )
    return found


def builds(folder: Path, commits: Iterable[str], reader: Reader) -> list[dict]:
    """What was built for external engines."""
    paths = [folder / "engines" / commit / "engine.json" for commit in sorted(commits)]
    return [found for _, found in reader.each(paths, _build)]


def _build(record: Record) -> dict:
    named = ("commit", "repository", "revision")
    if missing := [name for name in named if record.text(name) is None]:
        raise UserError(f"{record.file}: {missing[0]}: not there; expected text")
    programs = record.items("toolchain")
    toolchain = ", ".join(str(record.text("toolchain", name)) for name in programs)
    return {
        **{name: plain(record.text(name), LONGEST_LINE) for name in named},
        "build": _command(record, "build"),
        "toolchain": plain(toolchain, LONGEST_LINE),
        "verify": _command(record, "verify", "command"),
        "printed": plain(record.text("verify", "output") or "", LONGEST_LINE),
    }


def _command(record: Record, *path: str) -> str:
    """A command line, as a shell would take it."""
    return plain(" ".join(map(shell_word, record.texts(*path))), LONGEST_LINE)
