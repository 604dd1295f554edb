"""The figures of a comparison. Every function returns None where there is nothing to draw."""

import textwrap

from kvpeak.analysis.comparisons import PRACTICAL, Comparison, Pair, has_peak, peak_range
from kvpeak.analysis.lead import spell_name
from kvpeak.analysis.statistics import Ratio, within
from kvpeak.analysis.workloads import is_plain
from kvpeak.base.columns import SPEEDS
from kvpeak.report.pairs import (
    cache_of,
    grouped,
    label,
    largest,
    largest_panels,
    most_changed,
    not_in_runs,
    one_process,
    panel,
    replayed,
    sampled,
    sides,
    spell_peaks,
    spell_ratios,
    spoken,
    two_sided,
)
from kvpeak.report.style import (
    COLOURS,
    FONT,
    LABEL_WIDTH,
    LINES,
    MARKERS,
    SMALL,
    TITLE_WIDTH,
    WIDTH,
    Canvas,
    Figure,
    canvas,
    legend,
    logarithmic,
    stack,
    styled,
    svg,
    ticks,
)

PARTS = {  # of a peak → its colour and hatch
    "weights": (COLOURS[1], ""),
    "live beside them": (COLOURS[4], "\\\\\\\\"),
    "free, kept in the pool": (COLOURS[0], "////"),
    "rest of the process": ("white", ""),
}
FAR_APART = 10  # times; ratios of which one is so much another have a logarithmic axis
COUNTERS = {
    "peak_footprint_mib": "operating\nsystem",
    "peak_device_mib": "device",
    "peak_rss_mib": "resident\n(RSS)",
    "peak_pool_mib": "allocator:\nlive + cached",
    "peak_active_mib": "allocator:\nlive",
}


@styled
def peak_by_length(comparison: Comparison) -> Figure | None:
    """Peak memory against prompt tokens, before and after: a panel for each model and setting, a
    line for each KV cache. A workload has no length, and no place in it.
    """
    if comparison.axis == "prompt":
        return None
    pairs = [
        pair
        for pair in two_sided(comparison)
        if is_plain(pair.before) and (has_peak(pair.before) or has_peak(pair.after))
    ]
    if not pairs:
        return None
    before, after = sides(comparison)
    every = grouped(pairs, lambda pair: panel(comparison, pair))
    panels = largest_panels(every)
    pairs = [pair for members in panels.values() for pair in members]
    caches = list(dict.fromkeys(map(cache_of, pairs)))
    figure, axes = canvas(len(panels), height=2.4)
    for ax, (title, members) in zip(axes, panels.items(), strict=True):
        for cache, line in grouped(members, cache_of).items():
            for side, name in (("before", before), ("after", after)):
                text = f"{cache}, {name}".removeprefix(", ")
                _draw_line(ax, line, side, caches.index(cache), text)
        _finish_lengths(ax, title)
    axes[0].set_ylabel(f"{'sampled ' if sampled(pairs) else ''}peak memory (MiB)")
    legend(figure, axes)
    return Figure(
        name=f"peak-by-length-{comparison.slug}",
        about=comparison.slug,
        title=f"Peak memory by prompt length, {before} → {after}",
        alt=f"Peak memory against prompt length, {before} → {after}. " + spoken(pairs, spell_peaks),
        caption=f"The process's peak memory; open markers and broken lines: {before}, filled "
        f"markers and solid lines: {after}. A point is the median of the cell's processes, a bar "
        "their range."
        + most_changed(len(panels), len(every), "panels")
        + sampled(pairs)
        + replayed(pairs),
        svg=svg(figure),
    )


