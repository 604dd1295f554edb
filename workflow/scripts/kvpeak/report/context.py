"""What the finding says: from the tables and the cells' records to the values of the templates."""

import re
from collections import Counter
from pathlib import Path

import pandas as pd

from kvpeak.analysis.comparisons import PRACTICAL, Comparison, Pair, compare
from kvpeak.analysis.headline import is_lower_bound
from kvpeak.analysis.history import histories
from kvpeak.analysis.instruments import doubt, read_instruments
from kvpeak.analysis.lead import Lead, leading
from kvpeak.analysis.longest import fits_rows
from kvpeak.analysis.pooled import effects as pooled_effects
from kvpeak.analysis.results import Results, read_results, read_table, rows
from kvpeak.analysis.setting import prompt_unseen
from kvpeak.analysis.statistics import MIN_OUTLIER_GROUP
from kvpeak.base import layout
from kvpeak.base.axes import AXES
from kvpeak.base.columns import POOLS
from kvpeak.base.fields import split_texts
from kvpeak.base.kv_caches import words_of
from kvpeak.base.numbers import MIB
from kvpeak.base.text import shell_word
from kvpeak.base.untrusted import read_csv
from kvpeak.experiment.matrix import Matrix
from kvpeak.experiment.status import missing_cells
from kvpeak.report import sources, tables
from kvpeak.report.answers import answers_section
from kvpeak.report.claims import claims_section
from kvpeak.report.deciders import (
    growth_lines,
    heading,
    small_lines,
    speed_line,
    unstable_lines,
    variance_lines,
)
from kvpeak.report.doubts import cell_path, doubts, mostly_flagged, not_measured
from kvpeak.report.figure_list import read_figures
from kvpeak.report.fits import fits_section
from kvpeak.report.growth import growth_section
from kvpeak.report.history import history_section
from kvpeak.report.instruments import instruments_section
from kvpeak.report.kv_held import kv_section
from kvpeak.report.limits import limits_section
from kvpeak.report.names import names_line
from kvpeak.report.opening import opening
from kvpeak.report.pools import pools_of
from kvpeak.report.pools_text import pools_section
from kvpeak.report.records import (
    Reader,
    builds,
    calibrations,
    environments,
    first_of_each,
    read_records,
)
from kvpeak.report.sections import comparison_section
from kvpeak.report.where import where_table
from kvpeak.report.workloads import workloads_section

NO_COMPARISON = Lead(
    "What these cells take",
    "The matrix compares nothing that was measured here; the tables show each cell.",
    None,
)

MOST_NAMES = 4  # of models in one sentence
DEFAULT_MATRIX = "config/matrix.yaml"
# What others measured stands in commands that are copied only if it is a package of MLX for CUDA,
# or a revision or a version: no option, no path, no second command.
CUDA_PACKAGE = re.compile(r"mlx-(cuda)-([0-9]{1,3})")
REVISION = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}|v?[0-9]+(\.[0-9a-z]+)*")


