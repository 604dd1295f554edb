"""The figures of Candle's pool, replayed."""

import itertools

from kvpeak.base.numbers import GIB, MIB
from kvpeak.report.pairs import grouped
from kvpeak.report.style import (
    COLOURS,
    HATCHES,
    MARKERS,
    WIDTH,
    Canvas,
    Figure,
    canvas,
    legend,
    stack,
    styled,
    svg,
)


@styled
def captured_bytes(holders: list[dict]) -> Figure | None:
    """What tensors hold in excess of their own size class after a prefill: rows of
    replay_finding.py's table holders.
    """
    roles = list(dict.fromkeys(row["role"] for row in holders))
    if not roles:
        return None
    cells = grouped(
        holders,
        lambda row: f"{row['kv_cache']}, {'no cap' if row['cap'] == 'none' else row['cap']}",
    )
    bars = [
        (
            label,
            [sum(float(r["excess_mib"]) for r in rows if r["role"] == role) for role in roles],
        )
        for label, rows in cells.items()
    ]
    figure = Canvas(figsize=(WIDTH, 1.6 + 0.28 * len(bars)), layout="constrained")
    ax = figure.subplots()
    styles = zip(roles, itertools.cycle(zip(COLOURS, HATCHES, strict=True)), strict=False)
    stack(ax, bars, dict(styles))
    ax.set_xlabel("held in excess, predicted (MiB)")
    spoken = "; ".join(f"{label}: {sum(parts):,.0f} MiB" for label, parts in bars)
    return Figure(
        name="captured-bytes",
        about="replay",
        title="What small tensors hold in excess",
        alt=f"Predicted MiB that tensors hold beyond their own size class. {spoken}.",
        caption="Prediction: bytes beyond their own size class that tensors hold at the end of the "
        "prefill, by the kind of tensor.",
        svg=svg(figure),
    )


SIDES = {"none": ("--", "white", "without a cap"), "4x": ("-", None, "cap 4x")}


@styled
def predicted_by_length(predictions: list[dict], published: list[dict]) -> Figure:
    """The replay's peak against prompt tokens, without and with the cap, and the published peaks.

    Rows of replay_finding's tables length and cells, in MiB.
    """
    figure, axes = canvas(1, height=3.2)
    (ax,) = axes
    _draw_predictions(ax, predictions)
    measured = [(row["prompt_tokens"], row["fornace_mib"] * MIB / GIB) for row in published]
    ax.plot(*zip(*measured, strict=True), "k_", markersize=8, label="measured (the finding)")
    longest = max(row["prompt_tokens"] for row in predictions)
    ax.set_yscale("log", base=2)
    ax.set_xticks(range(4097, longest + 1, 4096))
    ax.set_xlabel("prompt tokens")
    ax.set_ylabel("peak memory (GiB)")
    ax.xaxis.set_major_formatter("{x:,.0f}")
    ax.yaxis.set_major_formatter("{x:g}")
    legend(figure, axes)
    ends = "; ".join(
        f"{row['kv_cache']}, {row['cap']}: {row['peak_mib'] * MIB / GIB:,.1f} GiB"
        for row in predictions
        if row["prompt_tokens"] == longest
    )
    return Figure(
        name="peak-against-length",
        title="Predicted peak memory by prompt length",
        alt=f"Predicted peak memory against prompt length; at {longest:,} tokens {ends}.",
        caption="Lines: predictions of the replay, broken with open markers without a cap, solid "
        "with filled ones with 4x. Black bars: the finding's measured peaks.",
        svg=svg(figure),
    )


def _draw_predictions(ax, predictions: list[dict]) -> None:
    """A line for each cache, without and with the cap."""
    caches = list(dict.fromkeys(row["kv_cache"] for row in predictions))
    lines = list(itertools.product(enumerate(caches), SIDES.items()))
    for number, ((style, cache), (cap, (line, face, name))) in enumerate(lines):
        points = [
            (row["prompt_tokens"], row["peak_mib"] * MIB / GIB)
            for row in predictions
            if (row["kv_cache"], row["cap"]) == (cache, cap)
        ]
        ax.plot(
            *zip(*points, strict=True),
            line,
            color=COLOURS[style],
            marker=MARKERS[style],
            markersize=4.5,
            # where lines coincide, each has markers of its own
            markevery=(number, len(lines)),
            markerfacecolor=face,
            linewidth=1,
            label=f"{cache}, {name}",
        )
