"""The result tables as plain values: what was planned, what was measured, how fast each process
was.
"""

import contextlib
import csv
import io
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pandas as pd

from kvpeak.analysis.headline import MISSED_MIB, counter_of, missed_mib
from kvpeak.analysis.parts import parts_of
from kvpeak.analysis.statistics import outliers, process_means
from kvpeak.analysis.workloads import asks_again, longest_prompt
from kvpeak.base.axes import AXES
from kvpeak.base.columns import (
    COUNTS,
    PLAN,
    PROCESSES,
    RUNS,
    SIGNED,
    SPEEDS,
    SUMMARY,
    TEXTS,
    TURNS,
    Table,
)
from kvpeak.base.errors import UserError
from kvpeak.base.files import in_its_folder
from kvpeak.base.made import UNAVAILABLE, UNREADABLE
from kvpeak.base.numbers import LARGEST
from kvpeak.base.text import csv_safe
from kvpeak.base.untrusted import Root, read_csv, read_text

_TEXT = (*AXES, "reason", "outcome", "tokens_sha256", "kv_difference", "flags", *TEXTS)

# What a table has to have; the other columns an older version may not have written.
_NEEDED = {
    *(*AXES, "round", "run", "warmup", "runs_here", "reason", "path", "outcome", "rounds", "runs"),
    *("peak_footprint_mib", "peak_pool_mib", "peak_active_mib", "method", "accelerator"),
    *SPEEDS,
}
_NUMBERS = {name for table in (RUNS, PROCESSES, SUMMARY, TURNS) for name in table.numbers} - {
    "cap_bytes"
}

CellName = tuple[str, ...]  # the names on the six axes, in the order of AXES


@dataclass(frozen=True)
class Results:
    """What is known of each cell. A cell that cannot apply (its engine has no such cap) is in none
    of the tables.
    """

    # → why the cell does not run here, '' if it does
    plan: dict[CellName, str]
    # → its row of summary.csv plus what headline() and of_processes() add; None where missing
    summary: dict[CellName, dict]
    # column of SPEEDS → cell → mean of each process
    processes: dict[str, dict[CellName, np.ndarray]]
    # → a line for each run that is far off
    outliers: dict[CellName, list[str]] = field(default_factory=dict)
    # → its rows of processes.csv, in the order of rounds; an older folder has none
    each: dict[CellName, list[dict]] = field(default_factory=dict)
    # → its rows of turns.csv; plain cells, and those of an older folder, have none
    turns: dict[CellName, list[dict]] = field(default_factory=dict)
    # → the live peak of a process's first run and the largest of its later ones, MiB
    live_peaks: dict[CellName, tuple[float, float]] = field(default_factory=dict)

    @property
    def refused(self) -> frozenset[tuple]:
        """The names and the round of each process whose files aggregate did not take."""
        return frozenset(
            (*cell, row["round"])
            for cell, rows in self.each.items()
            for row in rows
            if row["outcome"] == UNREADABLE
        )

    def missing(self, cell: CellName, column: str) -> str:
        """Why the cell has no value in this column, '' if it has one."""
        if reason := self.plan.get(cell, "not planned"):
            return reason
        row = self.summary.get(cell)
        if row is None:
            return "not run yet"
        if row["outcome"] != "ok":
            return f"ended with {row['outcome']}"
        return "" if row.get(column) is not None else f"has no {column}"

    def peaks(self, cell: CellName) -> np.ndarray:
        """The headline peak of each process that ended well, MiB.

        Without processes.csv that is the cell's own figure.
        """
        row = self.summary.get(cell)
        if row is None or row["outcome"] != "ok":
            return np.empty(0)
        name = f"peak_{counter_of(row)}_mib"
        found = [each[name] for each in self.each.get(cell, []) if each[name] is not None]
        return np.array(found or [value for value in [row["peak_mib"]] if value is not None])

    def speeds(self, cell: CellName, column: str) -> np.ndarray:
        """The cell's process means in one column of SPEEDS; empty if it has none.

        Of prompts one after the other the time to first token is the first one's alone, which pays
        for what a process does once: it is none of the cell.
        """
        if column == "ttft_ms" and asks_again(self.summary.get(cell) or {}):
            return np.empty(0)
        return self.processes[column].get(cell, np.empty(0))


