"""Which figures a finding has, and the folder that holds them."""

import json
from dataclasses import asdict
from pathlib import Path

from kvpeak.analysis.comparisons import compare
from kvpeak.analysis.history import histories
from kvpeak.analysis.lead import lead, leading
from kvpeak.analysis.results import Results
from kvpeak.base.files import write_together
from kvpeak.base.untrusted import read_csv
from kvpeak.report.figure_list import INDEX
from kvpeak.report.figures import peak_by_counter, peak_by_length, speed_ratios, where_bytes_are
from kvpeak.report.history import history_figure
from kvpeak.report.pools import pools_of
from kvpeak.report.pools_text import pools_figure
from kvpeak.report.replay_figures import captured_bytes
from kvpeak.report.style import Figure
from kvpeak.report.timelines import memory_over_time, timelines
from kvpeak.report.workloads import workloads_figure


def draw(
    results: Results,
    comparisons: list[dict],
    cells: Path,
    replay: Path | None = None,
    releases: dict[str, str] | None = None,
    variants: dict[str, dict] | None = None,
) -> list[Figure]:
    """Every figure that the results have data for. Memory over time is that of the pair that leads
    the finding. releases: commit → engine, for the history; variants:
    name → options, for the buffer pools.
    """
    compared = [compare(results, **entry) for entry in comparisons]
    first = leading(compared)
    figures = []
    for comparison in compared:
        figures.append(peak_by_length(comparison))
        if pair := lead(comparison).pair:
            figures.append(where_bytes_are(comparison, pair))
            if pair == first.pair:
                figures.append(memory_over_time(timelines(comparison, pair, cells)))
            figures.append(peak_by_counter(comparison, pair))
        figures.append(speed_ratios(comparison))
    figures.append(history_figure(histories(results, releases or {})))
    figures.append(pools_figure(pools_of(results, variants or {}, cells)))
    figures.append(workloads_figure(results))
    if replay:
        figures.append(captured_bytes(read_holders(replay)))
    return [figure for figure in figures if figure]


def read_holders(folder: Path) -> list[dict]:
    """The replay's table of tensors that hold too large a buffer; empty without a replay."""
    try:
        return read_csv(folder / "holders.csv", ("kv_cache", "cap", "role", "excess_mib"))
    except FileNotFoundError:
        return []


def write_figures(figures: list[Figure], out: Path) -> None:
    """Write the SVG files and the list of them, and remove the SVG files of an earlier time."""
    described = [
        {"file": f"{figure.name}.svg"}
        | {key: value for key, value in asdict(figure).items() if key not in ("name", "svg")}
        for figure in figures
    ]
    texts = {f"{figure.name}.svg": figure.svg for figure in figures}
    index = json.dumps(described, indent=1, ensure_ascii=False) + "\n"
    write_together(out, texts | {INDEX: index})
    for old in set(out.glob("*.svg")) - {out / name for name in texts}:
        old.unlink()
