"""Hold the replay against the published finding, and predict what it did not measure.

Writes one CSV per table of the report's section, and one figure. Nothing here is measured: every
figure that is not marked as published is a prediction.
"""

import argparse
import csv
import io
import sys
from dataclasses import replace
from itertools import product
from pathlib import Path

from kvpeak.base.errors import UserError
from kvpeak.base.files import write_together
from kvpeak.base.numbers import MIB
from kvpeak.inputs.shapes import Shapes, find_shapes
from kvpeak.replay.fit import FACTORS, Measured, Qwen2GateKept, Structure, fit, pairs, worst_error
from kvpeak.replay.pools import size_class
from kvpeak.replay.prediction import CAPACITY_FACTOR, predict, prefill_details, run_peaks, workload
from kvpeak.replay.traces import KV_CACHES, Qwen2, scores_bytes
from kvpeak.report.figures import predicted_by_length

MODEL = "qwen2.5-0.5b-instruct"  # the finding's, in bfloat16
# The structure that is used: qwen2.rs frees the gate before it makes up, and builds the mask on the host.
USED = Structure(Qwen2, host_mask=True, capacity_factor=CAPACITY_FACTOR)
SLACK_OF_COMMIT = {"fornace-bd42949": None, "fornace-243a9a2": 2}
CAPS = {"none": None, "4x": 2}
MODELS = (
    *("smollm2-135m-instruct", "qwen2.5-0.5b-instruct", "llama-3.2-1b-instruct"),
    *("qwen2.5-1.5b-instruct", "qwen2.5-3b-instruct", "llama-3.2-3b-instruct"),
    *("qwen2.5-7b-instruct", "qwen2.5-7b-instruct-q4_k_m"),
)
MACHINES_GIB = (8, 16, 24, 32, 64)
LENGTHS = (513, 1025, 2049, 4097, 8193, 16385)
CURVE = (513, *range(1025, 16386, 1024))  # tokens; those that the finding measured are among them
TRACED_MIB = 2981.4  # the finding's traced run: a wait around each operation
# Of Candle's pull request 3851: Qwen2.5-7B Q4_K_M, 5,831 tokens in chunks, activations only.
SECOND_CASE = (
    (512, "none", 15.12),
    (512, "4x", 4.38),
    (128, "none", 2.17),
    (128, "4x", 2.19),
    (128, "1x", 2.95),
)
SECOND_TOKENS = 5831


def slack_of(cap: str) -> int | None:
    return None if cap == "none" else int(cap.removesuffix("x")).bit_length() - 1


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


def cap_name(slack: int | None) -> str:
    return "none" if slack is None else f"{2**slack}x"


# The published measurements --------------------------------------------------------------------


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
                "cap": cap_name(cell.slack),
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
    traced = predict(shapes, workload(4097, "cat-contiguous", wait="op"), None)["peak_mib"]
    rows = [
        {
            "case": "the finding's traced run, a wait around each operation, cat-contiguous, 4,097 tokens",
            "unit": "MiB",
            "published": TRACED_MIB,
            "replay": traced,
        }
    ]
    second = find_shapes("qwen2.5-7b-instruct-q4_k_m")
    for chunk, cap, gib in SECOND_CASE:
        work = workload(SECOND_TOKENS, "cat-contiguous", generate=1, runs=1, prefill_chunk=chunk)
        rows.append(
            {
                "case": f"7B Q4_K_M, float32 activations, {SECOND_TOKENS:,} tokens in chunks of {chunk}, cap {cap}, "
                "activations only",
                "unit": "GiB",
                "published": gib,
                "replay": max(run_peaks(second, work, slack_of(cap))) / 2**30,
            }
        )
    return [row | {"error_pct": 100 * (row["replay"] / row["published"] - 1)} for row in rows]


# The fit ---------------------------------------------------------------------------------------