def context(matrix: Matrix, folder: Path, figures: Path) -> dict:
    """Everything the templates may use, from the tables of `folder` (results/)."""
    results = read_results(folder / "plan.csv", folder / "summary.csv", folder / "runs.csv")
    plan = rows(read_table(folder / "plan.csv"))
    checks = rows(read_table(folder / "checks.csv"))
    summary = list(results.summary.values())
    commits, reader = {row["commit"] for row in summary}, Reader()
    instruments, damaged = read_instruments(folder, commits)
    doubt(summary, instruments)
    records = read_records(plan, folder / "cells", reader, results.refused)
    compared = [compare(results, **entry) for entry in matrix.compare]
    compared = [comparison for comparison in compared if comparison.pairs]
    calibrated = calibrations(folder, commits, reader)
    runs = read_table(folder / "runs.csv")
    found = {
        "matrix": matrix,
        "protocol": matrix.protocol,
        "expected": Path(matrix.file).with_name("expected.yaml"),
        **answers(results, compared, facts_of(records), folder / "cells"),
        "names": names_line(summary),
        "memory_table": tables.memory_table(summary),
        "answers": answers_section(first_of_each(records)),
        "history": history_section(histories(results, releases_of(matrix))),
        "pools": pools_section(
            pools_of(results, matrix.variants, folder / "cells"), read_pytorch(matrix, folder)
        ),
        "kv_held": kv_section(summary),
        "growth": growth_section(results),
        "workloads": workloads_section(results),
        "fits": fits_section(fits_rows(results, folder), any(map(is_lower_bound, summary))),
        "limits": limits_section(summary, calibrated, sources.dtypes(records)),
        "claims": claims_section(checks, [row["model"] for row in summary]),
        "instruments": instruments_section(instruments, damaged),
        **measured(summary),
        **doubtful(matrix, results, plan),
        "period": period(runs),
        "neighbours": neighbours(compared, runs),
        "penalties": penalties(matrix, summary),
        **origin(folder, commits, records, reader),
        "commands": commands(matrix.file, records, names_of(summary, "harness")),
        "example": example(leading(compared), summary),
        "figures": (drawn := read_figures(figures)),
        "shown_figures": shown_figures(drawn, leading(compared), compared),
        "own_limits": own_limits(summary),
        "replay": read_replay(folder) if sources.replayed(matrix) else None,
    }
    return found | {
        "doubts": doubts(found | {"damaged": reader.problems}),
        "not_measured": not_measured(found) if summary else "",
    }


def shown_figures(drawn: list[dict], lead: Lead | None, compared: list) -> list[str]:
    """The one figure that finding.md shows: of the comparison that leads, where the bytes are, else
    the peak by length, else the first.
    """
    slugs = [each.slug for each in compared if lead and lead.pair in each.pairs]
    files = [figure["file"] for figure in drawn]
    wanted = [
        f"{kind}-{slug}.svg" for kind in ("where-bytes-are", "peak-by-length") for slug in slugs
    ]
    return next(([name] for name in [*wanted, *files] if name in files), [])


def own_limits(summary: list[dict]) -> list[str]:
    """What the engines said of their own limits, e.g. `mlx-0.32.4: 32 MiB`."""
    said: dict[tuple, dict[str, None]] = {}
    for row in summary:
        if row["cap"] == "default" and (row["cap_bytes"] or "").isdecimal():
            limits = said.setdefault((row["commit"], row["accelerator"]), {})
            limits[f"{int(row['cap_bytes']) / MIB:,.0f}"] = None
    return [f"{commit}: {sources.either(limits)} MiB" for (commit, _), limits in said.items()]


def facts_of(records: list[dict]) -> tuple[str, ...]:
    """What of all cells that computed belongs on the first screen: weights of chance, and the type
    that was computed in.
    """
    models = sources.models(sources.computed(records))
    random = [model["name"] for model in models if model["weights"] == "random"]
    facts = []
    if random:
        whose = "All weights" if len(random) == len(models) else f"The weights of {listed(random)}"
        facts.append(
            f"{whose} are random: memory and speed should be as with real ones of this shape; "
            "the tokens are not."
        )
    types = dict.fromkeys(model["dtypes"] for model in models if model["dtypes"])
    if types:
        facts.append(f"Computed in {listed(list(types))}.")
    facts += [f"{model['name']}: {model['widened']}." for model in models if model.get("widened")]
    return tuple(facts)


def listed(names: list[str]) -> str:
    """Names as a sentence has them; of many the number."""
    if len(names) > MOST_NAMES:
        return f"{len(names)} models"
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last


def answers(results: Results, compared: list, facts: tuple[str, ...], cells: Path) -> dict:
    """What the finding answers: the opening, and what decides the peak."""
    summary = list(results.summary.values())
    effects = pooled_effects(compared)
    lead = leading(compared) or NO_COMPARISON
    mark = not mostly_flagged(summary)
    return {
        "marked": mark,
        "opening": opening(results, compared, lead, effects, facts),
        "where": where_table(results, compared),
        "comparisons": [comparison_section(each, effects[each.slug], mark) for each in compared],
        "speeds": speed_line(effects),
        "variance": variance_lines(results),
        "small": small_lines(compared),
        "unstable": unstable_lines(results),
        "growing": growth_lines(results, cells),
    }


