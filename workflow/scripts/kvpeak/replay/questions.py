"""The finding's open questions, as far as a replay can answer them: each answer is a prediction."""

from kvpeak.base.numbers import MIB
from kvpeak.inputs.shapes import Shapes
from kvpeak.replay.caps import COMPARED, cap_of
from kvpeak.replay.fit import Measured
from kvpeak.replay.pools import size_class
from kvpeak.replay.prediction import predict, prefill_details, run_peaks
from kvpeak.replay.trace import scores_bytes
from kvpeak.replay.workload import KV_CACHES, workload


def questions_table(shapes: Shapes, cells: list[Measured], found: dict) -> list[dict]:
    """`found` holds the tables left_out, slack and models."""
    worst_pct = max(row["predicted_error_pct"] for row in found["left_out"])
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
            [
                predict(shapes, workload(n, kv_cache), slack)["peak_mib"]
                for slack in COMPARED.values()
            ]
            for n in (8192, 8193)
        )
        parts.append(f"{kv_cache}: {without:,.0f} MiB without a cap, {capped:,.0f} with 4x")
        steps += [1 - shorter[0] / without, 1 - shorter[1] / capped]
    return (
        f"{'; '.join(parts)}; with one token less {100 * min(steps):,.1f} to "
        f"{100 * max(steps):,.1f} % less, since a size class is a power of two"
    )


def best_cap(rows: list[dict], worst_pct: float) -> str:
    """In words, from the rows of the table slack and by how much the replay misses a length
    that took no part in its fit, at most.
    """
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
        "the most that each takes above the lowest peak of the same prompt and cache "
        f"({len(rows)} of them): "
        + ", ".join(f"{cap} {excess[cap]:,.1f} %" for cap in order)
        + (
            f"; the worst of {', '.join([order[0], *near])} lie nearer together than the "
            f"{worst_pct:.1f} % by which the replay misses a length that took no part in its fit"
            if near
            else ""
        )
        + f"; the lowest most often is {most_often}, in {lowest[most_often]} of {len(rows)}"
    )


def capped_prealloc(shapes: Shapes) -> str:
    counts = {}
    for cap, slack in COMPARED.items():
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
        f"the MLP's tensors ({inner:,.0f} MiB class) may no longer use the free {scores:,.0f} MiB "
        "score buffers and make their own; private buffers without a cap → with 4x: "
        f"{', '.join(changed)}"
    )


def other_tensor(shapes: Shapes) -> str:
    captures = prefill_details(shapes, workload(4097, "cat-contiguous"), None)["captures"]
    held = [c["buffer_bytes"] for c in captures if c["role"].endswith("_cache")]
    scores = size_class(scores_bytes(shapes, workload(4097, "cat")))
    small = size_class(4097 * shapes.hidden * shapes.itemsize)
    return (
        f"of the {2 * shapes.layers} cache tensors of 1 MiB, {held.count(scores)} hold a score "
        f"buffer and {held.count(small)} one of {small / MIB:,.0f} MiB, the class of the hidden "
        "states: in most layers one of k and v takes the first, the other the second"
    )


def warm_up(shapes: Shapes, cells: list[Measured]) -> str:
    later = []
    for cell in cells:
        first, *others = run_peaks(shapes, workload(cell.prompt_tokens, cell.kv_cache), cell.slack)
        if max(others) > first:
            over = (max(others) - first) / MIB
            later.append(
                f"{cell.kv_cache}, {cap_of(cell.slack)}, {cell.prompt_tokens:,} tokens: "
                f"{over:,.0f} MiB more"
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
    without, capped = (predict(shapes, work, slack)["peak_mib"] for slack in COMPARED.values())
    return (
        f"no score buffer is made or captured, but {number} cache tensors hold "
        f"{largest / MIB:,.0f} MiB buffers of the MLP instead: {without:,.0f} MiB without a cap, "
        f"{capped:,.0f} with 4x (cat-contiguous, 4,097 tokens)"
    )