def fit_tables(shapes: Shapes, cells: list[Measured]) -> tuple[list[dict], list[dict]]:
    """Every structure that was tried with one and two constants; and one length left out at a time.

    The traced run, whose error stands beside, takes no part in the fit.
    """
    traced = Measured("alice-4096", 4097, "cat-contiguous", None, TRACED_MIB)
    tried = []
    for mlp, host_mask, factors in product((Qwen2, Qwen2GateKept), (True, False), ((1,), FACTORS)):
        structures = [Structure(mlp, host_mask, factor) for factor in factors]
        structure, constant, error = fit(shapes, structures, cells)
        known = structure.known_mib(shapes, traced, wait="op")
        tried.append(
            {
                "mlp_buffers": 3 if mlp is Qwen2 else 4,
                "host_mask": "yes" if host_mask else "no",
                "constants": 1 if factors == (1,) else 2,
                "capacity_factor": structure.capacity_factor,
                "process_mib": constant,
                "worst_error_pct": 100 * error,
                "traced_error_pct": 100 * ((known + constant) / traced.peak_mib - 1),
                "used": "yes" if structure == USED and len(factors) > 1 else "no",
            }
        )
    left_out = []
    for tokens in sorted({cell.prompt_tokens for cell in cells}):
        structures = [replace(USED, capacity_factor=factor) for factor in FACTORS]
        seen = [cell for cell in cells if cell.prompt_tokens != tokens]
        structure, constant, error = fit(shapes, structures, seen)
        unseen = [cell for cell in cells if cell.prompt_tokens == tokens]
        left_out.append(
            {
                "left_out_tokens": tokens,
                "capacity_factor": structure.capacity_factor,
                "process_mib": constant,
                "fitted_error_pct": 100 * error,
                "predicted_error_pct": 100
                * worst_error(pairs(shapes, structure, unseen), constant),
            }
        )
    return tried, left_out


# Predictions -----------------------------------------------------------------------------------


def holders_table(shapes: Shapes, prompt_tokens: int = 4097) -> list[dict]:
    """Which tensors hold buffers of which size at the end of the prefill, equal ones counted."""
    rows = []
    for kv_cache, (cap, slack) in product(KV_CACHES, CAPS.items()):
        counted: dict[tuple, int] = {}
        for capture in prefill_details(shapes, workload(prompt_tokens, kv_cache), slack)[
            "captures"
        ]:
            kind = capture["role"], capture["requested_bytes"], capture["buffer_bytes"]
            counted[kind] = counted.get(kind, 0) + 1
        for (role, requested, size), tensors in sorted(
            counted.items(), key=lambda item: -item[0][2]
        ):
            rows.append(
                {
                    "kv_cache": kv_cache,
                    "cap": cap,
                    "role": role,
                    "requested_mib": requested / MIB,
                    "buffer_mib": size / MIB,
                    "tensors": tensors,
                    "excess_mib": tensors * (size - size_class(requested)) / MIB,
                }
            )
    return rows


def length_table(shapes: Shapes) -> list[dict]:
    return [
        {
            "prompt_tokens": tokens,
            "kv_cache": kv_cache,
            "cap": cap,
            "peak_mib": predict(shapes, workload(tokens, kv_cache), slack)["peak_mib"],
        }
        for kv_cache, (cap, slack), tokens in product(KV_CACHES, CAPS.items(), CURVE)
    ]


def slack_table(shapes: Shapes) -> list[dict]:
    rows = []
    for tokens, kv_cache in product((513, 2049, 4097, 8193), KV_CACHES):
        row = {"prompt_tokens": tokens, "kv_cache": kv_cache}
        for cap in ("none", "1x", "2x", "4x", "8x"):
            found = predict(shapes, workload(tokens, kv_cache), slack_of(cap))
            row[f"cap_{cap}"] = found["peak_mib"]
        rows.append(row)
    return rows


def models_table(prompt_tokens: int = 4097, kv_cache: str = "cat-contiguous") -> list[dict]:
    """Every model at one length, and the finding's in each type."""
    named = [(model, None, find_shapes(model)) for model in MODELS]
    named += [(MODEL, dtype, find_shapes(MODEL, dtype)) for dtype in ("float16", "float32")]
    rows = []
    for model, dtype, shapes in named:
        work = workload(prompt_tokens, kv_cache)
        without, capped = (predict(shapes, work, slack)["peak_mib"] for slack in CAPS.values())
        rows.append(
            {
                "model": model,
                "dtype": dtype or {2: "bfloat16", 4: "float32"}[shapes.itemsize],
                "prompt_tokens": prompt_tokens,
                "kv_cache": kv_cache,
                "none_mib": without,
                "capped_mib": capped,
                "times": without / capped,
            }
        )
    return rows


def too_large_table(kv_cache: str = "cat-contiguous") -> list[dict]:
    """The models and lengths that do not fit in each machine's memory without the cap, or with it."""
    rows = []
    for model, tokens in product(MODELS, LENGTHS):
        shapes = find_shapes(model)
        work = workload(tokens, kv_cache)
        if tokens + work.generate > shapes.positions:
            continue
        gib = {cap: predict(shapes, work, slack)["peak_mib"] / 1024 for cap, slack in CAPS.items()}
        too_small = {cap: [str(size) for size in MACHINES_GIB if size < gib[cap]] for cap in CAPS}
        if too_small["none"]:
            rows.append(
                {
                    "model": model,
                    "prompt_tokens": tokens,
                    "none_gib": gib["none"],
                    "none_not_in_gib": ", ".join(too_small["none"]),
                    "capped_gib": gib["4x"],
                    "capped_not_in_gib": ", ".join(too_small["4x"]),
                }
            )
    return rows


