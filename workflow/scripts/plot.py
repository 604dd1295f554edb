"""Draw the figures of the finding: results/figures/*.svg, and figures.json with their titles, alt texts and captions."""

import argparse
import csv
import json
import sys
from dataclasses import asdict, replace
from pathlib import Path

from kvpeak.analysis.comparisons import Comparison, Pair, compare, lead, leading, spell_name
from kvpeak.analysis.results import Results, read_results
from kvpeak.base.axes import AXES, Cell
from kvpeak.base.files import write_together
from kvpeak.experiment.config_file import ConfigError
from kvpeak.experiment.matrix import load_matrix
from kvpeak.report.figures import (
    Figure,
    Timeline,
    captured_bytes,
    memory_over_time,
    peak_by_counter,
    peak_by_length,
    speed_ratios,
    where_bytes_are,
)
from kvpeak.report.sources import replayed


def draw(
    results: Results, comparisons: list[dict], cells: Path, replay: Path | None = None
) -> list[Figure]:
    """Every figure that the results have data for. Memory over time is that of the pair that leads the finding."""
    compared = [compare(results, **entry) for entry in comparisons]
    first = leading(compared)
    figures = []
    for comparison in compared:
        figures.append(peak_by_length(comparison))
        if pair := lead(comparison).pair:
            figures.append(where_bytes_are(comparison, pair))
            if pair == first.pair:
                figures.append(memory_over_time(timelines(comparison, pair, cells)))
            figures.append(peak_by_counter(comparison, pair))
        figures.append(speed_ratios(comparison))
    if replay:
        figures.append(captured_bytes(read_holders(replay)))
    return [figure for figure in figures if figure]


def read_holders(folder: Path) -> list[dict]:
    """The replay's table of tensors that hold too large a buffer; empty without a replay."""
    path = folder / "holders.csv"
    if not path.exists():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def timelines(comparison: Comparison, pair: Pair, cells: Path) -> list[Timeline]:
    """The first process of both sides of a pair, as sampled; a side without a folder is left out."""
    found = []
    for name in (comparison.before, comparison.after):
        names = pair.names | {comparison.axis: name}
        folder = cells / Cell(*(names[axis] for axis in AXES)).path
        if (folder / "memory.csv").exists():
            label = ", ".join(spell_name(axis, names[axis]) for axis in AXES)
            source = (folder / "memory.csv").relative_to(cells.parent)
            found.append(replace(read_timeline(folder, label), source=source.as_posix()))
    return found


def read_timeline(folder: Path, label: str) -> Timeline:
    """A cell's memory.csv and the phases of its cell.json; the device's memory under CUDA, else the footprint."""
    record = json.loads((folder / "cell.json").read_text(encoding="utf-8"))
    cuda = record["engine"].get("device", {}).get("accelerator") == "cuda"
    column = "device_mib" if cuda else "footprint_mib"
    with (folder / "memory.csv").open(newline="", encoding="utf-8") as file:
        samples = [
            (float(row["t_s"]), float(row[column])) for row in csv.DictReader(file) if row[column]
        ]
    return Timeline(
        label=label,
        t_s=[t for t, _ in samples],
        mib=[mib for _, mib in samples],
        phases=record["phases"],
        warmup=record["request"]["protocol"]["warmup"],
    )


def write_figures(figures: list[Figure], out: Path) -> None:
    """Write the SVG files and figures.json, and remove the SVG files of an earlier time."""
    described = [
        {"file": f"{figure.name}.svg"}
        | {key: value for key, value in asdict(figure).items() if key not in ("name", "svg")}
        for figure in figures
    ]
    texts = {f"{figure.name}.svg": figure.svg for figure in figures}
    write_together(
        out, texts | {"figures.json": json.dumps(described, indent=1, ensure_ascii=False) + "\n"}
    )
    for old in set(out.glob("*.svg")) - {out / name for name in texts}:
        old.unlink()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    for name, where in {
        "matrix": "config/matrix.yaml",
        "plan": "results/plan.csv",
        "summary": "results/summary.csv",
        "runs": "results/runs.csv",
        "cells": "results/cells",
        "replay": "results/replay",
        "out": "results/figures",
    }.items():
        parser.add_argument(
            f"--{name}", type=Path, default=Path(where), help="default: %(default)s"
        )
    arguments = parser.parse_args()
    try:
        matrix = load_matrix(arguments.matrix)
        results = read_results(arguments.plan, arguments.summary, arguments.runs)
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 1
    except OSError as error:
        print(f"{error.filename}: {error.strerror}; make it: snakemake --cores 1", file=sys.stderr)
        return 1
    replay = arguments.replay if replayed(matrix) else None
    figures = draw(results, matrix.compare, arguments.cells, replay)
    write_figures(figures, arguments.out)
    print(
        f"{arguments.out}: {', '.join(figure.name for figure in figures) or 'no figure, no data'}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
