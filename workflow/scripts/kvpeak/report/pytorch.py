"""PyTorch's allocator under several settings: counted on a GPU, beside its replay."""

from statistics import geometric_mean

from kvpeak.base.numbers import MIB, percent
from kvpeak.report import markdown
from kvpeak.report.markdown import Markdown, code, escape, number

DEFAULT, RAN = "default", "ran"
Runs = dict[str, dict[str, dict]]  # workload → setting → its row of results/pools/pytorch.csv


def pytorch_section(rows: list[dict]) -> dict:
    """What the template shows of results/pools/pytorch.csv."""
    runs: Runs = {}
    for row in rows:
        runs.setdefault(row["workload"].replace("_", " "), {})[row["setting"]] = row
    settings = list(dict.fromkeys(row["setting"] for row in rows))
    settings.sort(key=lambda setting: setting != DEFAULT)
    equal = sum(row["counted_bytes"] == row["replayed_bytes"] for row in rows)
    off = [int(row["replayed_bytes"]) / int(row["counted_bytes"]) - 1 for row in rows]
    return {
        "sentence": sentence(runs),
        "table": markdown.table(
            ["workload", *map(code, settings)],
            [[name, *(_field(by, each) for each in settings)] for name, by in runs.items()],
            " " + "r" * len(settings),
        ),
        "processes": len(rows),
        "equal": equal,
        "off": percent(max(map(abs, off)), 1, sign=False),
        "ends": sum(row["counted_end"] == row["replayed_end"] for row in rows),
        "engine": rows[0]["engine"],
        "device": rows[0]["device"],
    }


def savings(runs: Runs) -> dict[str, dict[str, float]]:
    """setting → workload → counted peak / that under the default − 1, where both ran to the end."""
    found: dict[str, dict[str, float]] = {}
    for workload, by in runs.items():
        own = by.get(DEFAULT)
        for setting, row in by.items():
            if own and setting != DEFAULT and own["counted_end"] == row["counted_end"] == RAN:
                change = int(row["counted_bytes"]) / int(own["counted_bytes"]) - 1
                found.setdefault(setting, {})[workload] = change
    return found


def sentence(runs: Runs) -> Markdown:
    """Which setting would have saved most, and how much."""
    found = savings(runs)
    if not found:
        return Markdown("")
    best = min(found, key=lambda each: geometric_mean(1 + part for part in found[each].values()))
    by = found[best]
    most, least = min(by, key=by.get), max(by, key=by.get)
    device = next(iter(runs[most].values()))["device"]
    if by[most] >= 0:
        return Markdown(f"In PyTorch ({escape(device)}) no setting would have saved memory.")
    rest = f" ({escape(most)})"
    rest += f", at least {_saved(by[least])} ({escape(least)})" if len(by) > 1 else ""
    return Markdown(
        f"In PyTorch ({escape(device)}) {code(best)} would have saved up to {_saved(by[most])} of "
        f"what was reserved{rest}."
    )


def _saved(change: float) -> str:
    return percent(-change, 0, sign=False)


def _field(by: dict[str, dict], setting: str) -> str:
    row = by.get(setting)
    if not row:
        return "–"
    failed = "" if row["counted_end"] == RAN else f", {row['counted_end']}"
    counted, own = int(row["counted_bytes"]), by.get(DEFAULT)
    change = ""
    if setting != DEFAULT and own:
        change = f" ({percent(counted / int(own['counted_bytes']) - 1, 0)})"
    return f"{number(counted / MIB)}{change}{failed}"
