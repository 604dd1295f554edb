"""The figures of a finding, as SVG with alt text: small, readable in black and white, the same bytes for the same data.

Colours are Okabe and Ito's, which colour-blind readers can tell apart; a marker, a fill or a hatch says the same thing
again. Every function returns None where there is nothing to draw.
"""

import functools
import io
import itertools
import textwrap
from dataclasses import dataclass

import matplotlib.style
from matplotlib.figure import Figure as Canvas

from kvpeak.analysis.comparisons import (
    PRACTICAL,
    SPEED_NAMES,
    Comparison,
    Pair,
    has_peak,
    spell_name,
)
from kvpeak.analysis.statistics import Ratio, within

COLOURS = ("#D55E00", "#0072B2", "#009E73", "#CC79A7", "#56B4E9", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P")
LINES = {"before": "--", "after": "-"}
MOST_COLUMNS = 3  # panels side by side
MOST_PANELS = 6
MOST_ROWS = 24  # pairs of cells in a figure
MOST_SPOKEN = 3  # pairs of cells in an alt text
TITLE_WIDTH = 30  # characters over a panel
NARROW = 0.05  # a phase of less than this share of the time has no room for its name
STYLE = {
    "svg.hashsalt": "kvpeak",
    "svg.fonttype": "none",
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#DDDDDD",
    "grid.linewidth": 0.5,
    "axes.axisbelow": True,
    "legend.frameon": False,
    "legend.fontsize": 7,
}
HATCHES = ("", "////", "xx", "||", "\\\\\\\\", "++")
PARTS = {  # of a peak → its colour and hatch
    "weights": (COLOURS[1], ""),
    "live beside them": (COLOURS[4], "\\\\\\\\"),
    "free, kept in the pool": (COLOURS[0], "////"),
    "rest of the process": ("white", ""),
}
COUNTERS = {
    "peak_footprint_mib": "operating\nsystem",
    "peak_device_mib": "device",
    "peak_rss_mib": "resident\n(RSS)",
    "peak_pool_mib": "allocator:\nlive + cached",
    "peak_active_mib": "allocator:\nlive",
}


@dataclass(frozen=True)
class Figure:
    """A drawn figure: `name` becomes the file NAME.svg; the texts are plain, not yet escaped for Markdown."""

    name: str
    title: str
    alt: str  # what the figure shows, for who cannot see it
    caption: str  # how to read it
    svg: str
    about: str = ""  # the slug of the comparison that it belongs to
    sources: tuple[str, ...] = ()  # files below results/ that it was drawn from, beside the tables


@dataclass(frozen=True)
class Timeline:
    """The sampled memory of one process: rows of memory.csv, phases and warm-up runs of cell.json."""

    label: str
    t_s: list[float]
    mib: list[float]
    phases: list[dict]  # {phase, start_s, end_s}
    warmup: int  # how many of the runs, from run 0 on, are warm-up
    source: str = ""  # its memory.csv below results/


def _styled(draw):
    """Draw with STYLE, whatever else this process draws."""

    @functools.wraps(draw)
    def styled(*arguments):
        with matplotlib.style.context(["default", STYLE]):
            return draw(*arguments)

    return styled


@_styled
def peak_by_length(comparison: Comparison) -> Figure | None:
    """Peak memory against prompt tokens, before and after: a panel a model and setting, a line a KV cache."""
    if comparison.axis == "prompt":
        return None
    pairs = [
        pair for pair in _two_sided(comparison) if has_peak(pair.before) or has_peak(pair.after)
    ]
    if not pairs:
        return None
    before, after = _sides(comparison)
    panels = _largest_panels(_grouped(pairs, lambda pair: _panel(comparison, pair)))
    pairs = [pair for members in panels.values() for pair in members]
    caches = list(dict.fromkeys(map(_cache, pairs)))
    figure, axes = _canvas(len(panels), height=2.4)
    for ax, (title, members) in zip(axes, panels.items(), strict=True):
        for cache, line in _grouped(members, _cache).items():
            style = caches.index(cache)
            for side, name in (("before", before), ("after", after)):
                rows = filter(has_peak, (getattr(pair, side) for pair in line))
                points = sorted((int(row["prompt_tokens"]), row["peak_mib"]) for row in rows)
                ax.plot(
                    *zip(*points, strict=True) if points else ((), ()),
                    LINES[side],
                    color=COLOURS[style % len(COLOURS)],
                    marker=MARKERS[style % len(MARKERS)],
                    # the first is the largest: where lines coincide, each can still be seen
                    markersize=max(3.5, 8 - 2 * style),
                    linewidth=max(1, 2.4 - 0.7 * style),
                    markerfacecolor="white" if side == "before" else None,
                    label=f"{cache}, {name}".removeprefix(", "),
                )
        ax.set_title(textwrap.fill(title, TITLE_WIDTH), loc="left")
        ax.set_xlabel("prompt tokens")
        ax.set_xticks(_ticks({int(x) for line in ax.lines for x in line.get_xdata()}))
        ax.margins(x=0.12)
        ax.xaxis.set_major_formatter("{x:,.0f}")
        ax.yaxis.set_major_formatter("{x:,.0f}")
        ax.set_ylim(0, 1.12 * max(y for line in ax.lines for y in line.get_ydata()))
    axes[0].set_ylabel("peak memory (MiB)")
    _legend(figure, axes)
    return Figure(
        name=f"peak-by-length-{comparison.slug}",
        about=comparison.slug,
        title=f"Peak memory by prompt length, {before} → {after}",
        alt=f"Peak memory against prompt length, {before} → {after}. "
        + _spoken(pairs, _spell_peaks),
        caption=f"The process's peak memory; open markers and broken lines: {before}, filled markers and "
        f"solid lines: {after}. A point is the largest peak of the cell's processes."
        + _replayed(pairs),
        svg=_svg(figure),
    )


@_styled
def memory_over_time(timelines: list[Timeline]) -> Figure | None:
    """Sampled memory of processes over time, one above the other on the same scales, their phases marked."""
    timelines = [line for line in timelines if line.t_s]
    if not timelines:
        return None
    figure = Canvas(figsize=(6.4, 0.4 + 1.6 * len(timelines)), layout="constrained")
    axes = figure.subplots(len(timelines), 1, squeeze=False, sharex=True, sharey=True)[:, 0]
    longest = max(line.t_s[-1] for line in timelines)
    for ax, line in zip(axes, timelines, strict=True):
        ax.plot(line.t_s, line.mib, color=COLOURS[1], linewidth=1)
        ax.set_title(line.label, loc="left")
        ax.set_ylabel("memory (MiB)")
        ax.yaxis.set_major_formatter("{x:,.0f}")
        ax.grid(axis="x", visible=False)
        for number, (name, start, end) in enumerate(_spans(line)):
            warm = name == "warm-up"
            ax.axvspan(
                start, end, facecolor="#F0F0F0" if number % 2 else "white", edgecolor="#CCCCCC", linewidth=0.5,
                hatch="//" if warm else None, zorder=0,
            )  # fmt: skip
            if end - start >= NARROW * longest:
                ax.annotate(
                    name, ((start + end) / 2, 1), xycoords=("data", "axes fraction"),
                    xytext=(0, -2), textcoords="offset points", ha="center", va="top", fontsize=7,
                )  # fmt: skip
    axes[0].set_ylim(0, 1.25 * max(max(line.mib) for line in timelines))
    axes[0].set_xlim(left=0)
    axes[-1].set_xlabel("time since the process started (s)")
    peaks = "; ".join(
        f"{line.label}: up to {max(line.mib):,.0f} MiB in {line.t_s[-1]:,.1f} s"
        for line in timelines
    )
    return Figure(
        name="memory-over-time",
        title="Memory over time",
        alt=f"Sampled memory of one process over time. {peaks}.",
        caption="Sampled memory of one process; bands are its phases (load, warm-up, runs), hatched: warm-up. A sample can miss a short "
        "peak, so that the operating system's own peak may lie higher.",
        svg=_svg(figure),
        sources=tuple(line.source for line in timelines),
    )


@_styled
def peak_by_counter(comparison: Comparison, pair: Pair) -> Figure | None:
    """The same two processes as each counter saw them: bars before and after."""
    counters = [
        name for name in COUNTERS if all(side and side.get(name) is not None for side in (pair.before, pair.after))
    ]  # fmt: skip
    if not counters:
        return None
    before, after = _sides(comparison)
    figure = Canvas(figsize=(4.6, 2.7), layout="constrained")
    ax = figure.subplots()
    for number, side in enumerate(("before", "after")):
        bars = ax.bar(
            [position + 0.4 * (number - 0.5) for position in range(len(counters))],
            [getattr(pair, side)[name] for name in counters],
            width=0.38,
            color=("white", COLOURS[1])[number],
            edgecolor=(COLOURS[0], "black")[number],
            hatch=("////", "")[number],
            label=(before, after)[number],
        )
        ax.bar_label(bars, fmt="{:,.0f}", fontsize=7)
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
        caption=f"The peak of {where} as each counter saw it. An allocator's live bytes leave out the free buffers "
        "that it keeps." + _replayed([pair]),
        svg=_svg(figure),
    )


