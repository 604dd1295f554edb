"""Replay recordings of PyTorch's memory beside what its processes counted.

Prints a line of what came of it, and writes the table with --out.
"""

from argparse import ArgumentParser, Namespace
from pathlib import Path

from kvpeak.base.columns import POOLS
from kvpeak.base.files import write_text
from kvpeak.base.tables import csv_text
from kvpeak.pools.recordings import table


def arguments(parser: ArgumentParser) -> None:
    parser.add_argument("folder", type=Path, help="with peaks.json and snapshots.zip")
    parser.add_argument("--out", type=Path, metavar="CSV", help="where the table is written")


def run(given: Namespace) -> None:
    rows = table(given.folder)
    if given.out:
        write_text(given.out, as_csv(rows))
    equal = sum(row["counted_bytes"] == row["replayed_bytes"] for row in rows)
    live = sum(row["counted_active_bytes"] == row["replayed_active_bytes"] for row in rows)
    ends = sum(row["counted_end"] == row["replayed_end"] for row in rows)
    print(
        f"{given.folder}: {len(rows)} processes; replayed to the byte: {equal} reserved peaks, "
        f"{live} live peaks; {ends} ended as replayed"
    )


def as_csv(rows: list[dict]) -> str:
    return csv_text(POOLS.names, rows)
