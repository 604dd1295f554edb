"""How every figure looks: small, readable in black and white, the same bytes for the same data.

Colours are Okabe and Ito's, which colour-blind readers can tell apart; a marker, a fill or a hatch
says the same thing again.
"""

import contextlib
import functools
import importlib.util
import io
import textwrap
from dataclasses import dataclass
from pathlib import Path


def _settings() -> Path:
    """The folder of matplotlib's own settings."""
    found = importlib.util.find_spec("matplotlib")
    return Path(found.origin).parent / "mpl-data"


# matplotlib reads its settings while it is imported, first of all from the current folder, which
# may be a stranger's.
with contextlib.chdir(_settings()):
    import matplotlib.style
    from matplotlib.figure import Figure as Canvas
    from matplotlib.ticker import LogLocator, MaxNLocator

COLOURS = ("#D55E00", "#0072B2", "#009E73", "#CC79A7", "#56B4E9", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P")
LINES = {"before": "--", "after": "-"}
WIDTH = 4.8  # inches; on a phone a figure is three quarters of that, and its text has to be read
FONT, SMALL = 10, 8  # points
MOST_COLUMNS = 2  # panels side by side
MOST_PANELS = 6
MOST_ROWS = 24  # pairs of cells in a figure
MOST_SPOKEN = 3  # pairs of cells in an alt text
TITLE_WIDTH = 22  # characters over a panel
LABEL_WIDTH = 24  # characters beside a row
LEGEND_WIDTH = 28  # characters of an entry, two beside each other
LINE_HEIGHT = 0.2  # inches of a legend's line
LINE_WIDTH = 52  # characters over a figure
STYLE = {
    "svg.hashsalt": "kvpeak",
    "svg.fonttype": "none",
    "text.parse_math": False,  # a name may hold dollars
    "font.size": FONT,
    "axes.titlesize": FONT,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#DDDDDD",
    "grid.linewidth": 0.5,
    "axes.axisbelow": True,
    "legend.frameon": False,
    "legend.fontsize": FONT - 1,
}
HATCHES = ("", "////", "xx", "||", "\\\\\\\\", "++")


@dataclass(frozen=True)
class Figure:
    """A drawn figure: `name` becomes the file NAME.svg; the texts are plain, not yet escaped for
    Markdown.
    """

    name: str
    title: str
    alt: str  # what the figure shows, for those who cannot see it
    caption: str  # how to read it
    svg: str
    about: str = ""  # the slug of the comparison that it belongs to
    sources: tuple[str, ...] = ()  # files below results/ that it was drawn from, beside the tables


def styled(draw):
    """Draw with STYLE, whatever else this process draws."""

    @functools.wraps(draw)
    def styled(*arguments):
        with matplotlib.style.context(["default", STYLE]):
            return draw(*arguments)

    return styled


def canvas(panels: int, height: float):
    """A figure with this many panels in rows of MOST_COLUMNS, each `height` inches high, and the
    panels' axes.
    """
    columns = min(panels, MOST_COLUMNS)
    lines = -(-panels // columns)
    figure = Canvas(figsize=(WIDTH, height * lines + 0.3), layout="constrained")
    axes = figure.subplots(lines, columns, squeeze=False).ravel()
    for ax in axes[panels:]:
        ax.remove()
    return figure, axes[:panels]


def legend(figure, axes) -> None:
    """One legend for all panels, below them; the figure grows by its lines."""
    entries = {}
    for ax in axes:
        handles, labels = ax.get_legend_handles_labels()
        entries |= dict(zip(labels, handles, strict=True))
    columns = 2 if max(map(len, entries), default=0) <= LEGEND_WIDTH else 1
    lines = -(-len(entries) // columns)
    figure.set_figheight(figure.get_figheight() + LINE_HEIGHT * (lines - 1))
    figure.legend(entries.values(), entries, loc="outside lower center", ncols=columns)


def logarithmic(ax) -> None:
    """A logarithmic scale of x, marked at 1 and 3 of each power of ten."""
    ax.set_xscale("log")
    ax.xaxis.set_major_locator(LogLocator(subs=(1, 3)))
    ax.xaxis.set_major_formatter("{x:g}")
    ax.xaxis.set_minor_formatter("")


def svg(figure) -> str:
    """The figure as SVG text; the same bytes for the same drawing, wherever and whenever it is
    made.
    """
    out = io.StringIO()
    figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
    return out.getvalue()


def ticks(values: set[int], most: int = 4) -> list[int]:
    """The values, or of many the first, the last and some between that do not stand too near to one
    another.
    """
    shown, room = [], (max(values) - min(values)) / most
    for value in sorted(values, reverse=True):
        if not shown or shown[-1] - value >= room or len(values) <= 2:
            shown.append(value)
    return shown[::-1]


def stack(ax, bars: list[tuple[str, list[float]]], parts: dict[str, tuple[str, str]]) -> None:
    """Horizontal stacked bars: for each a label and its parts' lengths; the sum stands at the
    end.
    """
    lefts = [0.0] * len(bars)
    outline = {"height": 0.7, "edgecolor": "black", "linewidth": 0.5}
    for number, (name, (colour, hatch)) in enumerate(parts.items()):
        widths = [lengths[number] for _, lengths in bars]
        places = range(len(bars))
        ax.barh(places, widths, left=lefts, color=colour, hatch=hatch, label=name, **outline)
        lefts = [left + width for left, width in zip(lefts, widths, strict=True)]
    beside = {"xytext": (3, 0), "textcoords": "offset points", "va": "center", "fontsize": FONT - 1}
    for row, total in enumerate(lefts):
        ax.annotate(f"{total:,.0f}", (total, row), **beside)
    names = [textwrap.fill(text, LABEL_WIDTH) for text, _ in bars]
    ax.set_yticks(range(len(bars)), names, fontsize=SMALL)
    ax.invert_yaxis()
    ax.grid(axis="y", visible=False)
    ax.margins(x=0.15)
    ax.xaxis.set_major_locator(MaxNLocator(4))
    ax.xaxis.set_major_formatter("{x:,.0f}")
    ax.figure.legend(loc="outside lower center", ncols=2)
