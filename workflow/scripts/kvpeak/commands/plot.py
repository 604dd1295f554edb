"""Draw the figures of the finding: report/figures/*.svg, and figures.json with their titles, alt
texts and captions.
"""

from pathlib import Path

from kvpeak.analysis.results import read_results
from kvpeak.experiment.matrix import load_matrix
from kvpeak.report.context import releases_of
from kvpeak.report.drawing import draw, write_figures
from kvpeak.report.sources import replayed


def arguments(parser) -> None:
    for name, where in {
        "matrix": "config/matrix.yaml",
        "plan": "results/plan.csv",
        "summary": "results/summary.csv",
        "runs": "results/runs.csv",
        "cells": "results/cells",
        "replay": "results/replay",
        "out": "report/figures",
    }.items():
        parser.add_argument(
            f"--{name}", type=Path, default=Path(where), help="default: %(default)s"
        )


def run(given) -> None:
    matrix = load_matrix(given.matrix)
    results = read_results(given.plan, given.summary, given.runs)
    replay = given.replay if replayed(matrix) else None
    releases, variants = releases_of(matrix), matrix.variants
    figures = draw(results, matrix.compare, given.cells, replay, releases, variants)
    write_figures(figures, given.out)
    print(f"{given.out}: {', '.join(figure.name for figure in figures) or 'no figure, no data'}")