def releases_of(matrix: Matrix) -> dict[str, str]:
    """commit → engine, in the matrix's order."""
    return {name: entry["engine"] for name, entry in matrix.commits.items()}


def measured(summary: list[dict]) -> dict:
    """What was measured: the cells and the names on their axes."""
    return {
        "summary": summary,
        "engines": sources.engines(summary),
        "unseen_prompt": any(map(prompt_unseen, summary)),
        "methods": names_of(summary, "method"),
        "variants": names_of(summary, "variant"),
        "kv_caches": names_of(summary, "kv_cache"),
        "kv_cache_words": {name: words_of(name) for name in names_of(summary, "kv_cache")},
        "caps": names_of(summary, "cap"),
        "machines": names_of(summary, "machine"),
        "hardware": names_of(summary, "hardware"),
        "harness": names_of(summary, "harness"),
        "dirty": any(row["dirty"] == "yes" for row in summary),
        "single": {axis: names[0] for axis in AXES if len(names := names_of(summary, axis)) == 1},
        # several: cells ran side by side
        "gpus": len(names_of(summary, "gpu")),
    }


def doubtful(matrix: Matrix, results: Results, plan: list[dict]) -> dict:
    """What did not end well, was not measured, or is doubtful."""
    summary = list(results.summary.values())
    outcomes = [row for row in summary if row["outcome"] != "ok"]
    kinds = Counter(row["outcome"] for row in outcomes).most_common()
    return {
        "outcomes": outcomes,
        "outcome_kinds": ", ".join(f"{count:,} {outcome}" for outcome, count in kinds),
        "flagged": flagged(summary),
        "far_off": [
            {"row": row, "runs": results.outliers[cell]}
            for cell, row in results.summary.items()
            if cell in results.outliers
        ],
        "runs_too_few": all(row["runs"] < MIN_OUTLIER_GROUP for row in summary),
        "rising": [
            {"row": results.summary[cell], "first": first, "later": later}
            for cell, (first, later) in results.live_peaks.items()
            if cell in results.summary and later > (1 + PRACTICAL) * first
        ],
        "not_here": not_here(plan),
        "missing": list(missing_cells(matrix)),
        "unmeasured": unmeasured(plan, results.summary),
        "planned": len({cell_path(row) for row in plan}),
    }


def origin(folder: Path, commits: set[str], records: list[dict], reader: Reader) -> dict:
    """Where the results come from."""
    models = sources.models(records)
    return {
        "models": models,
        "alike": sources.alike(models),
        "configs_left_out": sources.configs_left_out(records),
        "prompts": sources.prompts(records),
        "environments": environments(folder, commits, reader),
        "builds": builds(folder, commits, reader),
    }


def commands(matrix_file: Path | str, records: list[dict], harness: list[str]) -> dict[str, str]:
    """What runs this matrix again: with make, with Snakemake, and one cell of it; `checkout` gets
    the last harness that is a revision, '' if none is.
    """
    config = "" if str(matrix_file) == DEFAULT_MATRIX else shell_word(f"matrix={matrix_file}")
    own = [each for each in records if not each["imported"]] or records
    versions = [name for each in own for name in each["engine"].get("versions", [])]
    cuda = [found for found in map(CUDA_PACKAGE.fullmatch, versions) if found]
    accel = [f"ACCEL={''.join(found.groups())}" for found in cuda[:1]]
    revisions = [name for name in harness if REVISION.fullmatch(name)]
    option = f" --config {config}" if config else ""
    return {
        "checkout": f"git checkout {revisions[-1]}" if revisions else "",
        "make": " ".join(
            ["make finding", *accel, *([config.replace("matrix=", "MATRIX=", 1)] if config else [])]
        ),
        "snakemake": f"snakemake --cores 1 report/finding.md{option}",
        "force": f"snakemake --cores 1{option} --force",
    }


