"""How much processor time the runner, its engine and what measures beside it have taken."""

import os
from collections.abc import Callable

from kvpeak.system import machine


def count_cpu_s(request: dict) -> Callable[[], float]:
    """A function that tells how many processor seconds the runner and its children take from now
    on.

    Beside a cell that shares the machine others are meant to run: then it is what the whole
    Snakemake that started the cell has taken, whose process id comes from
    workflow/rules/common.smk, unless that has ended.
    """
    run = os.environ.get("KVPEAK_RUN", "") if "gpu" in request else ""

    def count() -> tuple[float, float | None]:
        return _own_cpu_s(), machine.tree_cpu_s(int(run)) if run.isdigit() else None

    own, whole = count()

    def taken() -> float:
        own_now, whole_now = count()
        return own_now - own if None in (whole, whole_now) else whole_now - whole

    return taken


def _own_cpu_s() -> float:
    """Processor seconds of the runner and of the children that it has reaped."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system
