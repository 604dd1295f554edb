"""Tables of cells as Markdown. A long table is folded; the CSV files have all of it."""

from kvpeak.base.axes import AXES
from kvpeak.report import markdown
from kvpeak.report.instruments import marked
from kvpeak.report.markdown import Markdown, code

SHOWN = 40  # rows of a table; the rest is left to the CSV file
MEMORY_COLUMNS = {
    "peak_footprint_mib": "Footprint",
    "peak_device_mib": "Device, sampled",
    "peak_pool_mib": "Pool",
    "peak_active_mib": "Active",
    "peak_rss_mib": "RSS",
    "loaded_mib": "Loaded",
}


def memory_table(summary: list[dict]) -> Markdown:
    """The measured cells by every counter that has a value anywhere, MiB."""
    columns = {
        name: title
        for name, title in MEMORY_COLUMNS.items()
        if any(row[name] is not None for row in summary)
    }
    return cell_table(
        summary, list(columns.values()), lambda row: [marked(row, name) for name in columns]
    )


def cell_table(rows: list[dict], header: list[str], figures) -> Markdown:
    """The first cells, a row each: the names on the axes on which they differ, then
    `figures(row)`.
    """
    if not rows:
        return Markdown("")
    axes = [axis for axis in AXES if len({row[axis] for row in rows}) > 1] or ["kv_cache"]
    body = [[*(code(row[axis]) for axis in axes), *figures(row)] for row in rows[:SHOWN]]
    names = [axis.replace("_", " ") for axis in axes]
    return markdown.table([*names, *header], body, " " * len(axes) + "r" * len(header))
