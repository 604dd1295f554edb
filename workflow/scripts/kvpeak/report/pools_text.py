"""Several buffer pools in one matrix, in words: the answer, the tables, the figure."""

from statistics import fmean

from kvpeak.base.numbers import MIB, percent
from kvpeak.report import markdown
from kvpeak.report.markdown import Markdown, code, number
from kvpeak.report.pools import Measured, Pool, Times, advised, front, growing, pooled
from kvpeak.report.pytorch import pytorch_section
from kvpeak.report.style import COLOURS, MARKERS, WIDTH, Canvas, Figure, styled, svg

SLUG = "buffer-pools"
# Where MLX cannot run a rule (docs/pools.md), by the first word of its setting. One that keeps
# nothing it has everywhere, as the cap 0MiB.
NOT_THERE = {"torch": "on Metal or under CUDA", "torch-mps": "on Metal or under CUDA"}
ANYWHERE = "MLX has it as cap 0MiB; its cost on a GPU was not measured here"


def pools_section(found: list[Measured], recorded: list[dict]) -> dict | None:
    """What the template shows; None without several pools.

    recorded: the rows of results/pools/pytorch.csv, if there are some.
    """
    pools = pooled(found)
    if not pools:
        return None
    worst = [pool.worst for pool in pools if pool.worst is not None]
    pytorch = pytorch_section(recorded) if recorded else None
    answer = sentence(pooled(growing(found), alike=False) or pools)
    return {
        "slug": SLUG,
        "sentence": Markdown(f"{answer} {pytorch['sentence']}" if pytorch else answer),
        "table": _table(pools),
        "cells": _cells(found),
        "front": Markdown(", ".join(code(pool.name) for pool in front(pools) if pool.made)),
        "worst": percent(max(worst), 1, sign=False) if worst else None,
        "pytorch": pytorch,
    }


def sentence(pools: list[Pool]) -> Markdown:
    """Which rule to use, and what it costs, over every setting that it was measured in. How often a
    rule asks the system is known from recordings; without them none is recommended.
    """
    best, least = advised(pools), pools[0]
    known = best.made is not None
    begin = "For a cache that grows each step use"
    if not known:
        begin = "With a cache that grows each step the smallest pool has"
    said = (
        f"{begin} {code(best.name)}: {best.peak:.2f} times the memory of MLX's own pool "
        f"{_over(best)}"
    )
    if best.decode:
        said += f", at {_spelled(best.decode)} times its decode speed"
    if best.made is not None:
        said += f", asking the system {best.made:,} times for memory instead of {best.own_made:,}"
    if least is not best and least.made is not None:
        said += f"; {code(least.name)} takes {least.peak:.2f} times and asks {least.made:,} times"
    name = best.name.split(",")[0]
    where = f"MLX cannot run it {NOT_THERE.get(name, 'under CUDA')}"
    return Markdown(f"{said}. {ANYWHERE if name == 'none' else where}.")


def _over(pool: Pool) -> str:
    """In how many of its settings a pool takes less, e.g. `over all 3 settings with it, less in 1
    of them (0.78 to 1.16)`.
    """
    if pool.places == 1:
        return "in the one setting with it"
    spread = f"{min(pool.ratios):.2f} to {max(pool.ratios):.2f}"
    return f"over its {pool.places} settings, less in {pool.helps} ({spread})"


def _spelled(times: Times) -> str:
    interval = f" ({times.low:.2f} to {times.high:.2f})" if times.low is not None else ""
    return f"{times.value:.2f}{interval}"


def _table(pools: list[Pool]) -> Markdown:
    header = ["pool", "peak", "prefill", "decode", "allocations", "off at most", "settings"]
    rows = [
        [
            code(pool.name),
            markdown.times(pool.peak),
            *("–" if times is None else _spelled(times) for times in (pool.prefill, pool.decode)),
            number(pool.made),
            "–" if pool.worst is None else percent(pool.worst, 1, sign=False),
            number(pool.places),
        ]
        for pool in pools
    ]
    return markdown.table(header, rows, " rrrrrr")


def _cells(found: list[Measured]) -> Markdown:
    header = ["model", "prompt", "KV cache", "pool", "peak, MiB", "predicted", "active", "decode"]
    rows = [
        [
            *(code(name) for name in each.place[1:]),
            Markdown(f"{code(each.name)}{' ⚑' * each.flagged}"),
            number(each.peak_mib, 1),
            number(each.predicted.reserved_peak / MIB, 1) if each.predicted else "–",
            number(each.active_mib, 1),
            number(fmean(decode) if len(decode := each.speeds["decode_tok_s"]) else None, 1),
        ]
        for each in found
    ]
    return markdown.table(header, rows, "    rrrr")


@styled
def pools_figure(found: list[Measured]) -> Figure | None:
    """Each pool's peak against its decode speed, both relative to MLX's own."""
    pools = [pool for pool in pooled(found) if pool.decode]
    if not pools:
        return None
    figure = Canvas(figsize=(WIDTH, 4.4), layout="constrained")
    ax = figure.subplots()
    for style, pool in enumerate(pools):
        look = {"color": COLOURS[style % len(COLOURS)], "marker": MARKERS[style % len(MARKERS)]}
        ax.plot([pool.peak], [pool.decode.value], linestyle="none", label=pool.name, **look)
    ax.axvline(1, color="0.6", linewidth=0.8)
    ax.axhline(1, color="0.6", linewidth=0.8)
    ax.set_xlabel("peak of the pool, in times of MLX's own")
    ax.set_ylabel("decode speed, likewise")
    figure.legend(*ax.get_legend_handles_labels(), loc="outside lower center", ncols=2)
    spoken = "; ".join(
        f"{pool.name}: peak {pool.peak:.2f}, decode {pool.decode.value:.2f}" for pool in pools
    )
    return Figure(
        name=SLUG,
        about=SLUG,
        title="What a pool takes and costs",
        alt=f"Peak and decode speed of each buffer pool against MLX's own. {spoken}"[:900],
        caption="Each pool's geometric mean over the settings. Left is less memory, up is faster.",
        svg=svg(figure),
    )