@_styled
def speed_ratios(comparison: Comparison) -> Figure | None:
    """Speed after / before of every pair with its 95 % interval, beside the margin that counts as the same."""
    pairs = _largest([pair for pair in comparison.pairs if pair.speeds])
    columns = [
        name
        for name in ("prefill_tok_s", "decode_tok_s")
        if any(name in pair.speeds for pair in pairs)
    ]
    if not columns:
        return None
    before, after = _sides(comparison)
    figure = Canvas(figsize=(6.4, 0.7 + 0.17 * len(pairs)), layout="constrained")
    axes = figure.subplots(1, len(columns), squeeze=False, sharey=True)[0]
    for ax, column in zip(axes, columns, strict=True):
        ax.axvspan(*within(PRACTICAL), color="#E5E5E5", zorder=0)
        ax.axvline(1, color="black", linewidth=0.5)
        for row, pair in enumerate(pairs):
            if column in pair.speeds:
                _draw_ratio(ax, row, pair.speeds[column].ratio)
        ax.set_xlabel(f"{SPEED_NAMES[column][0]}: tok/s {after} / {before}")
        ax.grid(axis="y", visible=False)
    axes[0].set_yticks(range(len(pairs)), [_label(comparison, pair) for pair in pairs])
    axes[0].set_ylim(len(pairs) - 0.5, -0.5)
    return Figure(
        name=f"speed-ratio-{comparison.slug}",
        about=comparison.slug,
        title=f"Speed, {after} / {before}",
        alt=f"Ratio of speeds, {after} / {before}. "
        + _spoken(pairs, lambda pair: _spell_ratios(comparison, pair, columns)),
        caption=f"Speed with {after} divided by speed with {before}; bars are 95 % intervals over "
        "processes, grey is ± 5 %. Open markers have no interval: there are too few processes.",
        svg=_svg(figure),
    )