def _draw_line(ax, line: list[Pair], side: str, style: int, text: str) -> None:
    """One cache's peaks against prompt tokens, before or after."""
    rows = list(filter(has_peak, (getattr(pair, side) for pair in line)))
    points = sorted((int(row["prompt_tokens"]), row["peak_mib"]) for row in rows)
    for row in rows:
        place = [int(row["prompt_tokens"])] * 2
        ax.plot(place, peak_range(row), "-", color=COLOURS[style % len(COLOURS)], linewidth=1)
    ax.plot(
        *zip(*points, strict=True) if points else ((), ()),
        LINES[side],
        color=COLOURS[style % len(COLOURS)],
        marker=MARKERS[style % len(MARKERS)],
        # the first is the largest: where lines coincide, each can still be seen
        markersize=max(3.5, 8 - 2 * style),
        linewidth=max(1, 2.4 - 0.7 * style),
        markerfacecolor="white" if side == "before" else None,
        label=text,
    )


def _finish_lengths(ax, title: str) -> None:
    """The axes of a panel whose lines are drawn."""
    ax.set_title(textwrap.fill(title, TITLE_WIDTH), loc="left")
    ax.set_xlabel("prompt tokens")
    ax.set_xticks(ticks({int(x) for line in ax.lines for x in line.get_xdata()}))
    ax.margins(x=0.12)
    ax.xaxis.set_major_formatter("{x:,.0f}")
    ax.yaxis.set_major_formatter("{x:,.0f}")
    ax.set_ylim(0, 1.12 * max(y for line in ax.lines for y in line.get_ydata()))


@styled
def peak_by_counter(comparison: Comparison, pair: Pair) -> Figure | None:
    """The same two processes as each counter saw them: bars before and after."""
    rows = (pair.before, pair.after)
    counters = [name for name in COUNTERS if all(row and row.get(name) is not None for row in rows)]
    if not counters:
        return None
    before, after = sides(comparison)
    figure = Canvas(figsize=(WIDTH, 3.0), layout="constrained")
    ax = figure.subplots()
    for number, row in enumerate(rows):
        bars = ax.bar(
            [position + 0.4 * (number - 0.5) for position in range(len(counters))],
            [row[name] for name in counters],
            width=0.38,
            color=("white", COLOURS[1])[number],
            edgecolor=(COLOURS[0], "black")[number],
            hatch=("////", "")[number],
            label=(before, after)[number],
        )
        ax.bar_label(bars, fmt="{:,.0f}", fontsize=SMALL)
    ax.set_xticks(range(len(counters)), [COUNTERS[name] for name in counters])
    ax.set_ylabel("peak memory (MiB)")
    ax.grid(axis="x", visible=False)
    ax.margins(y=0.15)
    ax.yaxis.set_major_formatter("{x:,.0f}")
    figure.legend(loc="outside lower center", ncols=2)
    numbers = "; ".join(
        f"{COUNTERS[name].replace(chr(10), ' ')} {pair.before[name]:,.0f} → {pair.after[name]:,.0f}"
        for name in counters
    )
    where = ", ".join(spell_name(*named) for named in pair.names.items())
    return Figure(
        name=f"peak-by-counter-{comparison.slug}",
        about=comparison.slug,
        title=f"One peak, several counters, {before} → {after}",
        alt=f"Peak memory in MiB by counter, {where}: {numbers}.",
        caption=f"The peak of {where} as each counter saw it. An allocator's live bytes leave out "
        "the free buffers that it keeps." + sampled([pair]) + replayed([pair]),
        svg=svg(figure),
    )


