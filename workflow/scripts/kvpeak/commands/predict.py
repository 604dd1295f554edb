"""Predict the peak under Candle's buffer pool, from a model's shapes.

The figures are predictions: nothing is computed, no weights are read (docs/replay.md).
"""

import itertools
import json
import re
from argparse import ArgumentParser, Namespace
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from pathlib import Path

from kvpeak.base.errors import UserError
from kvpeak.base.files import write_together
from kvpeak.base.numbers import MIB, bytes_of
from kvpeak.base.tables import csv_text, thousandths
from kvpeak.inputs.shapes import find_shapes
from kvpeak.replay.longest import ERROR, longest
from kvpeak.replay.prediction import predict, prefill_details
from kvpeak.replay.workload import ATTENTIONS, KV_CACHES, WAITS, workload

SLACKS = ("none", "0", "1", "2", "3")
INPUTS = (
    *("model", "prompt_tokens", "prefill_chunk", "kv_cache", "attention", "wait", "slack"),
    *("decode", "runs"),
)
FIGURES = ("pool_peak_mib", "weights_mib", "host_mask_mib", "process_mib", "peak_mib")


def arguments(parser: ArgumentParser) -> None:
    option = parser.add_argument
    option("--model", required=True, help="a name under config/models/ or a .json file of shapes")
    length = parser.add_mutually_exclusive_group(required=True)
    length.add_argument("--prompt-tokens", metavar="N")
    length.add_argument(
        "--longest", metavar="SIZES", help="find the longest prompt that fits, e.g. 16GiB,24GiB"
    )
    option("--prefill-chunk", default="whole", metavar="N", help="default: the prompt as a whole")
    option("--kv-cache", required=True, metavar="|".join(KV_CACHES))
    option("--attention", default="naive", metavar="|".join(ATTENTIONS), help="default: naive")
    option("--wait", default="none", metavar="|".join(WAITS), help="op: one around each operation")
    option(
        "--slack", required=True, metavar="|".join(SLACKS), help="classes above; 2 is the cap 4x"
    )
    option("--decode", default="128", metavar="N", help="tokens generated; default: 128")
    option(
        "--runs", default="4", metavar="N", help="runs of the process; default: 4, one to warm up"
    )
    shape = parser.add_mutually_exclusive_group()
    shape.add_argument("--json", action="store_true", help="print one JSON object")
    shape.add_argument(
        "--sweep", type=Path, metavar="CSV", help="take comma lists and write every combination"
    )


def run(given: Namespace) -> None:
    if given.longest:
        found = longest_prompts(given)
        print(json.dumps(found) if given.json else "\n".join(map(said_of, found)))
        return
    wanted = cases(given)
    if given.sweep:
        with ProcessPoolExecutor() as pool:
            rows = list(pool.map(figures_of, wanted, chunksize=8))
        write_together(given.sweep.parent, {given.sweep.name: as_csv(rows)})
        return
    if len(wanted) > 1:
        raise UserError("a comma list needs --sweep CSV; without it give one value each")
    found = prediction(wanted[0], details=True)
    print(json.dumps(found) if given.json else summary(found))


def cases(given: Namespace) -> list[dict]:
    """One dict of INPUTS for each combination of the comma lists. Raises UserError."""
    lists = {
        "model": given.model.split(","),
        "prompt_tokens": [whole("--prompt-tokens", n) for n in given.prompt_tokens.split(",")],
        "prefill_chunk": [
            None if n == "whole" else whole("--prefill-chunk", n)
            for n in given.prefill_chunk.split(",")
        ],
        "kv_cache": choices("--kv-cache", given.kv_cache, KV_CACHES),
        "attention": choices("--attention", given.attention, ATTENTIONS),
        "wait": choices("--wait", given.wait, WAITS),
        "slack": choices("--slack", given.slack, SLACKS),
        "decode": [whole("--decode", n) for n in given.decode.split(",")],
        "runs": [whole("--runs", n) for n in given.runs.split(",")],
    }
    return [dict(zip(lists, values, strict=True)) for values in itertools.product(*lists.values())]


