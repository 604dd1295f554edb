"""The plan of a matrix: every cell, and whether and why it does not run here."""

import shlex
from collections import Counter
from collections.abc import Iterator

from kvpeak.base import layout
from kvpeak.base.axes import Cell
from kvpeak.base.columns import PLAN
from kvpeak.base.made import UNAVAILABLE
from kvpeak.base.tables import csv_text
from kvpeak.base.text import exact
from kvpeak.environments.requirements import completed
from kvpeak.experiment.checks import files_of
from kvpeak.experiment.matrix import Matrix
from kvpeak.experiment.preparation import not_made
from kvpeak.experiment.requests import digest
from kvpeak.experiment.status import to_be_skipped, would_exceed
from kvpeak.system.host import missing_packages

STEPS = {"build": "builds with", "verify": "checks the build with", "run": "runs"}


def plan_csv(matrix: Matrix) -> str:
    """The plan as CSV text, one row per cell and round.

    A cell whose model, prompt or engine was tried and cannot be had does not run here either.
    """
    rows, known = [], {}
    for cell, reason in matrix.plan():
        why = None if reason or matrix.is_measured(cell) else not_made(matrix, cell, known)
        if why and why.outcome == UNAVAILABLE:
            reason = f"{UNAVAILABLE}: {why.reason}"
        here = "no" if reason else "yes"
        path = str(layout.CELLS / cell.path)
        rows.append(
            dict(zip(PLAN.names, (*cell.axes, cell.round, here, reason, path), strict=True))
        )
    return csv_text(PLAN.names, rows)


def plan_summary(matrix: Matrix) -> str:
    """The plan in a few lines for the terminal."""
    reasons = Counter(reason for _, reason in matrix.plan())
    here = reasons.pop("", 0)
    lines = [f"{exact(str(matrix.file))}: {here + reasons.total()} cells, {here} run here"]
    lines += [f"  {count} do not: {reason}" for reason, count in reasons.most_common()]
    known: dict = {}
    tried = (not_made(matrix, cell, known) for cell in matrix.cells_here)
    again = Counter(why.reason for why in tried if why)
    lines += [f"  {count} to be tried again: {reason}" for reason, count in again.most_common()]
    skipped = Counter(to_be_skipped(matrix).values())
    lines += [f"  {count} skipped: {why}" for why, count in skipped.most_common()]
    return "\n".join(lines)


def executed(matrix: Matrix) -> list[str]:
    """What the matrix has executed besides kvpeak and its engines, a line each; [] for nothing.

    Nothing is hidden, cut or joined: a person decides by these lines whether to run it.
    """
    lines = []
    for name, entry in matrix.commits.items():
        lines += [f"commit {name}: {what}" for what in _brought(entry)]
    for name, options in matrix.variants.items():
        env = options.get("env", {}).items()
        lines += [f"variant {name}: sets {key}={value}" for key, value in env]
    if any("pool" in options for options in matrix.variants.values()):
        lines.append("pools: compiles kvpeak's own buffer pools with this machine's C++ compiler")
    return [exact(line) for line in lines]


def read_of(matrix: Matrix) -> str:
    """The files of the project that the matrix has read, in one line."""
    return exact(f"It reads {', '.join(sorted(files_of(matrix)))}.")


def _brought(entry: dict) -> Iterator[str]:
    """The packages and programs of one commit."""
    packages = completed(entry.get("packages", {}))
    if missing_packages(packages):
        named = (f"{name} {version}" for name, version in packages.items())
        yield f"installs {', '.join(named)}, and what they depend on"
    if "repository" in entry:
        yield f"clones {entry['repository']} at {entry['revision']}"
    for program in entry.get("needs", {}).get("programs", []):
        yield f"starts {program} --version"
    for step in ("build", "verify", "run"):
        if entry.get(step):
            yield f"{STEPS[step]} {shlex.join(entry[step])}"


def told(matrix: Matrix, cell: Cell) -> dict:
    """What the runner has to know of a cell.

    `request`; its `digest`; why to `skip` it ('': it is to be measured); why something that it
    needs was `not_made` ([outcome, reason], or null); and its `position` in the order of
    measurement, 'k/n' (null: it does not run here).
    """
    request, order = matrix.request(cell), matrix.cells_here
    position = f"{order.index(cell) + 1}/{len(order)}" if cell in order else None
    skip = would_exceed(matrix, cell)
    why = not_made(matrix, cell)
    return {
        "request": request,
        "digest": digest(request),
        "skip": skip,
        "not_made": [why.outcome, why.reason] if why else None,
        "position": position,
    }
