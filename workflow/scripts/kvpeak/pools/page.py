"""The answer as one HTML page with its figures, without anything from elsewhere."""

from html import escape

from kvpeak.base.numbers import percent
from kvpeak.pools.answer import MB, Answer, fit_of, mb, sentence
from kvpeak.pools.replay import Outcome

_WIDTH, _HEIGHT, _LEFT, _BOTTOM = 900, 260, 70, 30
_COLOURS = {"reserved": "#c44e00", "held": "#0060a8", "asked for": "#5a9e2f"}

_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; } td, th { padding: .15rem .6rem; text-align: right; }
td:first-child, th:first-child, td:last-child { text-align: left; }
tr:nth-child(even) { background: #8881; }
code, td:first-child { font-family: ui-monospace, monospace; font-size: .85em; }
svg { width: 100%; }
.first { font-size: 1.3rem; } svg text { font: 12px system-ui, sans-serif; fill: currentColor; }
"""


def html(answer: Answer) -> str:
    """The page."""
    trace = answer.trace
    parts = [
        f"<h1>{escape(trace.name)}</h1>",
        f'<p class="first">{escape(sentence(answer))}</p>' if answer.best else "",
        f"<p>{len(trace):,} events, {trace.buffers:,} buffers. MB are 10<sup>6</sup> bytes.</p>",
        *(f"<p>{escape(note)}</p>" for note in trace.notes),
    ]
    for title, outcome in (("Now", answer.now), ("Best", answer.best)):
        if outcome and outcome.series:
            parts += [
                f"<h2>{title}: <code>{escape(str(outcome.setting))}</code></h2>",
                f"<p>{escape(fit_of(answer, outcome))}</p>" if answer.limit else "",
                _series(outcome, answer.limit),
            ]
    if answer.searched:
        parts += ["<h2>Peak against real allocations</h2>", _scatter(answer)]
    parts += ["<h2>Settings</h2>", _settings(answer)]
    if answer.holders:
        parts += ["<h2>Who holds what at the peak</h2>", _holders(answer)]
    body = "\n".join(part for part in parts if part)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f"<title>{escape(trace.name)}</title><style>{_STYLE}</style></head>\n<body>\n{body}\n"
        "</body></html>\n"
    )


def _series(outcome: Outcome, limit: int | None) -> str:
    """Reserved, held and asked for over the events."""
    most = max(1, *outcome.series[0], limit if limit and limit < 2 * outcome.reserved_peak else 0)
    lines = []
    for (name, colour), values in zip(_COLOURS.items(), outcome.series, strict=True):
        step = (_WIDTH - _LEFT) / max(len(values) - 1, 1)
        points = " ".join(
            f"{_LEFT + i * step:.1f},{_y(value, most):.1f}" for i, value in enumerate(values)
        )
        lines.append(
            f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.5"/>'
        )
        place = 20 + 16 * len(lines)
        lines.append(f'<text x="{_LEFT + 12}" y="{place}" style="fill:{colour}">{name}</text>')
    if limit and limit <= most:
        y = _y(limit, most)
        lines.append(
            f'<line x1="{_LEFT}" x2="{_WIDTH}" y1="{y:.1f}" y2="{y:.1f}" stroke="currentColor" '
            'stroke-dasharray="6 4"/>'
        )
    return _figure(f"Memory over the events of {outcome.setting}", most, "events", lines)


def _scatter(answer: Answer) -> str:
    outcomes = [each for each in answer.outcomes if each.fits]
    most = max((each.reserved_peak for each in outcomes), default=1)
    widest = max((each.made for each in outcomes), default=1)
    best = set(map(id, answer.front))
    marks = []
    for each in sorted(outcomes, key=lambda each: id(each) in best):
        x = _LEFT + (_WIDTH - _LEFT - 10) * each.made / max(widest, 1)
        colour = "#c44e00" if each is answer.now else "#0060a8" if id(each) in best else "#888"
        size = 5 if colour != "#888" else 3
        title = f"{each.setting}: {mb(each.reserved_peak)}, {each.made:,} allocations"
        marks.append(
            f'<circle cx="{x:.1f}" cy="{_y(each.reserved_peak, most):.1f}" r="{size}" '
            f'fill="{colour}"><title>{escape(title)}</title></circle>'
        )
    legend = "real allocations (blue: the front; orange: now)"
    return _figure("Peak against real allocations", most, legend, marks)


def _figure(title: str, most: int, below: str, inside: list[str]) -> str:
    ticks = "".join(
        f'<text x="{_LEFT - 6}" y="{_y(most * k // 4, most) + 4:.1f}" text-anchor="end">'
        f"{most * k / 4 / MB:,.0f}</text>"
        f'<line x1="{_LEFT}" x2="{_WIDTH}" y1="{_y(most * k // 4, most):.1f}" '
        f'y2="{_y(most * k // 4, most):.1f}" stroke="#8884"/>'
        for k in range(5)
    )
    return (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(title)}">{ticks}'
        f'{"".join(inside)}<text x="{_WIDTH}" y="{_HEIGHT - 8}" text-anchor="end">{escape(below)}'
        f'</text><text x="4" y="14">MB</text></svg>'
    )


def _y(value: int, most: int) -> float:
    return 20 + (_HEIGHT - _BOTTOM - 20) * (1 - value / max(most, 1))


def _settings(answer: Answer, most: int = 1000) -> str:
    order = sorted(answer.outcomes, key=lambda each: (not each.fits, each.reserved_peak, each.made))
    rows = [
        (
            escape(str(each.setting)),
            *(
                f"{value / MB:,.0f}"
                for value in (each.reserved_peak, each.active_peak, each.inside, each.outside)
            ),
            percent(each.hits / each.requests, 1, sign=False) if each.requests else "–",
            f"{each.made:,}",
            escape(fit_of(answer, each)) if answer.limit else "now" * (each is answer.now),
        )
        for each in order[:most]
    ]
    head = ("setting", "peak MB", "live MB", "inside", "outside", "hits", "allocations", "")
    return _table(head, rows)


def _holders(answer: Answer, most: int = 30) -> str:
    rows = [
        (
            f"{each.count:,} × {each.held:,}",
            f"{each.total / MB:,.1f}",
            f"{each.requested:,}",
            f"{each.age_us / 1e6:,.3f}",
            escape(each.phase or "–"),
            "<br>".join(map(escape, each.stack.splitlines()[:6])) or "–",
        )
        for each in answer.holders[:most]
    ]
    return _table(("buffers", "MB", "asked for", "age s", "phase", "stack"), rows)


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    def line(cells, tag):
        return "<tr>" + "".join(f"<{tag}>{cell}</{tag}>" for cell in cells) + "</tr>"

    return "<table>" + line(head, "th") + "\n".join(line(row, "td") for row in rows) + "</table>"
