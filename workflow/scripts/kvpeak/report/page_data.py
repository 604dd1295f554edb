"""What the page holds beside the text: the tables as they lie on the disk, and the cells for the
charts.
"""

import re
from dataclasses import dataclass

from kvpeak.analysis.lead import spell_name
from kvpeak.analysis.results import Results
from kvpeak.analysis.workloads import is_plain, spell_length
from kvpeak.base.axes import AXES
from kvpeak.base.columns import CHECKS, FITS, POOLS, PROCESSES, REPLAY, SUMMARY, Table
from kvpeak.base.errors import UserError
from kvpeak.base.files import inside
from kvpeak.base.layout import CELLS, MEMORY_FILE, shown_folder
from kvpeak.base.numbers import bounded
from kvpeak.base.untrusted import Root, read_csv
from kvpeak.report.page_links import COMMON, Links, anchor_of, rows_of, rows_of_texts

OTHERS = (PROCESSES, FITS, CHECKS)
MOST_ROWS = 1_000  # of a table in the page; longer ones stay in their file
MOST_CELLS = 300  # with a timeline
SAMPLES = 60  # of one timeline
SHOWN = (SUMMARY, PROCESSES, CHECKS, FITS, *REPLAY, POOLS)
PARTS = (  # the anchors in page.html.j2
    *("content", "charts", "charts-title", "choices", "chart", "specification"),
    *("tables", "tables-title"),
)


@dataclass(frozen=True)
class DataTable:
    """A CSV file as the page shows it; `anchors` are those of its rows."""

    name: str  # the file's, relative to results/
    anchor: str
    rows_are: str
    columns: tuple[str, ...]
    units: tuple[str, ...]
    rows: list[tuple[str, list[str]]]  # (anchor, fields)
    left_out: int


def read_tables(root: Root) -> dict[str, list[dict]]:
    """The CSV files below `root` (results/, no part of its path a link) that are there, by name.
    Raises UserError, for a link out of the folder too: whatever it leads to would be in the page.
    """
    found = {}
    for table in SHOWN:
        name = name_of(table)
        try:
            found[name] = read_csv(inside(root.path, name), root=root)
        except FileNotFoundError:
            continue
    return found


def name_of(table: Table) -> str:
    return table.path.split(",")[0].removeprefix("results/")


def data_tables(tables: dict[str, list[dict]]) -> list[DataTable]:
    """The tables for the page, in the order of SHOWN."""
    described = {name_of(table): table for table in SHOWN}
    return [_data_table(name, rows, described[name]) for name, rows in tables.items() if rows]


def _data_table(name: str, rows: list[dict], described: Table) -> DataTable:
    units = {column.name: column.unit for column in described.columns}
    columns, anchor = tuple(rows[0]), _anchor(name)
    return DataTable(
        name=name,
        anchor=anchor,
        rows_are=described.rows,
        columns=columns,
        units=tuple(units.get(column, "") for column in columns),
        rows=[
            (anchor_of(anchor, number), list(row.values()))
            for number, row in enumerate(rows[:MOST_ROWS])
        ],
        left_out=max(0, len(rows) - MOST_ROWS),
    )


def _anchor(name: str) -> str:
    return name.removesuffix(".csv").replace("/", "-")


def is_own(anchor: str) -> bool:
    """Whether an anchor is one of the page's: of its parts, or of a table or its row."""
    return anchor in PARTS or re.sub(r"-\d+$", "", anchor) in TABLES


TABLES = frozenset(_anchor(name_of(table)) for table in SHOWN)


def links_of(tables: dict[str, list[dict]]) -> Links:
    """The rows that numbers of the text may come from: the cells' and those of the replay; then the
    processes', and those of predictions and claims.
    """
    cells = tables.get("summary.csv", [])[:MOST_ROWS]
    rows = rows_of("summary", cells)
    for name, records in tables.items():
        if name.startswith("replay/") and records:
            rows += rows_of(_anchor(name), records[:MOST_ROWS], names=())
    processes, fits, checks = (tables.get(name_of(t), [])[:MOST_ROWS] for t in OTHERS)
    more = [
        *rows_of("processes", processes),
        *rows_of("fits", fits, names=tuple(axis for axis in AXES if axis != "prompt")),
        *rows_of_texts("checks", checks, ("cells", "detail")),
    ]
    prompts = {spell_length(row): row["prompt"] for row in cells if row.get("prompt_tokens")}
    caps = {spell_name("cap", name): name for name in COMMON}
    return Links(rows, prompts | caps, more)


def cells(results: Results, root: Root) -> list[dict]:
    """Each measured cell for the charts: names, length (None of a workload, which has none), peak,
    its processes in words, its timeline.
    """
    found = []
    for number, row in enumerate(results.summary.values()):
        if row["peak_mib"] is None or row["prompt_tokens"] is None:
            continue
        peaks = ", ".join(f"{peak:,.0f}" for peak in results.peaks(_names(row)))
        found.append(
            {
                **{axis: row[axis] for axis in AXES},
                "cell": " ".join(row[axis] for axis in AXES),
                "line": number + 2,
                "tokens": int(row["prompt_tokens"]) if is_plain(row) else None,
                "peak": round(row["peak_mib"], 1),
                "processes": peaks or "–",
                "outcome": row["outcome"],
                "timeline": _timeline(root, row) if len(found) < MOST_CELLS else [],
            }
        )
    return found


def _names(row: dict) -> tuple[str, ...]:
    return tuple(row[axis] for axis in AXES)


def _timeline(root: Root, row: dict) -> list[list[float]]:
    """[seconds, MiB] of the cell's first process, the largest sample of each of SAMPLES spans."""
    column = "device_mib" if row["accelerator"] == "cuda" else "footprint_mib"
    try:
        process = shown_folder(root.path / CELLS.name, row)
        found = [
            (bounded(s["t_s"]), bounded(s[column]))
            for s in read_csv(process / MEMORY_FILE, only=("t_s", column), root=root)
            if s.get(column)
        ]
    except (FileNotFoundError, UserError, KeyError, ValueError):
        return []
    step = max(1, -(-len(found) // SAMPLES))
    spans = [found[start : start + step] for start in range(0, len(found), step)]
    return [[round(span[0][0], 2), round(max(mib for _, mib in span), 1)] for span in spans]