@styled
def where_bytes_are(comparison: Comparison, pair: Pair) -> Figure | None:
    """What each cell's peak consists of, for the cells that share the pair's prompt and panel: a
    bar a cell.
    """
    near = [
        other
        for other in two_sided(comparison)
        if panel(comparison, other) == panel(comparison, pair)
        and other.names.get("prompt") == pair.names.get("prompt")
    ]
    before, after = sides(comparison)
    bars = [
        (f"{cache_of(other)}, {name}".removeprefix(", "), parts)
        for other in largest(near)
        for name, row in ((before, other.before), (after, other.after))
        if (parts := row.get("parts"))
    ]
    if not bars:
        return None
    figure = Canvas(figsize=(WIDTH, 1.3 + 0.28 * len(bars)), layout="constrained")
    ax = figure.subplots()
    stack(ax, bars, PARTS)
    ax.set_xlabel("peak memory (MiB)")
    where = ", ".join(
        spell_name(axis, name) for axis, name in pair.names.items() if axis != "kv_cache"
    )
    spoken = "; ".join(
        f"{label}: {parts[2]:,.0f} of {sum(parts):,.0f} MiB" for label, parts in bars[:4]
    )
    return Figure(
        name=f"where-bytes-are-{comparison.slug}",
        about=comparison.slug,
        title="Where the bytes are at the peak",
        alt=f"Parts of the peak, {where}. Kept free buffers: {spoken}.",
        caption=f"The peak of each cell ({where}).{not_in_runs(largest(near))} Each counter is "
        "at its own peak: what is live is at most that much, the rest at least."
        + one_process(largest(near))
        + sampled([pair]),
        svg=svg(figure),
    )


@styled
def speed_ratios(comparison: Comparison) -> Figure | None:
    """Speed after / before of every pair with its 95 % interval, beside the margin that counts as
    the same.
    """
    every = [pair for pair in comparison.pairs if pair.speeds]
    pairs = largest(every)
    columns = [
        name
        for name in ("prefill_tok_s", "decode_tok_s")
        if any(name in pair.speeds for pair in pairs)
    ]
    if not columns:
        return None
    before, after = sides(comparison)
    names = [textwrap.fill(label(comparison, pair), LABEL_WIDTH) for pair in pairs]
    lines = max(name.count("\n") + 1 for name in names)
    figure = Canvas(figsize=(WIDTH, 0.9 + 0.17 * lines * len(pairs)), layout="constrained")
    axes = figure.subplots(1, len(columns), squeeze=False, sharey=True)[0]
    for ax, column in zip(axes, columns, strict=True):
        ax.axvspan(*within(PRACTICAL), color="#E5E5E5", zorder=0)
        ax.axvline(1, color="black", linewidth=0.5)
        for row, pair in enumerate(pairs):
            if column in pair.speeds:
                _draw_ratio(ax, row, pair.speeds[column].ratio)
        if _far_apart([pair.speeds[column].ratio for pair in pairs if column in pair.speeds]):
            logarithmic(ax)
        ax.set_xlabel(SPEEDS[column][0])
        ax.grid(axis="y", visible=False)
    axes[0].set_yticks(range(len(pairs)), names, fontsize=SMALL)
    axes[0].set_ylim(len(pairs) - 0.5, -0.5)
    figure.supxlabel(f"tok/s, {after} / {before}", fontsize=FONT)
    return Figure(
        name=f"speed-ratio-{comparison.slug}",
        about=comparison.slug,
        title=f"Speed, {after} / {before}",
        alt=f"Ratio of speeds, {after} / {before}. "
        + spoken(pairs, lambda pair: spell_ratios(comparison, pair, columns)),
        caption=f"Speed with {after} divided by speed with {before}; bars are 95 % intervals over "
        "processes, grey is ± 5 %. Open markers have no interval: there are too few processes."
        + most_changed(len(pairs), len(every), "pairs of cells"),
        svg=svg(figure),
    )


def _far_apart(ratios: list[Ratio]) -> bool:
    """Whether the ratios differ by so much that one would hide the others on a linear axis."""
    values = [ratio.value for ratio in ratios]
    return min(values) > 0 and max(values) > FAR_APART * min(values)


def _draw_ratio(ax, row: int, ratio: Ratio) -> None:
    if ratio.testable:
        ax.plot([ratio.low, ratio.high], [row, row], color=COLOURS[1], linewidth=1.5)
    face = COLOURS[1] if ratio.testable else "white"
    ax.plot(ratio.value, row, "o", color=COLOURS[1], markersize=4, markerfacecolor=face)
