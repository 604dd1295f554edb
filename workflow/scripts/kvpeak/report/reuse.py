"""Two prompts that begin alike: what reusing the first one's cache saves, and what it costs."""

from statistics import fmean

from kvpeak.analysis.results import Results
from kvpeak.analysis.workloads import reuses
from kvpeak.base.axes import AXES
from kvpeak.base.numbers import MIB
from kvpeak.report.markdown import Markdown, number
from kvpeak.report.tables import cell_table

FIRST, KEPT, LOADED, ALONE = 1, 2, 3, 4  # the requests of such a run (docs/protocol.md)
WORDS = {
    FIRST: "the first prompt",
    KEPT: "the second, cache kept",
    LOADED: "the second, cache loaded",
    ALONE: "the second alone",
}
MEANS = ("prompt_tokens", "reused_tokens", "prefill_tok_s", "ttft_ms", "peak_active_mib")
MEANS += ("peak_pool_mib", "cache_mib", "cache_file_mib", "cache_load_ms", "cache_load_peak_mib")


def reuse_rows(results: Results) -> list[dict]:
    """A row for each cell with a shared prefix: the means of its requests, by their numbers."""
    return [
        dict(zip(AXES, cell, strict=True))
        | {"requests": requests_of(rows), "token_bytes": token_bytes(results, cell)}
        for cell, rows in results.turns.items()
        if reuses(rows) and {row["turn"] for row in rows} == set(WORDS)
    ]


def token_bytes(results: Results, cell: tuple) -> float | None:
    """Bytes of keys and values that one token adds in the cell."""
    return (results.summary.get(cell) or {}).get("kv_bytes_per_token")


def requests_of(rows: list[dict]) -> dict[int, dict]:
    """Request → its means over the recorded runs, and where its answer differs (None: nowhere)."""
    found = {}
    for request in WORDS:
        own = [row for row in rows if row["turn"] == request and not row["warmup"]]
        found[request] = {name: _mean(own, name) for name in MEANS}
        differences = [
            row["first_difference"] for row in own if row["first_difference"] is not None
        ]
        found[request]["first_difference"] = min(differences, default=None)
    return found


def _mean(rows: list[dict], name: str) -> float | None:
    values = [float(row[name]) for row in rows if row.get(name) is not None]
    return fmean(values) if values else None


def reuse_table(cells: list[dict]) -> Markdown:
    """A line for each request of each cell."""
    lines = [
        {axis: cell[axis] for axis in AXES} | {"words": WORDS[request]} | means
        for cell in cells
        for request, means in cell["requests"].items()
    ]
    header = ["request", "computed", "reused", "first token, ms", "most live, MiB", "in the pool"]
    return cell_table(
        lines,
        header,
        lambda line: [
            line["words"],
            number(line["prompt_tokens"]),
            number(line["reused_tokens"]),
            number(line["ttft_ms"], 1),
            number(line["peak_active_mib"], 1),
            number(line["peak_pool_mib"], 1),
        ],
    )


def reuse_sentence(cell: dict) -> str:
    """What one cell's reuse saves and costs, and whether the answers are the same."""
    kept, loaded, alone = (cell["requests"][request] for request in (KEPT, LOADED, ALONE))
    name = ", ".join(cell[axis] for axis in ("prompt", "kv_cache", "cap", "variant"))
    first = f"{number(kept['ttft_ms'], 1)} ms instead of {number(alone['ttft_ms'], 1)}"
    said = [
        f"{name}: with the cache of {number(kept['reused_tokens'])} tokens the second prompt's "
        f"first token takes {first}."
    ]
    if kept["cache_mib"] is not None:
        needed = ""
        if cell["token_bytes"]:
            own = kept["reused_tokens"] * cell["token_bytes"] / MIB
            needed = f", of which the tokens themselves take {number(own, 1)}"
        said.append(f"Keeping the cache holds {number(kept['cache_mib'], 1)} MiB{needed}.")
    if loaded["cache_file_mib"] is not None:
        said.append(
            f"Saved, it is a file of {number(loaded['cache_file_mib'], 1)} MiB. Loading that takes "
            f"{number(loaded['cache_load_ms'], 1)} ms, and at most "
            f"{number(loaded['cache_load_peak_mib'], 1)} MiB are live meanwhile."
        )
    return " ".join([*said, *_different(kept, loaded)])


def _different(kept: dict, loaded: dict) -> list[str]:
    found = [
        f"On the {name} cache the answer differs from its token {number(at + 1)} on."
        for name, row in (("kept", kept), ("loaded", loaded))
        if (at := row["first_difference"]) is not None
    ]
    return found or ["The answers are those of the prompt alone."]