def read_results(
    plan: Path | str, summary: Path | str, runs: Path | str, root: Root | None = None
) -> Results:
    """Read plan.csv, summary.csv and runs.csv; `root` as read_table has it. Raises UserError where
    one is not there.
    """
    planned, measured = read_table(plan, PLAN, root), read_table(summary, SUMMARY, root)
    run_table = read_table(runs, RUNS, root)
    each = Path(summary).with_name("processes.csv")
    processes = (
        read_table(each, PROCESSES, root)
        if each.exists()
        else pd.DataFrame(columns=PROCESSES.names)
    )
    by_cell = _by_cell([dict.fromkeys(PROCESSES.names) | row for row in rows(processes)])
    turns = Path(summary).with_name("turns.csv")
    parts = _by_cell(rows(read_table(turns, TURNS, root))) if turns.exists() else {}
    return Results(
        plan={
            _cell(row): row["reason"] or ""
            for row in rows(planned)
            if not (row["reason"] or "").startswith("not applicable")
        },
        summary={
            _cell(row): row
            | headline(row)
            | of_processes(row, by_cell.get(_cell(row), []))
            | {"longest_prompt": longest_prompt(row, parts.get(_cell(row), []))}
            for row in map(with_every_column, rows(measured))
            if row["outcome"] != UNAVAILABLE  # nothing was measured; the plan says why
            and _whole(row, summary)
        },
        processes={column: process_means(run_table, column) for column in SPEEDS},
        outliers=far_off_runs(run_table),
        each=by_cell,
        turns=parts,
        live_peaks=live_peaks(run_table),
    )


def live_peaks(runs: pd.DataFrame) -> dict[CellName, tuple[float, float]]:
    """The live peak of a process's first run, warm-up or not, and the largest of its later ones,
    MiB: the medians over the cell's processes. Only of cells that have both.
    """
    known = runs[runs["peak_active_mib"] > 0]
    first = known[known["run"] == 0].set_index([*AXES, "round"])["peak_active_mib"]
    later = known[known["run"] > 0].groupby([*AXES, "round"])["peak_active_mib"].max()
    both = pd.concat({"first": first, "later": later}, axis=1, join="inner")
    medians = both.groupby(level=list(AXES), sort=False).median()
    return {
        cell: (row.first, row.later)
        for cell, row in zip(medians.index, medians.itertuples(index=False), strict=True)
    }


def far_off_runs(runs: pd.DataFrame) -> dict[CellName, list[str]]:
    """A line for each recorded run whose speed is far from the cell's other runs; the run still
    counts.
    """
    lines = {}
    recorded = runs[~runs["warmup"].astype(bool)]
    cell = recorded.groupby(list(AXES), sort=False).ngroup().to_numpy()
    for column in SPEEDS:
        far = recorded[outliers(recorded[column], cell)]
        median = recorded[column].groupby(cell).transform("median")
        for index, row in zip(far.index, far.to_dict("records"), strict=True):
            lines.setdefault(_cell(row), []).append(
                f"run {row['run']} of r{row['round']} is far off: {column} {row[column]:,.1f}, "
                f"median {median[index]:,.1f}"
            )
    return lines


def _whole(row: dict, path: Path | str) -> dict:
    """A row of summary.csv. Raises UserError for a cell that ended well and lacks a count, or was
    asked nothing.
    """
    needed = ("rounds", "runs") + ("prompt_tokens", "generated_tokens") * (row["outcome"] == "ok")
    if missing := next((name for name in needed if row[name] is None), None):
        raise UserError(f"{path}: {' '.join(_cell(row))}: {missing}: empty; expected a number")
    if row["outcome"] == "ok" and row["prompt_tokens"] < 1:
        raise UserError(f"{path}: {' '.join(_cell(row))}: prompt_tokens: 0; expected at least 1")
    return row


def with_every_column(row: dict) -> dict:
    """A row of summary.csv; a column that an older version of kvpeak did not write is None, and
    what is not said to be a replay is live.
    """
    return dict.fromkeys(SUMMARY.names) | row | {"method": row.get("method") or "live"}


def headline(row: dict) -> dict[str, float | None]:
    """The cell's headline peak, MiB: the median of its processes, the smallest and the largest.
    There is none of 0.

    An older summary.csv holds the largest and perhaps the smallest.
    """
    counter = counter_of(row)
    peak = row[f"peak_{counter}_mib"] or None
    ends = (row.get(f"peak_{counter}_{end}_mib") for end in ("min", "max"))
    low, high = (peak if value is None else value for value in ends)
    return {"peak_mib": peak, "peak_min_mib": low, "peak_max_mib": high}


def of_processes(row: dict, processes: list[dict]) -> dict:
    """What a cell's rows of processes.csv add to it: `parts` of the peak, the most that the samples
    of a process are known to have missed and in how many they did, and the round of the process
    whose record and samples are shown, the first that could be read.
    """
    missed = missed_mib(row, processes)
    read = [int(each["round"]) for each in processes if each["outcome"] != UNREADABLE]
    return {
        "parts": parts_of(row, processes),
        "missed_mib": max(missed, default=0.0),
        "missed_in": sum(each >= MISSED_MIB for each in missed),
        "shown_round": read[0] if read else 1,
    }