def longest_prompts(given: Namespace) -> list[dict]:
    """For each memory the longest prompt that fits, with the ends that the replay's error
    allows.
    """
    if given.sweep:
        raise UserError("--sweep: takes --prompt-tokens; --longest is printed")
    try:
        memories = [bytes_of(size) for size in given.longest.split(",")]
    except ValueError as error:
        raise UserError(f"--longest: {error}") from None
    given.prompt_tokens = "1"
    wanted = cases(given)
    if len(wanted) > 1:
        raise UserError("--longest: takes one model, KV cache, slack and so on at a time")
    (case,) = wanted
    shapes, options = find_shapes(case["model"]), workload_options(case)
    slack = None if case["slack"] == "none" else int(case["slack"])
    return [
        {"memory_mib": memory / MIB}
        | asdict(longest(shapes, case["kv_cache"], slack, memory / MIB, **options))
        for memory in memories
    ]


def said_of(found: dict) -> str:
    """One memory's longest prompt in words."""
    memory = f"{found['memory_mib'] / 1024:,.0f} GiB"
    if not found["tokens"]:
        return f"{memory}: no prompt fits"
    if found["all_positions"]:
        return f"{memory}: {found['tokens']:,} tokens, all that the model has positions for"
    return (
        f"{memory}: {found['tokens']:,} tokens ({found['low']:,} to {found['high']:,} at an "
        f"error of {100 * ERROR:.1f} %), predicted peak {found['peak_mib']:,.0f} MiB"
    )


def whole(option: str, text: str) -> int:
    if not re.fullmatch(r"0*[1-9]\d{0,8}", text, re.ASCII):
        raise UserError(f"{option}: {text!r:.80}: expected a positive integer of at most 9 digits")
    return int(text)


def choices(option: str, text: str, known: tuple[str, ...]) -> list[str]:
    for value in text.split(","):
        if value not in known:
            raise UserError(f"{option}: {value!r}: expected one of {', '.join(known)}")
    return text.split(",")


def prediction(case: dict, details: bool) -> dict:
    """The object that --json prints: the inputs, the peak and its parts, and who holds what."""
    shapes = find_shapes(case["model"])
    if case["prompt_tokens"] + case["decode"] > shapes.positions:
        raise UserError(
            f"--prompt-tokens: {case['prompt_tokens']} and {case['decode']} decoded: expected at "
            f"most {shapes.positions} together, the positions of {case['model']}"
        )
    work = workload(case["prompt_tokens"], case["kv_cache"], **workload_options(case))
    slack = None if case["slack"] == "none" else int(case["slack"])
    figures = predict(shapes, work, slack)
    return case | figures | (prefill_details(shapes, work, slack) if details else {})


def workload_options(case: dict) -> dict:
    """The case's other fields of Workload."""
    return {
        "generate": case["decode"],
        "runs": case["runs"],
        "prefill_chunk": case["prefill_chunk"],
        "attention": case["attention"],
        "wait": case["wait"],
    }


def figures_of(case: dict) -> dict:
    return prediction(case, details=False)


def as_csv(rows: list[dict]) -> str:
    """The sweep's table; figures to three decimals."""
    return csv_text((*INPUTS, *FIGURES), rows, thousandths)


def summary(found: dict) -> str:
    """A prediction in a few lines for a person."""
    captured = [c for c in found["captures"] if c["role"].endswith("_cache")]
    lines = [
        f"predicted peak {found['peak_mib']:,.0f} MiB = buffers {found['pool_peak_mib']:,.0f}"
        f" + weights {found['weights_mib']:,.0f} + mask on the host {found['host_mask_mib']:,.0f}"
        f" + process {found['process_mib']:,.0f}",
        f"after the prefill {len(captured)} cache tensors hold buffers of a larger class than "
        "theirs",
    ]
    for buffer in found["buffers"]:
        if buffer["bytes"] >= MIB:
            size = f"{buffer['bytes'] / MIB:,.1f} MiB"
            lines.append(
                f"{size:>14} {buffer['heap']:8} {buffer['held']:4} held {buffer['free']:4} free"
            )
    return "\n".join(lines)