# The finding's open questions ------------------------------------------------------------------


def questions_table(shapes: Shapes, cells: list[Measured], found: dict) -> list[dict]:
    """`found` holds the tables cells, slack and models."""
    worst_pct = max(abs(row["error_pct"]) for row in found["cells"])
    return [
        {
            "question": "What would 8,193 tokens take? (The finding estimated 8,192.)",
            "prediction": longer_prompt(shapes),
        },
        {"question": "Which cap is best?", "prediction": best_cap(found["slack"], worst_pct)},
        {
            "question": "Why does prealloc peak 4 % higher with the cap at 4,097 tokens?",
            "prediction": capped_prealloc(shapes),
        },
        {
            "question": "What are the 8 MiB in each layer that are not explained?",
            "prediction": other_tensor(shapes),
        },
        {
            "question": "Does the warm-up run alone set the peak?",
            "prediction": warm_up(shapes, cells),
        },
        {
            "question": "Which other models and types are hit?",
            "prediction": other_models(found["models"]),
        },
        {
            "question": "Does fused attention end it?",
            "prediction": fused(shapes),
        },
    ]


def longer_prompt(shapes: Shapes) -> str:
    parts, steps = [], []
    for kv_cache in KV_CACHES:
        shorter, (without, capped) = (
            [predict(shapes, workload(n, kv_cache), slack)["peak_mib"] for slack in CAPS.values()]
            for n in (8192, 8193)
        )
        parts.append(f"{kv_cache}: {without:,.0f} MiB without a cap, {capped:,.0f} with 4x")
        steps += [1 - shorter[0] / without, 1 - shorter[1] / capped]
    return (
        f"{'; '.join(parts)}; with one token less {100 * min(steps):,.1f} to {100 * max(steps):,.1f} % less, since a size "
        "class is a power of two"
    )


def best_cap(rows: list[dict], worst_pct: float) -> str:
    """In words, from the rows of the table slack and the replay's largest error."""
    caps = [key for key in rows[0] if key.startswith("cap_")]
    least = [min(row[cap] for cap in caps) for row in rows]
    excess = {
        cap.removeprefix("cap_"): max(
            100 * (row[cap] / best - 1) for row, best in zip(rows, least, strict=True)
        )
        for cap in caps
    }
    order = sorted(excess, key=excess.get)
    near = [cap for cap in order[1:] if excess[cap] - excess[order[0]] < worst_pct]
    lowest = {
        cap: sum(row[f"cap_{cap}"] == best for row, best in zip(rows, least, strict=True))
        for cap in order
    }
    most_often = max(order, key=lowest.get)
    return (
        f"the most that each takes above the lowest peak of the same prompt and cache ({len(rows)} of them): "
        + ", ".join(f"{cap} {excess[cap]:,.1f} %" for cap in order)
        + (
            f"; {', '.join([order[0], *near])} are not distinguishable at the replay's error of up to {worst_pct:.1f} %"
            if near
            else ""
        )
        + f"; the lowest most often is {most_often}, in {lowest[most_often]} of {len(rows)}"
    )


def capped_prealloc(shapes: Shapes) -> str:
    counts = {}
    for cap, slack in CAPS.items():
        details = prefill_details(shapes, workload(4097, "prealloc"), slack)["buffers"]
        counts[cap] = {b["bytes"]: b["held"] + b["free"] for b in details if b["heap"] == "private"}
    changed = [
        f"{size / MIB:,.0f} MiB: {counts['none'].get(size, 0)} → {counts['4x'].get(size, 0)}"
        for size in sorted(counts["none"].keys() | counts["4x"], reverse=True)
        if counts["none"].get(size, 0) != counts["4x"].get(size, 0)
    ]
    inner = size_class(4097 * shapes.intermediate * shapes.itemsize) / MIB
    scores = size_class(scores_bytes(shapes, workload(4097, "prealloc"))) / MIB
    return (
        f"the MLP's tensors ({inner:,.0f} MiB class) may no longer use the free {scores:,.0f} MiB score buffers and "
        f"make their own; private buffers without a cap → with 4x: {', '.join(changed)}"
    )


