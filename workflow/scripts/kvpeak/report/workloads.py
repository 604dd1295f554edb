"""Sessions, repeated requests, batches and reused prompts: what is held after each, and what each
costs.
"""

from kvpeak.analysis.results import Results
from kvpeak.analysis.workloads import (
    MARGIN_KIB,
    leaks,
    mean_series,
    repeats_requests,
    reuses,
    spell_trend,
    trend,
)
from kvpeak.base.axes import AXES
from kvpeak.report.markdown import Markdown, number
from kvpeak.report.reuse import reuse_rows, reuse_sentence, reuse_table
from kvpeak.report.style import COLOURS, MARKERS, MOST_PANELS, Figure, canvas, legend, styled, svg
from kvpeak.report.tables import cell_table

WORDS = {True: "grows", False: "stands still", None: "is not decided"}
HELD = "held_pool_mib"
MOST_LENGTHS = 8  # of a batch that are named one by one


def workloads_section(results: Results) -> dict | None:
    """Tables of the cells with turns, with batches and with reused prompts; None where there are
    none.
    """
    turns, batches, reused = turn_rows(results), batch_rows(results), reuse_rows(results)
    if not (turns or batches or reused):
        return None
    header = ["parts", "held by", "held after the first, MiB", "after the last", "most in the pool"]
    return {
        "turns": cell_table(
            turns,
            header,
            lambda row: [
                number(row["parts"]),
                row["by"],
                number(row["held"][0], 1),
                number(row["held"][-1], 1),
                number(row["peak"], 1),
            ],
        ),
        "sentences": [sentence(row) for row in turns if row["repeated"]],
        "batches": batch_table(batches),
        "reused": reuse_table(reused),
        "reuse_sentences": [reuse_sentence(row) for row in reused],
        "different": [
            f"{row['prompt']}: sequence {number}, from its token {at + 1} on"
            for row in batches
            for number, at in row["different"]
        ],
    }


def turn_rows(results: Results) -> list[dict]:
    """A row for each cell whose runs have turns: what was held after each."""
    found = []
    for cell, rows in results.turns.items():
        summary = results.summary.get(cell) or {}
        by_allocator = mean_series(rows, HELD)
        held = by_allocator or mean_series(rows, "held_rss_mib")
        if held and not reuses(rows):
            found.append(
                dict(zip(AXES, cell, strict=True))
                | {"parts": len(held), "held": held, "repeated": repeats_requests(summary)}
                | {"peak": max(mean_series(rows, "peak_pool_mib"), default=None)}
                | {"by": "allocator" if by_allocator else "process"}
            )
    return found


def sentence(row: dict) -> str:
    """E.g. `cat, none, stock: what is held stands still: 0.00 KiB a request (…)`."""
    name = ", ".join(row[axis] for axis in ("prompt", "kv_cache", "cap", "variant"))
    found = trend(row["held"])
    if found is None:
        return f"{name}: {row['parts']} requests are too few for a trend"
    return f"{name}: what is held {WORDS[leaks(found, MARGIN_KIB)]}, {spell_trend(found)}"


def batch_rows(results: Results) -> list[dict]:
    """A row for each cell with a batch, in the order of their sizes."""
    found = []
    for cell, rows in results.turns.items():
        sizes = [int(row["sequence"]) for row in rows if row["sequence"] is not None]
        summary = results.summary.get(cell)
        if not sizes or summary is None or summary["outcome"] != "ok":
            continue
        lengths = {int(row["sequence"]): int(row["prompt_tokens"]) for row in rows}
        different = {
            (int(row["sequence"]), int(row["first_difference"]))
            for row in rows
            if row["first_difference"] is not None
        }
        found.append(
            dict(zip(AXES, cell, strict=True))
            | {"sequences": max(sizes), "summary": summary, "different": sorted(different)}
            | {"lengths": [lengths[number] for number in sorted(lengths)]}
        )
    return sorted(found, key=lambda row: (row["model"], row["sequences"]))


def batch_table(batches: list[dict]) -> Markdown:
    """Speed of all sequences together and of each, and what the largest live bytes come to."""

    def figures(row: dict) -> list:
        summary, count = row["summary"], row["sequences"]
        speed, active = summary["decode_tok_s"], summary["peak_active_mib"]
        loaded = summary["loaded_mib"]
        each = None if None in (active, loaded) else (active - loaded) / count
        return [
            number(count),
            spell_lengths(row["lengths"]),
            number(speed, 1),
            number(None if speed is None else speed / count, 1),
            number(active, 1),
            number(each, 2),
        ]

    header = [
        "sequences",
        "tokens of each",
        "decode, tok/s",
        "each",
        "most live, MiB",
        "above the weights, each",
    ]
    return cell_table(batches, header, figures)


def spell_lengths(lengths: list[int]) -> str:
    """E.g. `129`, or `513, 257, 129` where they differ; of many the longest and the shortest."""
    if len(set(lengths)) == 1:
        return number(lengths[0])
    if len(lengths) > MOST_LENGTHS:
        return f"{number(min(lengths))} to {number(max(lengths))}"
    return ", ".join(map(number, lengths))


@styled
def workloads_figure(results: Results) -> Figure | None:
    """What is held after each turn or request: a panel for each workload, a line for each cell."""
    panels: dict[tuple, list[dict]] = {}
    for row in turn_rows(results):
        panels.setdefault((row["model"], row["prompt"]), []).append(row)
    panels = dict(list(panels.items())[:MOST_PANELS])
    if not panels:
        return None
    figure, axes = canvas(len(panels), height=2.4)
    names = sorted({label(row) for rows in panels.values() for row in rows})
    for ax, ((model, prompt), rows) in zip(axes, panels.items(), strict=True):
        for row in rows:
            _draw(ax, row, names.index(label(row)))
        ax.set_title(f"{model}, {prompt}")
        ax.set_xlabel("turn or request")
        ax.set_ylim(bottom=0)
    axes[0].set_ylabel("held (MiB)")
    legend(figure, axes)
    spoken = "; ".join(
        f"{prompt}, {label(row)}: {number(row['held'][0], 0)} MiB after the first, "
        f"{number(row['held'][-1], 0)} after the last of {row['parts']}"
        for (_, prompt), rows in panels.items()
        for row in rows[:2]
    )
    return Figure(
        name="held-after-each-turn",
        title="What is held after each turn or request",
        alt=f"What is held against turns: {spoken}.",
        caption=(
            "A line that keeps rising over the later half, by more than "
            f"{number(MARGIN_KIB, 0)} KiB a request, may be a leak; one that rises and then stands "
            "is a pool that has filled up. A session keeps its cache, which grows with the text."
        ),
        svg=svg(figure),
    )


def _draw(ax, row: dict, style: int) -> None:
    ax.plot(
        range(1, row["parts"] + 1),
        row["held"],
        color=COLOURS[style % len(COLOURS)],
        marker=MARKERS[style % len(MARKERS)],
        markevery=max(1, row["parts"] // 8),
        markersize=3,
        linewidth=1,
        label=label(row),
    )


def label(row: dict) -> str:
    """The cell's KV cache, cap and variant, and whose memory it is where no allocator says."""
    names = ", ".join(row[axis] for axis in ("kv_cache", "cap", "variant"))
    return names if row["by"] == "allocator" else f"{names} (the process)"
