"""Memory over time: the samples of one process, read from its folder and drawn."""

import contextlib
import textwrap
from dataclasses import dataclass, replace
from pathlib import Path

from kvpeak.analysis.comparisons import Comparison, Pair
from kvpeak.analysis.lead import spell_name
from kvpeak.base.axes import AXES
from kvpeak.base.errors import UserError
from kvpeak.base.layout import shown_folder
from kvpeak.base.numbers import bounded
from kvpeak.base.untrusted import read_csv, read_object
from kvpeak.report.style import COLOURS, LINE_WIDTH, SMALL, WIDTH, Canvas, Figure, styled, svg

MOST_PHASES = 5_000  # that are marked; 200 requests of 8 runs have fewer
MOST_BANDS = 100  # a run each
NARROW = 0.05  # a phase of less than this share of the time has no room for its name

CAPTION = (
    "Sampled memory of one process; bands are its phases (load, warm-up, runs), hatched: warm-up. "
    "A sample can miss a short peak, so that the operating system's own peak may lie higher."
)
TURNS = " A mark at the foot is where a turn or request begins."


@dataclass(frozen=True)
class Timeline:
    """The sampled memory of one process: rows of memory.csv, phases and warm-up of cell.json."""

    label: str
    t_s: list[float]
    mib: list[float]
    phases: list[dict]  # {phase, start_s, end_s}, of a turn its number too
    warmup: int  # how many of the runs, from run 0 on, are warm-up
    source: str = ""  # its memory.csv below results/


def timelines(comparison: Comparison, pair: Pair, cells: Path) -> list[Timeline]:
    """The first process of both sides of a pair, as sampled; a side without a folder is left
    out.
    """
    found = []
    for name, row in ((comparison.before, pair.before), (comparison.after, pair.after)):
        names = pair.names | {comparison.axis: name}
        label = ", ".join(spell_name(axis, names[axis]) for axis in AXES)
        # a damaged file costs its line in the figure; aggregate names it
        with contextlib.suppress(OSError, UserError, KeyError, TypeError, ValueError):
            folder = shown_folder(cells, row or names)
            source = (folder / "memory.csv").relative_to(cells.parent)
            found.append(replace(read_timeline(folder, label), source=source.as_posix()))
    return found


def read_timeline(folder: Path, label: str) -> Timeline:
    """A cell's memory.csv and the phases of its cell.json; the device's memory under CUDA, else the
    footprint.
    """
    record = read_object(folder / "cell.json")
    cuda = record["engine"].get("device", {}).get("accelerator") == "cuda"
    column = "device_mib" if cuda else "footprint_mib"
    names = ("t_s", column)
    rows = [row for row in read_csv(folder / "memory.csv", names, only=names) if row[column]]
    return Timeline(
        label=label,
        t_s=[bounded(row["t_s"]) for row in rows],
        mib=[bounded(row[column]) for row in rows],
        phases=[_phase(said) for said in record["phases"][:MOST_PHASES]],
        warmup=int(record["request"]["protocol"]["warmup"]),
    )


def _phase(said: dict) -> dict:
    """A phase of a record. Raises KeyError, TypeError or ValueError for what is none."""
    if not isinstance(said["phase"], str):
        raise TypeError
    turn = {"turn": int(said["turn"])} if "turn" in said else {}
    times = {key: bounded(said[key]) for key in ("start_s", "end_s")}
    return {"phase": said["phase"]} | turn | times


@styled
def memory_over_time(lines: list[Timeline]) -> Figure | None:
    """Sampled memory of processes over time, one above the other on the same scales, their phases
    marked.
    """
    lines = [line for line in lines if line.t_s]
    if not lines:
        return None
    figure = Canvas(figsize=(WIDTH, 0.5 + 2.0 * len(lines)), layout="constrained")
    axes = figure.subplots(len(lines), 1, squeeze=False, sharex=True, sharey=True)[:, 0]
    longest = max(line.t_s[-1] for line in lines)
    for ax, line in zip(axes, lines, strict=True):
        ax.plot(line.t_s, line.mib, color=COLOURS[1], linewidth=1)
        ax.set_title(textwrap.fill(line.label, LINE_WIDTH), loc="left")
        ax.set_ylabel("memory (MiB)")
        ax.yaxis.set_major_formatter("{x:,.0f}")
        ax.grid(axis="x", visible=False)
        _mark_phases(ax, line, longest)
        _mark_turns(ax, line, longest)
    axes[0].set_ylim(0, 1.25 * max(max(line.mib) for line in lines))
    axes[0].set_xlim(left=0)
    axes[-1].set_xlabel("time since the process started (s)")
    peaks = "; ".join(
        f"{line.label}: up to {max(line.mib):,.0f} MiB in {line.t_s[-1]:,.1f} s" for line in lines
    )
    return Figure(
        name="memory-over-time",
        title="Memory over time",
        alt=f"Sampled memory of one process over time. {peaks}.",
        caption=CAPTION + (TURNS if any(map(_turns, lines)) else ""),
        svg=svg(figure),
        sources=tuple(line.source for line in lines),
    )


def _mark_phases(ax, line: Timeline, longest: float) -> None:
    """A band for each phase, with its name where there is room."""
    outline = {"edgecolor": "#CCCCCC", "linewidth": 0.5, "zorder": 0}
    above = {"xycoords": ("data", "axes fraction"), "xytext": (0, -2), "ha": "center", "va": "top"}
    for number, (name, start, end) in enumerate(_spans(line)[:MOST_BANDS]):
        hatch = "//" if name == "warm-up" else None
        colour = "#F0F0F0" if number % 2 else "white"
        ax.axvspan(start, end, facecolor=colour, hatch=hatch, **outline)
        if end - start >= NARROW * longest:
            middle = ((start + end) / 2, 1)
            ax.annotate(name, middle, textcoords="offset points", fontsize=SMALL, **above)


def _mark_turns(ax, line: Timeline, longest: float) -> None:
    """A mark at the foot where each turn begins, with its number where there is room."""
    starts = _turns(line)
    foot = ax.get_xaxis_transform()
    ax.vlines([start for _, start in starts], 0, 0.06, "black", linewidth=0.5, transform=foot)
    last = float("-inf")
    for number, start in starts:
        if start - last >= NARROW * longest:
            ax.text(
                start, 0.07, number, transform=foot, fontsize=SMALL - 1, ha="center", va="bottom"
            )
            last = start


def _turns(line: Timeline) -> list[tuple[int, float]]:
    """(number, start) of each turn or request of every run."""
    return [
        (phase["turn"], phase["start_s"])
        for phase in line.phases
        if "turn" in phase and phase["phase"].startswith("prefill-")
    ]


def _spans(line: Timeline) -> list[tuple[str, float, float]]:
    """The phases that are marked, as (name, start, end): load, each warm-up run, each recorded run
    from 1 on.
    """
    spans: dict[str, tuple[str, float, float]] = {}
    for phase in line.phases:
        step, _, run = phase["phase"].partition("-")
        if run.isdecimal() and len(run) < 10:
            name = "warm-up" if int(run) < line.warmup else f"run {int(run) - line.warmup + 1}"
        elif step == "load":
            name = "load"
        else:
            continue
        key = run or step
        start = spans[key][1] if key in spans else phase["start_s"]
        spans[key] = (name, start, phase["end_s"])
    return list(spans.values())