def other_tensor(shapes: Shapes) -> str:
    captures = prefill_details(shapes, workload(4097, "cat-contiguous"), None)["captures"]
    held = [c["buffer_bytes"] for c in captures if c["role"].endswith("_cache")]
    small = size_class(4097 * shapes.hidden * shapes.itemsize)
    return (
        f"of the {2 * shapes.layers} cache tensors of 1 MiB, {held.count(size_class(scores_bytes(shapes, workload(4097, 'cat'))))} "
        f"hold a score buffer and {held.count(small)} one of {small / MIB:,.0f} MiB, the class of the hidden states: in most "
        "layers one of k and v takes the first, the other the second"
    )


def warm_up(shapes: Shapes, cells: list[Measured]) -> str:
    later = []
    for cell in cells:
        first, *others = run_peaks(shapes, workload(cell.prompt_tokens, cell.kv_cache), cell.slack)
        if max(others) > first:
            over = (max(others) - first) / MIB
            later.append(
                f"{cell.kv_cache}, {cap_name(cell.slack)}, {cell.prompt_tokens:,} tokens: {over:,.0f} MiB more"
            )
    return f"in {len(cells) - len(later)} of {len(cells)} cells" + (
        f"; a later run peaks higher in {'; '.join(later)}" if later else ""
    )


def other_models(models: list[dict]) -> str:
    return "; ".join(f"{row['model']} ({row['dtype']}) {row['times']:.1f}×" for row in models) + (
        " the memory without the cap, at 4,097 tokens with cat-contiguous"
    )


def fused(shapes: Shapes) -> str:
    work = workload(4097, "cat-contiguous", attention="fused")
    captures = prefill_details(shapes, work, None)["captures"]
    largest = max(capture["buffer_bytes"] for capture in captures)
    number = sum(capture["buffer_bytes"] == largest for capture in captures)
    without, capped = (predict(shapes, work, slack)["peak_mib"] for slack in CAPS.values())
    return (
        f"no score buffer is made or captured, but {number} cache tensors hold {largest / MIB:,.0f} MiB buffers of the MLP "
        f"instead: {without:,.0f} MiB without a cap, {capped:,.0f} with 4x (cat-contiguous, 4,097 tokens)"
    )


# Output ----------------------------------------------------------------------------------------


def tables(cells: list[Measured], log: Path) -> dict[str, list[dict]]:
    """Every table by the name of its file."""
    shapes = find_shapes(MODEL)
    tried, left_out = fit_tables(shapes, cells)
    found = {
        "cells": cells_table(shapes, cells),
        "log": log_table(shapes, log),
        "other_cases": other_cases_table(shapes),
        "fit": tried,
        "left_out": left_out,
        "holders": holders_table(shapes),
        "length": length_table(shapes),
        "slack": slack_table(shapes),
        "models": models_table(),
        "too_large": too_large_table(),
    }
    return found | {"questions": questions_table(shapes, cells, found)}


def as_csv(rows: list[dict]) -> str:
    """CSV with the first row's keys as header; figures to three decimals, unknown ones empty."""
    out = io.StringIO()
    writer = csv.DictWriter(out, rows[0], lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({k: round(v, 3) if isinstance(v, float) else v for k, v in row.items()})
    return out.getvalue()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    option = parser.add_argument
    option("--cells", type=Path, default=Path("config/fornace-2026-11-04.csv"))
    option("--log", type=Path, default=Path("config/fornace-alloc-log-cat-contiguous-4096.csv"))
    option("--out", type=Path, default=Path("results/replay"), help="default: %(default)s")
    arguments = parser.parse_args()
    try:
        cells = read_cells(arguments.cells)
        found = tables(cells, arguments.log)
    except UserError as error:
        print(f"replay_finding: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"replay_finding: {error.filename}: {error.strerror}", file=sys.stderr)
        return 1
    figure = predicted_by_length(found["length"], found["cells"])
    described = {
        "file": str(Path("..") / arguments.out / f"{figure.name}.svg"),
        "alt": figure.alt,
        "caption": figure.caption,
    }
    texts = {f"{figure.name}.svg": figure.svg, "figure.csv": as_csv([described])}
    write_together(
        arguments.out, texts | {f"{name}.csv": as_csv(rows) for name, rows in found.items()}
    )
    worst = max(abs(row["error_pct"]) for row in found["cells"])
    equal = sum(row["equal"] == "yes" for row in found["log"])
    print(
        f"{arguments.out}: {len(found['cells'])} peaks within {worst:.1f} %, "
        f"{equal} of {len(found['log'])} layers of the log equal"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