def repeats(row: dict) -> bool:
    """Whether the recorded runs of a cell all gave the same tokens, as far as they gave any."""
    return row.get("tokens_sha256") != "differs"


def spell_outputs(row: dict) -> str:
    """How many answers a cell gave that does not repeat."""
    count = f"{int(row['outputs'])} different answers" if row.get("outputs") else "other answers"
    return f"{count} in {int(row['runs'])} runs"


def spell_generated(rows: Iterable[dict]) -> str:
    """How many tokens cells generated, e.g. `8 to 128 tokens`."""
    counts = [int(row["generated_tokens"] or 0) for row in rows]
    return " to ".join(f"{count:,}" for count in sorted({min(counts), max(counts)})) + " tokens"


def read_table(
    path: Path | str, table: Table | None = None, root: Root | None = None
) -> pd.DataFrame:
    """Read one of the CSV tables: names stay text (a cap `none` is no missing value), only empty
    fields are missing.

    With `table` the columns that its rows cannot do without have to be there. `root` is the folder
    of others that it lies in; without it the table's own folder is opened. Raises UserError for a
    file that cannot be read, that a spreadsheet has saved in another way, or that is a link out of
    its folder.
    """
    path = Path(path)
    needed = tuple(name for name in table.names if name in _NEEDED) if table else ()
    try:
        with contextlib.nullcontext((path, root)) if root else in_its_folder(path) as (file, at):
            found = read_csv(file, needed, root=at)
            header = found[0] if found else _header(file, at)
    except FileNotFoundError as error:
        raise UserError(f"{path}: {error.strerror}; make it: snakemake --cores 1") from None
    columns = {
        name: _column(path, name, [row[name] for row in found], table is not None)
        for name in header
    }
    made = pd.DataFrame(columns, columns=list(header))
    if table:
        _check_once(path, made, table.key)
    return made


def _header(path: Path, root: Root) -> list[str]:
    return next(csv.reader(io.StringIO(read_text(path, root=root))), [])


def _column(path: Path, name: str, texts: list[str], known: bool) -> pd.Series:
    """Text as it is, without what csv_safe put before it; a column of numbers as numbers."""
    if known and name in AXES:
        _check_names(path, name, texts)
    if known and name in ("round", "outcome") and "" in texts:
        raise UserError(f"{path}: line {texts.index('') + 2}: {name}: expected a value")
    values = pd.Series([text or None for text in texts], dtype=object)
    if name in _TEXT:
        return values.map(lambda text: text.removeprefix("'") if _marked(text) else text)
    if name == "warmup":
        return values.map(lambda text: str(text).lower() == "true")
    numbers = pd.to_numeric(values, errors="coerce")
    wrong = values.notna() & ~(numbers.abs() <= LARGEST)  # no number, or a boundless one
    if known and name in COUNTS:
        wrong |= values.notna() & ~values.astype(str).str.fullmatch("[0-9]{1,9}")
    elif known and name in _NUMBERS and name not in SIGNED:
        wrong |= numbers < 0
    if not wrong.any():
        return numbers
    if known and name in _NUMBERS:
        shown = values[wrong].iloc[0]
        raise UserError(
            f"{path}: line {int(wrong.idxmax()) + 2}: {name}: {shown}: expected a number with a "
            "decimal point, as kvpeak writes it; a spreadsheet may have changed the file"
        )
    return values


def _check_once(path: Path, table: pd.DataFrame, key: tuple[str, ...]) -> None:
    """Raise UserError for the first row that is there a second time: only one would count."""
    again = table.duplicated(list(key)) if key else pd.Series(dtype=bool)
    if again.any():
        line = int(again.idxmax())
        names = " ".join(str(table.at[line, name]) for name in key)
        raise UserError(f"{path}: line {line + 2}: {names}: is there twice")


def _check_names(path: Path, axis: str, names: list[str]) -> None:
    """Raise UserError for the first that cannot be the name of a folder, as that of a cell is."""
    for number, text in enumerate(names):
        if "/" in text or text in ("", ".", ".."):
            line = f"line {number + 2}: {axis}: {text or 'empty'}"
            raise UserError(f"{path}: {line}: expected a name, which has no /")


def _marked(text: str | None) -> bool:
    return bool(text) and text[0] == "'" and csv_safe(text[1:]) == text


def _by_cell(processes: list[dict]) -> dict[CellName, list[dict]]:
    found: dict[CellName, list[dict]] = {}
    for row in sorted(processes, key=lambda row: row["round"]):
        found.setdefault(_cell(row), []).append(row)
    return found


def rows(table: pd.DataFrame) -> list[dict]:
    """The table's rows as dicts of plain values, None where a field is empty."""
    return table.astype(object).where(table.notna(), None).to_dict("records")


def _cell(row: dict) -> CellName:
    return tuple(row[axis] for axis in AXES)
