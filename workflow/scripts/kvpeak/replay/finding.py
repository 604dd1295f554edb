"""The replay against the published finding, and what it predicts besides: every table by name."""

from pathlib import Path

from kvpeak.inputs.shapes import find_shapes
from kvpeak.replay.fit import Measured, choices_table, fits_table, left_out_table
from kvpeak.replay.predicted_tables import (
    holders_table,
    length_table,
    longest_table,
    models_table,
    slack_table,
    too_large_table,
)
from kvpeak.replay.published import (
    MODEL,
    TRACED,
    cells_table,
    equal_layers,
    log_table,
    other_cases_table,
)
from kvpeak.replay.questions import questions_table


def tables(cells: list[Measured], log: Path) -> dict[str, list[dict]]:
    """Every table by the name of its file."""
    shapes = find_shapes(MODEL)
    found = {
        "cells": cells_table(shapes, cells),
        "log": log_table(shapes, log),
        "other_cases": other_cases_table(shapes),
        "fit": fits_table(shapes, cells, TRACED),
        "left_out": left_out_table(shapes, cells),
        "choices": choices_table(
            shapes, cells, lambda family: equal_layers(log_table(shapes, log, family))
        ),
        "holders": holders_table(shapes),
        "length": length_table(shapes),
        "longest": longest_table(shapes),
        "slack": slack_table(shapes),
        "models": models_table(),
        "too_large": too_large_table(),
    }
    return found | {"questions": questions_table(shapes, cells, found)}
