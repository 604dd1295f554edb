"""The history of an engine's releases as the finding shows it: a sentence, a table, one figure."""

import textwrap
from statistics import fmean, median

from kvpeak.analysis.history import FEWEST, History, Step
from kvpeak.base.columns import SPEEDS
from kvpeak.base.numbers import percent
from kvpeak.report import markdown
from kvpeak.report.markdown import code, number
from kvpeak.report.style import COLOURS, MARKERS, SMALL, WIDTH, Canvas, Figure, styled, svg

SLUG = "history"
SHOWN_SPEED = "decode_tok_s"


def history_section(found: list[History]) -> dict | None:
    """What the template shows of the histories; None without any."""
    if not found:
        return None
    several = [axis for axis in found[0].names if len({each.names[axis] for each in found}) > 1]
    return {
        "fewest": FEWEST,
        "slug": SLUG,
        "sentences": [sentence(each, several) for each in found],
        "tables": [
            {"what": what(each, several), "table": _table(each), "missing": each.missing}
            for each in found
        ],
    }


def what(history: History, several: list[str]) -> str:
    """What tells one history from the others: the names on the axes where they differ."""
    names = [history.names[axis] for axis in several]
    return ", ".join(names) or history.names["model"]


def sentence(history: History, several: list[str]) -> str:
    """Where the peak steps, in words."""
    first, last = history.points[0], history.points[-1]
    span = f"{len(history.points)} releases from {first.commit} to {last.commit}"
    if not history.steps:
        return f"{what(history, several)}: over {span} the peak does not step."
    steps = "; ".join(spell_step(step) for step in history.steps)
    return f"{what(history, several)}: over {span} the peak steps at {steps}."


def spell_step(step: Step) -> str:
    change = percent(step.ratio - 1)
    loop = f"; {step.loop_mib:+.1f} MiB are importing the loop" if step.imports else ""
    return (
        f"{step.after.commit} ({step.before.peak:,.0f} → {step.after.peak:,.0f} MiB, {change}; "
        f"{len(step.before.peaks)} and {len(step.after.peaks)} processes, by chance "
        f"1 in {1 / step.chance:,.0f}{loop})"
    )


def _table(history: History) -> markdown.Markdown:
    stepped = {step.after.commit: step for step in history.steps}
    body = []
    for point in history.points:
        step = stepped.get(point.commit)
        body.append(
            [
                code(point.commit),
                number(point.peak),
                number(min(point.peaks)),
                number(max(point.peaks)),
                percent(step.ratio - 1) if step else "",
                *(_speed(point.speeds[column]) for column in SPEEDS),
            ]
        )
    header = ["release", "peak, MiB", "smallest", "largest", "step"]
    header += [f"{name}, {unit}" for name, unit in SPEEDS.values()]
    return markdown.table(header, body, " " + "r" * (4 + len(SPEEDS)))


def _speed(values: tuple[float, ...]):
    return number(fmean(values), 1) if values else "–"


@styled
def history_figure(found: list[History]) -> Figure | None:
    """Peak and decode speed against the releases, a line for each setting, steps marked."""
    if not found:
        return None
    several = [axis for axis in found[0].names if len({each.names[axis] for each in found}) > 1]
    commits = list(dict.fromkeys(point.commit for each in found for point in each.points))
    figure = Canvas(figsize=(WIDTH, 5.2), layout="constrained")
    upper, lower = figure.subplots(2, 1, sharex=True)
    for style, history in enumerate(found):
        _draw(upper, lower, history, commits, style, what(history, several))
    for ax, text in ((upper, "peak memory (MiB)"), (lower, "decode (tok/s)")):
        ax.set_ylabel(text)
        ax.set_ylim(bottom=0)
        ax.yaxis.set_major_formatter("{x:,.0f}")
    lower.set_xticks(range(len(commits)), commits, rotation=60, ha="right", fontsize=SMALL)
    figure.legend(*upper.get_legend_handles_labels(), loc="outside upper center")
    spoken = " ".join(sentence(each, several) for each in found)
    return Figure(
        name=SLUG,
        about=SLUG,
        title="Peak and speed by release",
        alt=textwrap.shorten(f"Peak memory and decode speed by release. {spoken}", 900),
        caption="Each release's median over its processes, with their range. A vertical line marks "
        "a release at which the peak steps.",
        svg=svg(figure),
    )


def _draw(upper, lower, history: History, commits: list[str], style: int, label: str) -> None:
    colour, marker = COLOURS[style % len(COLOURS)], MARKERS[style % len(MARKERS)]
    where = [commits.index(point.commit) for point in history.points]
    look = {"color": colour, "marker": marker, "markersize": 4, "linewidth": 1, "capsize": 2}
    peaks = [point.peaks for point in history.points]
    upper.errorbar(where, *_middle(peaks), **look, label=label)
    for step in history.steps:
        upper.axvline(commits.index(step.after.commit), color=colour, linestyle=":", linewidth=1)
    timed = [(x, point.speeds[SHOWN_SPEED]) for x, point in zip(where, history.points, strict=True)]
    timed = [(x, values) for x, values in timed if values]
    if timed:
        lower.errorbar([x for x, _ in timed], *_middle([values for _, values in timed]), **look)


def _middle(values: list[tuple[float, ...]]):
    """The medians, and how far the smallest and the largest lie from them."""
    middle = [median(each) for each in values]
    below = [m - min(each) for m, each in zip(middle, values, strict=True)]
    above = [max(each) - m for m, each in zip(middle, values, strict=True)]
    return middle, [below, above]
