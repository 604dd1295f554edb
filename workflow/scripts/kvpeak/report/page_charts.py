"""The page's charts in the language of Vega-Lite: peaks by length (by prompt, where every prompt is
a workload), and one cell's memory over time.
"""

from kvpeak.report.style import COLOURS

CHOICES = {"model": "Model", "kv_cache": "KV cache", "cap": "Cap", "variant": "Variant"}
LOGARITHMIC = {"type": "log", "base": 2, "nice": False, "padding": 20}


def charts(cells: list[dict]) -> dict | None:
    """The specification, None where there is no cell. What is chosen above filters the points; the
    point that is pointed at, or the cell that is chosen, is the one whose timeline is drawn.
    """
    if not cells:
        return None
    points = [{key: value for key, value in cell.items() if key != "timeline"} for cell in cells]
    samples = [
        {"cell": cell["cell"], "t": t, "mib": mib} for cell in cells for t, mib in cell["timeline"]
    ]
    # The one with the highest peak, of those with a timeline if any has one.
    chosen = max(cells, key=lambda cell: (bool(cell["timeline"]), cell["peak"]))["cell"]
    parts = [_peaks(points, chosen)]
    if samples:
        parts.append(_timeline(samples))
    return {
        "$schema": "https://vega.github.io/schema/vega-lite/v6.json",
        "description": "Peak memory by prompt, and the memory of one cell over time",
        "params": [_choice(name, label, points) for name, label in CHOICES.items()],
        "vconcat": parts,
        "resolve": {"scale": {"color": "independent"}},
        "config": {
            "background": "transparent",
            "axis": {"labelFontSize": 12, "titleFontSize": 12, "tickCount": 8},
            "legend": {
                "labelFontSize": 12,
                "titleFontSize": 12,
                "symbolFillColor": "#808080",
                "symbolStrokeColor": "#808080",
            },
            "title": {"anchor": "start"},
        },
    }


def _choice(name: str, label: str, points: list[dict]) -> dict:
    options = list(dict.fromkeys(point[name] for point in points))
    return {
        "name": f"chosen_{name}",
        "value": None,
        "bind": {
            "input": "select",
            "name": label,
            "options": [None, *options],
            "labels": ["all", *options],
        },
    }


def _peaks(points: list[dict], chosen: str) -> dict:
    keep = " && ".join(
        f"(chosen_{name} == null || datum.{name} == chosen_{name})" for name in CHOICES
    )
    by_length = any(point["tokens"] is not None for point in points)
    length = _quantity("tokens", "prompt tokens", scale=LOGARITHMIC)
    name = {"field": "prompt", "type": "nominal", "title": "prompt", "sort": None}
    return {
        "title": f"Peak memory by prompt{' length' * by_length}",
        "width": 600,
        "height": 300,
        "data": {"values": points},
        "transform": [{"filter": keep}],
        "params": [_pointed_at([point["cell"] for point in points], chosen)],
        "mark": {"type": "point", "filled": True, "size": 90},
        "encoding": {
            "x": length if by_length else name,  # of points without a length none is drawn
            "y": _quantity("peak", "peak (MiB)", scale=LOGARITHMIC),
            "color": _by_colour("kv_cache", "KV cache", points),
            "shape": {"field": "cap", "type": "nominal", "title": "cap"},
            "size": {"condition": {"param": "cell", "empty": False, "value": 260}, "value": 90},
            "tooltip": [
                {"field": "cell", "title": "cell"},
                {"field": "tokens", "title": "prompt tokens", "format": ","},
                {"field": "peak", "title": "peak (MiB)", "format": ",.0f"},
                {"field": "processes", "title": "its processes' peaks (MiB)"},
                {"field": "outcome", "title": "outcome"},
                {"field": "line", "title": "line of summary.csv"},
            ],
        },
    }


def _pointed_at(names: list[str], chosen: str) -> dict:
    """The cell that is pointed at, or chosen in a list."""
    return {
        "name": "cell",
        "select": {
            "type": "point",
            "fields": ["cell"],
            "on": "pointerover, click, touchstart",
            "clear": False,
            "toggle": False,
        },
        "value": [{"cell": chosen}],
        "bind": {
            "input": "select",
            "name": "Cell whose memory over time is drawn",
            "options": names,
        },
    }


def _quantity(field: str, title: str, **more) -> dict:
    return {"field": field, "type": "quantitative", "title": title} | more


def _by_colour(field: str, title: str, points: list[dict]) -> dict:
    names = list(dict.fromkeys(point[field] for point in points))
    scale = {"domain": names, "range": _cycle(len(names))}
    return {"field": field, "type": "nominal", "title": title, "scale": scale}


def _timeline(samples: list[dict]) -> dict:
    return {
        "title": "The chosen cell's memory over time",
        "width": 600,
        "height": 200,
        "data": {"values": samples},
        "transform": [{"filter": {"param": "cell", "empty": False}}],
        "mark": {
            "type": "line",
            "point": {"color": COLOURS[4], "aria": False},
            "color": COLOURS[4],
            "aria": False,
        },
        "encoding": {
            "x": _quantity("t", "seconds since its start"),
            "y": _quantity("mib", "memory (MiB)"),
            "tooltip": [
                {"field": "t", "title": "seconds", "format": ".1f"},
                {"field": "mib", "title": "MiB", "format": ",.0f"},
            ],
        },
    }


def _cycle(count: int) -> list[str]:
    colours = [colour for colour in COLOURS if colour != "#000000"]
    return [colours[number % len(colours)] for number in range(count)]