@_styled
def where_bytes_are(comparison: Comparison, pair: Pair) -> Figure | None:
    """What each cell's peak consists of, for the cells that share the pair's prompt and panel: a bar a cell."""
    near = [
        other
        for other in _two_sided(comparison)
        if _panel(comparison, other) == _panel(comparison, pair)
        and other.names.get("prompt") == pair.names.get("prompt")
    ]
    before, after = _sides(comparison)
    bars = [
        (f"{_cache(other)}, {name}".removeprefix(", "), parts)
        for other in _largest(near)
        for name, row in ((before, other.before), (after, other.after))
        if (parts := _parts(row))
    ]
    if not bars:
        return None
    figure = Canvas(figsize=(6.4, 1.0 + 0.24 * len(bars)), layout="constrained")
    ax = figure.subplots()
    _stack(ax, bars, PARTS)
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
        caption=f"The peak of each cell ({where}). Live and kept bytes need not peak at the same moment: what is live beside "
        "the weights is at most that much, what is kept at least that much.",
        svg=_svg(figure),
    )


def _parts(row: dict) -> list[float] | None:
    """MiB of PARTS in a cell's peak; None where a counter is not known or the cell computed nothing."""
    names = ("loaded_mib", "peak_active_mib", "peak_pool_mib", "peak_mib")
    if row["method"] != "live" or not has_peak(row) or any(row[name] is None for name in names):
        return None
    sums = [0, *(row[name] for name in names)]
    return [max(0, more - less) for less, more in itertools.pairwise(sums)]