def read_replay(folder: Path) -> dict[str, list[dict]] | None:
    """The replay's tables by name, None if there is no replay."""
    return {path.stem: read_csv(path) for path in sorted((folder / "replay").glob("*.csv"))} or None


def read_pytorch(matrix: Matrix, folder: Path) -> list[dict]:
    """The rows of pools/pytorch.csv, none if the matrix names no recordings."""
    file = folder / layout.PYTORCH.relative_to(layout.RESULTS)
    return read_csv(file, POOLS.names) if matrix.recordings else []


def names_of(summary: list[dict], column: str) -> list[str]:
    """The different names in a column; several in one field are split."""
    fields = (row[column] for row in summary if row[column] is not None)
    return list(dict.fromkeys(name for field in fields for name in split_texts(field)))


def not_here(plan: list[dict]) -> list[dict]:
    """Why planned cells run in none of their rounds here, the most frequent reason first."""
    here = {cell_path(row) for row in plan if row["runs_here"] == "yes"}
    cells = {cell_path(row): row["reason"] for row in plan if row["reason"]}
    reasons = Counter(reason for cell, reason in cells.items() if cell not in here)
    return [{"reason": reason, "cells": count} for reason, count in reasons.most_common()]


def unmeasured(plan: list[dict], measured: dict) -> int:
    """How many cells run here and have no result."""
    here = {tuple(row[axis] for axis in AXES) for row in plan if row["runs_here"] == "yes"}
    return len(here - measured.keys())


def flagged(summary: list[dict]) -> dict:
    """The flagged cells by the kind of flag (its first word), and one example of each."""
    kinds: dict[str, list[dict]] = {}
    for row in summary:
        for kind in dict.fromkeys(flag.split(":")[0] for flag in split_texts(row["flags"])):
            kinds.setdefault(kind, []).append(row)
    return {
        "cells": sum(bool(row["flags"]) for row in summary),
        "kinds": [{"kind": kind, "rows": found} for kind, found in kinds.items()],
    }


def period(runs: pd.DataFrame) -> dict | None:
    """When the first and the last cell started (UTC dates)."""
    starts = runs["started_at"].dropna().astype(str)
    return {"first": starts.min()[:10], "last": starts.max()[:10]} if len(starts) else None


def neighbours(compared: list[Comparison], runs: pd.DataFrame) -> list[dict]:
    """Of each comparison: how many of the pairs whose speeds are compared were measured right after
    each other in every round.
    """
    places: dict[tuple, dict[int, int]] = {}
    for row in rows(runs):
        cell = tuple(row[axis] for axis in AXES)
        places.setdefault(cell, {})[row["round"]] = row.get("order")

    def beside(pair: Pair) -> bool:
        one, other = (
            places.get(tuple(side[axis] for axis in AXES), {}) for side in (pair.before, pair.after)
        )
        both = [(one[number], other[number]) for number in one.keys() & other.keys()]
        return bool(both) and all(None not in two and abs(two[0] - two[1]) == 1 for two in both)

    found = []
    for comparison in compared:
        pairs = [pair for pair in comparison.pairs if pair.speeds and pair.complete]
        count = {"pairs": len(pairs), "beside": sum(map(beside, pairs))}
        found.append({"heading": heading(comparison)} | count)
    return found


def penalties(matrix: Matrix, summary: list[dict]) -> list[float]:
    """The repeat penalties of the cells, replayed ones too, smallest first; 1 is none."""
    own = matrix.protocol["repeat_penalty"]
    variants = {row["variant"] for row in summary}
    said = {matrix.variants.get(name, {}).get("repeat_penalty", own) for name in variants}
    return sorted(said or {own})


def example(lead: Lead | None, summary: list[dict]) -> str | None:
    """The path of the cell that the lead is about, else of the first one; None without cells."""
    row = lead.pair.before if lead and lead.pair else summary[0] if summary else None
    return row and f"results/cells/{cell_path(row)}/r1/runs.csv"
