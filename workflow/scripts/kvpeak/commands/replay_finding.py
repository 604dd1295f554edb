"""Hold the replay against the published finding, and predict what it did not measure.

Writes one CSV per table of the report's section, and one figure. Nothing here is measured: every
figure that is not marked as published is a prediction.
"""

from argparse import ArgumentParser, Namespace
from pathlib import Path

from kvpeak.base.files import write_together
from kvpeak.base.tables import csv_text, thousandths
from kvpeak.replay.finding import tables
from kvpeak.replay.published import equal_layers, read_cells
from kvpeak.report.replay_figures import predicted_by_length


def arguments(parser: ArgumentParser) -> None:
    option = parser.add_argument
    option("--cells", type=Path, default=Path("config/fornace/fornace-2026-11-04.csv"))
    option(
        "--log", type=Path, default=Path("config/fornace/fornace-alloc-log-cat-contiguous-4096.csv")
    )
    option("--out", type=Path, default=Path("results/replay"), help="default: %(default)s")


def run(given: Namespace) -> None:
    found = tables(read_cells(given.cells), given.log)
    figure = predicted_by_length(found["length"], found["cells"])
    described = {
        "file": str(Path("..") / given.out / f"{figure.name}.svg"),
        "alt": figure.alt,
        "caption": figure.caption,
    }
    texts = {f"{figure.name}.svg": figure.svg, "figure.csv": as_csv([described])}
    write_together(given.out, texts | {f"{name}.csv": as_csv(rows) for name, rows in found.items()})
    worst = max(abs(row["error_pct"]) for row in found["cells"])
    equal = equal_layers(found["log"])
    print(
        f"{given.out}: {len(found['cells'])} peaks within {worst:.1f} %, "
        f"{equal} of {len(found['log'])} layers of the log equal"
    )


def as_csv(rows: list[dict]) -> str:
    """CSV with the first row's keys as header; figures to three decimals, unknown ones empty."""
    return csv_text(rows[0], rows, thousandths)
