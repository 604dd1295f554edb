"""What was published of Candle on a Mac, and the replay of the same, side by side."""

import csv
from pathlib import Path

from kvpeak.base.numbers import GIB
from kvpeak.inputs.shapes import Shapes, find_shapes
from kvpeak.replay.caps import cap_of, slack_of
from kvpeak.replay.fit import Measured
from kvpeak.replay.prediction import predict, prefill_details, run_peaks
from kvpeak.replay.workload import workload

MODEL = "qwen2.5-0.5b-instruct"  # the finding's, in bfloat16
SLACK_OF_COMMIT = {"fornace-bd42949": None, "fornace-243a9a2": 2}
# The finding's traced run: a wait around each operation.
TRACED = Measured("alice-4096", 4097, "cat-contiguous", None, 2981.4)
# Of Candle's pull request 3851: Qwen2.5-7B Q4_K_M, 5,831 tokens in chunks, activations only.
SECOND_CASE = (
    (512, "none", 15.12),
    (512, "4x", 4.38),
    (128, "none", 2.17),
    (128, "4x", 2.19),
    (128, "1x", 2.95),
)
SECOND_TOKENS = 5831


def read_cells(path: Path) -> list[Measured]:
    """The finding's peaks; a prompt named alice-512 has 513 tokens."""
    with path.open(newline="", encoding="utf-8") as file:
        return [
            Measured(
                prompt=row["prompt"],
                prompt_tokens=int(row["prompt"].split("-")[1]) + 1,
                kv_cache=row["kv_cache"],
                slack=SLACK_OF_COMMIT[row["commit"]],
                peak_mib=float(row["peak_footprint_mib"]),
            )
            for row in csv.DictReader(file)
        ]


def cells_table(shapes: Shapes, cells: list[Measured]) -> list[dict]:
    rows = []
    for cell in cells:
        work = workload(cell.prompt_tokens, cell.kv_cache)
        replayed = predict(shapes, work, cell.slack)["peak_mib"]
        rows.append(
            {
                "prompt": cell.prompt,
                "prompt_tokens": cell.prompt_tokens,
                "kv_cache": cell.kv_cache,
                "cap": cap_of(cell.slack),
                "fornace_mib": cell.peak_mib,
                "replay_mib": replayed,
                "error_pct": 100 * (replayed / cell.peak_mib - 1),
            }
        )
    return rows


def log_table(shapes: Shapes, path: Path) -> list[dict]:
    """The finding's allocation log beside the replay's; an empty held was not published."""
    with path.open(newline="", encoding="utf-8") as file:
        published = list(csv.DictReader(file))
    replayed = prefill_details(shapes, workload(4097, "cat-contiguous"), None)["layers"]
    rows = []
    for log, layer in zip(published, replayed, strict=True):
        new, held = log["new_512mib"], log["held_512mib_at_softmax"]
        equal = int(new) == layer["new"] and held in ("", str(layer["held"]))
        rows.append(
            {
                "layer": layer["layer"],
                "fornace_new": new,
                "replay_new": layer["new"],
                "fornace_held": held,
                "replay_held": layer["held"],
                "equal": "yes" if equal else "no",
            }
        )
    return rows


def other_cases_table(shapes: Shapes) -> list[dict]:
    """What was published besides the 18 cells. Not used in the fit."""
    work = workload(TRACED.prompt_tokens, TRACED.kv_cache, wait="op")
    traced = predict(shapes, work, TRACED.slack)["peak_mib"]
    rows = [
        {
            "case": "the finding's traced run, a wait around each operation, cat-contiguous, "
            "4,097 tokens",
            "unit": "MiB",
            "published": TRACED.peak_mib,
            "replay": traced,
        }
    ]
    second = find_shapes("qwen2.5-7b-instruct-q4_k_m")
    for chunk, cap, gib in SECOND_CASE:
        work = workload(SECOND_TOKENS, "cat-contiguous", generate=1, runs=1, prefill_chunk=chunk)
        rows.append(
            {
                "case": f"7B Q4_K_M, float32 activations, {SECOND_TOKENS:,} tokens in chunks of "
                f"{chunk}, cap {cap}, activations only",
                "unit": "GiB",
                "published": gib,
                "replay": max(run_peaks(second, work, slack_of(cap))) / GIB,
            }
        )
    return [row | {"error_pct": 100 * (row["replay"] / row["published"] - 1)} for row in rows]
