"""From the cells' folders to the tables: every run, every process, and one row per cell."""

from collections.abc import Callable, Iterable
from pathlib import Path
from statistics import fmean, median

from kvpeak.analysis.processes import PHASES, WORK, read_process
from kvpeak.base.axes import AXES
from kvpeak.base.columns import ENERGY, PEAKS, PROCESSES, RUNS, SPEEDS, SUMMARY, TEXTS, TURNS
from kvpeak.base.errors import UserError
from kvpeak.base.fields import join_texts
from kvpeak.base.layout import CELLS, RESULTS, cell_folder
from kvpeak.base.made import UNREADABLE
from kvpeak.base.tables import csv_text, six_digits
from kvpeak.base.untrusted import read_csv

RANGED = ("footprint", "device")  # counters whose smallest and largest process are in the summary
BESIDE_PEAKS = (*PHASES, "loop_mib")  # of the peak


def read_plan(plan: Path) -> list[dict]:
    """The plan's rows that run here, their paths below the plan's folder. Raises OSError, and
    UserError for a path that is not its cell's.
    """
    rows = read_csv(plan, (*AXES, "round", "runs_here", "path"))
    return [_own(row, plan) for row in rows if row["runs_here"] == "yes"]


def _own(row: dict, plan: Path) -> dict:
    folder = cell_folder(plan.parent / CELLS.name, row, row["round"])
    said, expected = Path(row["path"]), RESULTS / folder.relative_to(plan.parent)
    if said != expected:
        raise UserError(f"{plan}: path: {said}: expected {expected}, the folder of its cell")
    return row | {"path": str(folder)}


def gather(
    rows: list[dict], asked: Callable[[dict], dict | None] = lambda row: None
) -> tuple[dict[str, str], int, list[str]]:
    """The tables as CSV text, how many processes were measured, and a line for each that cannot be
    read, or that was asked something else than `asked` says of its row.

    Such a process has the outcome `unreadable` in the tables and costs the others nothing.
    """
    runs, turns, cells, problems = [], [], {}, []
    for row in rows:
        names = {axis: row[axis] for axis in AXES}
        own = names | {"round": row["round"]}
        try:
            found = read_process(Path(row["path"]), own, asked(row))
        except UserError as error:
            problems.append(f"{error}; delete {row['path']} to measure the cell again")
            found = _unreadable(str(error)), []
        if found:
            runs += found[1]
            process = own | found[0]
            turns += [each | own for each in found[0]["turns"]]
            cells.setdefault(tuple(names.values()), []).append(process)
    processes = [spell_process(each) for some in cells.values() for each in some]
    summary = [
        dict(zip(AXES, names, strict=True)) | summarise(some) for names, some in cells.items()
    ]
    texts = {
        "runs.csv": csv_text(RUNS.names, runs, six_digits),
        "turns.csv": csv_text(TURNS.names, turns, six_digits),
        "processes.csv": csv_text(PROCESSES.names, processes, six_digits),
        "summary.csv": csv_text(SUMMARY.names, summary, six_digits),
    }
    return texts, len(processes), problems


def _unreadable(why: str) -> dict:
    """A process of which nothing is known but that its files are there."""
    empty = dict.fromkeys(
        (
            *PEAKS,
            *BESIDE_PEAKS,
            *SPEEDS,
            *ENERGY,
            "idle_w",
            *WORK,
            *TEXTS,
            "prompt_tokens",
            "generated_tokens",
        )
    )
    counts = {"runs": 0, "outputs": 0, "hashes": [], "flags": [], "turns": []}
    return empty | counts | {"outcome": UNREADABLE, "detail": why, "method": "live"}


def summarise(processes: list[dict]) -> dict:
    """One cell: the median peaks of its processes with their range, the mean of their mean speeds.

    The process is the replicate.
    """
    hashes = {text for process in processes for text in process["hashes"]}
    return {
        "rounds": len(processes),
        "runs": sum(process["runs"] for process in processes),
        "outcome": first((p["outcome"] for p in processes if p["outcome"] != "ok"), "ok"),
        **{
            name: first(values_of(processes, name))
            for name in ("prompt_tokens", "generated_tokens", *WORK)
        },
        **{name: _median(values_of(processes, name)) for name in (*PEAKS, *BESIDE_PEAKS)},
        **{
            f"peak_{counter}_{end}_mib": of(
                values_of(processes, f"peak_{counter}_mib"), default=None
            )
            for counter in RANGED
            for end, of in (("min", min), ("max", max))
        },
        **{name: _mean(values_of(processes, name)) for name in (*SPEEDS, *ENERGY, "idle_w")},
        "tokens_sha256": first(hashes) if len(hashes) < 2 else "differs",
        "outputs": len(hashes),
        **{name: joined(values_of(processes, name)) for name in TEXTS},
        "flags": joined(flag for process in processes for flag in process["flags"]),
    }


def spell_process(process: dict) -> dict:
    """A process as a row of processes.csv."""
    hashes = process["hashes"]
    return process | {
        "tokens_sha256": first(hashes) if len(hashes) < 2 else "differs",
        "flags": join_texts(process["flags"]),
    }


def values_of(processes: list[dict], name: str) -> list:
    return [process[name] for process in processes if process[name] not in (None, "")]


def joined(texts: Iterable[str]) -> str:
    """The different texts, in order."""
    return join_texts(dict.fromkeys(texts))


def _mean(values: list[float]) -> float | None:
    return fmean(values) if values else None


def _median(values: list[float]) -> float | None:
    return median(values) if values else None


def first(values: Iterable, default=None):
    return next(iter(values), default)