def _stack(ax, bars: list[tuple[str, list[float]]], parts: dict[str, tuple[str, str]]) -> None:
    """Horizontal stacked bars, a label and its parts' lengths each, the sum at the end."""
    lefts = [0.0] * len(bars)
    for number, (name, (colour, hatch)) in enumerate(parts.items()):
        widths = [lengths[number] for _, lengths in bars]
        ax.barh(
            range(len(bars)), widths, left=lefts, height=0.7, color=colour, edgecolor="black",
            linewidth=0.5, hatch=hatch, label=name,
        )  # fmt: skip
        lefts = [left + width for left, width in zip(lefts, widths, strict=True)]
    for row, total in enumerate(lefts):
        ax.annotate(
            f"{total:,.0f}", (total, row), xytext=(3, 0), textcoords="offset points", va="center",
            fontsize=7,
        )  # fmt: skip
    ax.set_yticks(range(len(bars)), [label for label, _ in bars])
    ax.invert_yaxis()
    ax.grid(axis="y", visible=False)
    ax.margins(x=0.1)
    ax.xaxis.set_major_formatter("{x:,.0f}")
    ax.figure.legend(loc="outside lower center", ncols=len(parts))


@_styled
def captured_bytes(holders: list[dict]) -> Figure | None:
    """What tensors hold in excess of their own size class after a prefill: rows of replay_finding.py's table holders."""
    roles = list(dict.fromkeys(row["role"] for row in holders))
    if not roles:
        return None
    cells = _grouped(
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
    figure = Canvas(figsize=(6.4, 1.0 + 0.24 * len(bars)), layout="constrained")
    ax = figure.subplots()
    styles = zip(roles, itertools.cycle(zip(COLOURS, HATCHES, strict=True)), strict=False)
    _stack(ax, bars, dict(styles))
    ax.set_xlabel("held in excess, predicted (MiB)")
    spoken = "; ".join(f"{label}: {sum(parts):,.0f} MiB" for label, parts in bars)
    return Figure(
        name="captured-bytes",
        about="replay",
        title="What small tensors hold in excess",
        alt=f"Predicted MiB that tensors hold beyond their own size class. {spoken}.",
        caption="Prediction: bytes beyond their own size class that tensors hold at the end of the prefill, by the kind of tensor.",
        svg=_svg(figure),
    )


@_styled
def predicted_by_length(predictions: list[dict], published: list[dict]) -> Figure:
    """The replay's peak against prompt tokens, without and with the cap, and the published peaks on it.

    Rows of replay_finding.py's tables length and cells, in MiB.
    """
    figure, axes = _canvas(1, height=3.2)
    (ax,) = axes
    sides = {"none": ("--", "white", "without a cap"), "4x": ("-", None, "cap 4x")}
    caches = list(dict.fromkeys(row["kv_cache"] for row in predictions))
    lines = list(itertools.product(enumerate(caches), sides.items()))
    for number, ((style, cache), (cap, (line, face, name))) in enumerate(lines):
        points = [
            (row["prompt_tokens"], row["peak_mib"] / 1024)
            for row in predictions
            if (row["kv_cache"], row["cap"]) == (cache, cap)
        ]
        ax.plot(
            *zip(*points, strict=True), line, color=COLOURS[style], marker=MARKERS[style], markersize=4.5,
            markevery=(number, len(lines)),  # where lines coincide, each has markers of its own
            markerfacecolor=face, linewidth=1, label=f"{cache}, {name}",
        )  # fmt: skip
    measured = [(row["prompt_tokens"], row["fornace_mib"] / 1024) for row in published]
    ax.plot(*zip(*measured, strict=True), "k_", markersize=8, label="measured (the finding)")
    longest = max(row["prompt_tokens"] for row in predictions)
    ax.set_yscale("log", base=2)
    ax.set_xticks(range(4097, longest + 1, 4096))
    ax.set_xlabel("prompt tokens")
    ax.set_ylabel("peak memory (GiB)")
    ax.xaxis.set_major_formatter("{x:,.0f}")
    ax.yaxis.set_major_formatter("{x:g}")
    _legend(figure, axes)
    ends = [
        f"{row['kv_cache']}, {row['cap']}: {row['peak_mib'] / 1024:,.1f} GiB"
        for row in predictions
        if row["prompt_tokens"] == longest
    ]
    return Figure(
        name="peak-against-length",
        title="Predicted peak memory by prompt length",
        alt=f"Predicted peak memory against prompt length; at {longest:,} tokens "
        + "; ".join(ends)
        + ".",
        caption="Lines: predictions of the replay, broken with open markers without a cap, solid with filled ones with 4x. "
        "Black bars: the finding's measured peaks.",
        svg=_svg(figure),
    )


def _draw_ratio(ax, row: int, ratio: Ratio) -> None:
    if ratio.testable:
        ax.plot([ratio.low, ratio.high], [row, row], color=COLOURS[1], linewidth=1.5)
    ax.plot(
        ratio.value, row, "o", color=COLOURS[1], markersize=4,
        markerfacecolor=COLOURS[1] if ratio.testable else "white",
    )  # fmt: skip


def _spans(line: Timeline) -> list[tuple[str, float, float]]:
    """The phases that are marked, as (name, start, end): load, each warm-up run, each recorded run from 1 on."""
    spans: dict[str, tuple[str, float, float]] = {}
    for phase in line.phases:
        step, _, run = phase["phase"].partition("-")
        if run.isdigit():
            name = "warm-up" if int(run) < line.warmup else f"run {int(run) - line.warmup + 1}"
        elif step == "load":
            name = "load"
        else:
            continue
        key = run or step
        start = spans[key][1] if key in spans else phase["start_s"]
        spans[key] = (name, start, phase["end_s"])
    return list(spans.values())


def _canvas(panels: int, height: float):
    """A figure with this many panels in rows of MOST_COLUMNS, each `height` inches high, and the panels' axes."""
    columns = min(panels, MOST_COLUMNS)
    lines = -(-panels // columns)
    figure = Canvas(
        figsize=(max(3.6, 2.2 * columns + 0.4), height * lines + 0.3), layout="constrained"
    )
    axes = figure.subplots(lines, columns, squeeze=False).ravel()
    for ax in axes[panels:]:
        ax.remove()
    return figure, axes[:panels]


def _legend(figure, axes) -> None:
    """One legend for all panels, below them."""
    entries = {}
    for ax in axes:
        handles, labels = ax.get_legend_handles_labels()
        entries |= dict(zip(labels, handles, strict=True))
    figure.legend(entries.values(), entries, loc="outside lower center", ncols=2)


def _svg(figure) -> str:
    """The figure as SVG text; the same bytes for the same drawing, wherever and whenever it is made."""
    out = io.StringIO()
    figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
    return out.getvalue()


def _two_sided(comparison: Comparison) -> list[Pair]:
    """The pairs of which both sides were measured, whichever way they ended."""
    return [pair for pair in comparison.pairs if pair.before and pair.after]


def _largest(pairs: list[Pair]) -> list[Pair]:
    """At most MOST_ROWS pairs, those whose peak changes most, in their own order."""
    chosen = sorted(pairs, key=lambda pair: -abs(pair.peak_change_mib or 0))[:MOST_ROWS]
    kept = {id(pair) for pair in chosen}
    return [pair for pair in pairs if id(pair) in kept]


def _largest_panels(panels: dict[str, list[Pair]]) -> dict[str, list[Pair]]:
    """At most MOST_PANELS panels, those with the largest change of a peak, in their own order."""

    def change(title: str) -> float:
        return max(abs(pair.peak_change_mib or 0) for pair in panels[title])

    chosen = set(sorted(panels, key=change, reverse=True)[:MOST_PANELS])
    return {title: members for title, members in panels.items() if title in chosen}


def _ticks(values: set[int], most: int = 4) -> list[int]:
    """The values, or of many the first, the last and some between that do not stand too near to one another."""
    shown, room = [], (max(values) - min(values)) / most
    for value in sorted(values, reverse=True):
        if not shown or shown[-1] - value >= room or len(values) <= 2:
            shown.append(value)
    return shown[::-1]


def _spoken(pairs: list[Pair], spell) -> str:
    """The pairs that change most in words, and how many more there are."""
    order = sorted(pairs, key=lambda pair: -abs(pair.peak_change_mib or 0))
    words = [spell(pair) for pair in order[:MOST_SPOKEN]]
    more = len(pairs) - len(words)
    return "; ".join(words) + (f"; and {more:,} more." if more else ".")


def _grouped(items, key) -> dict:
    groups = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


def _replayed(pairs: list[Pair]) -> str:
    """What the peak of a replayed cell is; '' without one."""
    if all(pair.live for pair in pairs):
        return ""
    return (
        " The peak of a replayed cell is that of the process that holds the pool and the weights, without Metal's "
        "runtime and the host's mask."
    )


def _sides(comparison: Comparison) -> tuple[str, str]:
    """The compared names, clear without their axis."""
    return tuple(
        spell_name(comparison.axis, name) for name in (comparison.before, comparison.after)
    )


def _panel(comparison: Comparison, pair: Pair) -> str:
    """What a panel's pairs share: every axis but prompt and KV cache; commit and variant where there are several."""
    several = comparison.several
    return ", ".join(
        spell_name(axis, name)
        for axis, name in pair.names.items()
        if axis not in ("prompt", "kv_cache") and (axis == "model" or axis in several)
    )


def _cache(pair: Pair) -> str:
    return pair.names.get("kv_cache", "")


def _label(comparison: Comparison, pair: Pair) -> str:
    return ", ".join(
        filter(None, (_panel(comparison, pair), pair.names.get("prompt"), _cache(pair)))
    )


def _spell_peaks(pair: Pair) -> str:
    names = " ".join(
        name for axis, name in pair.names.items() if axis in ("model", "prompt", "kv_cache")
    )
    before, after = (
        f"{side['peak_mib']:,.0f}" if has_peak(side) else side["outcome"] if side else "not run"
        for side in (pair.before, pair.after)
    )
    return f"{names} {before} → {after} MiB"


def _spell_ratios(comparison: Comparison, pair: Pair, columns) -> str:
    spoken = [
        f"{SPEED_NAMES[column][0]} {pair.speeds[column].ratio.spelled(2)}"
        for column in columns
        if column in pair.speeds
    ]
    return f"{_label(comparison, pair)}: {', '.join(spoken)}"
