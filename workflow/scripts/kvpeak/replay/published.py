"""What was published of Candle on a Mac, and the replay of the same, side by side."""

import csv
from pathlib import Path

from kvpeak.base.numbers import GIB
from kvpeak.inputs.shapes import Shapes, find_shapes
from kvpeak.replay.caps import cap_of, slack_of
from kvpeak.replay.family import Family
from kvpeak.replay.fit import Measured
from kvpeak.replay.pools import CandlePool, size_class
from kvpeak.replay.prediction import predict, prefill_details, run_peaks
from kvpeak.replay.replay import Replay
from kvpeak.replay.script import Event
from kvpeak.replay.trace import candle_trace
from kvpeak.replay.workload import Workload, workload

MODEL = "qwen2.5-0.5b-instruct"  # the finding's, in bfloat16
SLACK_OF_COMMIT = {"fornace-bd42949": None, "fornace-243a9a2": 2}
# The finding's traced run: a wait around each operation.
TRACED = Measured("alice-4096", 4097, "cat-contiguous", None, 2981.4)
# Of Candle's pull request 3851: Qwen2.5-7B Q4_K_M, 5,831 tokens in chunks, activations only. It
# writes GB, which is read as GiB here: taken as 10⁹ bytes, the replay would be 8 to 9 % too high.
SECOND_CASE = (
    (512, "none", 15.12),
    (512, "4x", 4.38),
    (128, "none", 2.17),
    (128, "4x", 2.19),
    (128, "1x", 2.95),
)
SECOND_TOKENS = 5831
LOGGED_CHUNK, LOGGED_START = 512, 4096  # the chunk of which it counts the buffers


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


def log_table(shapes: Shapes, path: Path, family: type[Family] | None = None) -> list[dict]:
    """The finding's allocation log beside the replay's; an empty held was not published.

    `family` is that of candle_trace.
    """
    with path.open(newline="", encoding="utf-8") as file:
        published = list(csv.DictReader(file))
    work = workload(4097, "cat-contiguous")
    replayed = prefill_details(shapes, work, None, family)["layers"]
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


def equal_layers(log: list[dict]) -> int:
    """How many layers of a log_table are equal."""
    return sum(row["equal"] == "yes" for row in log)


def other_cases_table(shapes: Shapes) -> list[dict]:
    """What was published besides the 18 cells. Nothing of it takes part in the fit."""
    work = workload(TRACED.prompt_tokens, TRACED.kv_cache, wait="op")
    traced = predict(shapes, work, TRACED.slack)["peak_mib"]
    rows = [
        _case(
            "the finding's traced run, a wait around each operation, cat-contiguous, 4,097 tokens",
            "MiB",
            TRACED.peak_mib,
            traced,
        )
    ]
    second = find_shapes("qwen2.5-7b-instruct-q4_k_m")
    for chunk, cap, published in SECOND_CASE:
        rows.append(
            _case(
                f"7B Q4_K_M, float32 activations, {SECOND_TOKENS:,} tokens in chunks of {chunk}, "
                f"cap {cap}, activations only",
                "GiB",
                published,
                second_peak(second, chunk, cap) / GIB,
            )
        )
    return rows + out_of_sample_rows(second)


def _case(case: str, unit: str, published: float, replay: float) -> dict:
    error = 100 * (replay / published - 1)
    return {
        "case": case,
        "unit": unit,
        "published": published,
        "replay": replay,
        "error_pct": error,
    }


def second_work(chunk: int) -> Workload:
    return workload(SECOND_TOKENS, "cat-contiguous", generate=1, runs=1, prefill_chunk=chunk)


def second_peak(shapes: Shapes, chunk: int, cap: str) -> int:
    """The pull request's peak of activations, replayed, in bytes."""
    return max(run_peaks(shapes, second_work(chunk), slack_of(cap)))


def out_of_sample_rows(shapes: Shapes) -> list[dict]:
    """What the pull request says of its case besides the peaks."""
    captured, new = captured_and_new(shapes)
    one_class = second_peak(shapes, 128, "2x") / second_peak(shapes, 128, "none") - 1
    where = f"in the chunk of {LOGGED_CHUNK} that starts at {LOGGED_START:,} tokens, no cap"
    capture = f"the same, cache tensors that take a 256 MiB buffer {where}"
    above = "the same, chunks of 128: how much more the cap 2x takes than none"
    return [
        _case(capture, "", 44, captured),
        _case(f"the same, new buffers of 256 MiB {where}", "", 46, new),
        _case(above, "%", 29, 100 * one_class),
    ]


def captured_and_new(shapes: Shapes) -> tuple[int, int]:
    """Cache tensors that hold a buffer of the scores' class after the logged chunk, and how many
    buffers of that class were made in it.
    """
    score = size_class(
        shapes.heads * LOGGED_CHUNK * (LOGGED_START + LOGGED_CHUNK) * shapes.itemsize
    )
    counted = MadeBuffers(score)
    replay, steps = Replay(CandlePool(memory=counted)), LOGGED_START // LOGGED_CHUNK + 1
    before = 0
    for block in candle_trace(shapes, second_work(LOGGED_CHUNK)):
        starts = any(event == Event("upload", "ids", "ids") for event in block.script.events)
        if starts and not steps:
            break
        if starts:
            steps, before = steps - 1, counted.made
        replay.step(block)
    caches = [size for place, (_, size) in replay.buffers.items() if isinstance(place, tuple)]
    return caches.count(score), counted.made - before


class MadeBuffers:
    """The memory behind a pool, as a count of the buffers of one size that were made."""

    def __init__(self, size: int):
        self.size = size
        self.made = 0

    def make(self, heap: int, size: int) -> None:
        self.made += size == self.size

    def drop(self, heap: int, size: int) -> None:
        """The pool gave a buffer back."""
