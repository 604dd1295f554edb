"""The files of a cell's result, made from what was seen of its process."""

import json
from pathlib import Path

from kvpeak.base.columns import RUNS
from kvpeak.base.errors import UserError
from kvpeak.base.layout import RECORD_FILE, RESULT_FILES
from kvpeak.base.numbers import MIB
from kvpeak.base.tables import csv_text
from kvpeak.base.untrusted import MOST_JSON
from kvpeak.protocol.events import Conversation
from kvpeak.runner import provenance
from kvpeak.runner.attempt import Attempt, utc_now
from kvpeak.runner.outcome import Ended
from kvpeak.runner.speeds import decode_tok_s, prefill_tok_s
from kvpeak.runner.table_output import Table
from kvpeak.runner.timeline import Timeline
from kvpeak.system import machine
from kvpeak.system.process_memory import Peaks

TREE = "the process and what it started, added, sampled every 0.1 s (a lower bound)"
JOULES = ("prefill_j", "decode_j")
UNKNOWN = (None, None)  # of a GPU: its peak and where that was read


def result_texts(
    record: dict, timeline: Timeline, runs: list[dict], position: str | None
) -> dict[str, str]:
    """The contents of RESULT_FILES. `record` is that of cell.json, `position` "k/n" or None.

    Raises UserError if nobody could read the record again.
    """
    order = int(position.split("/")[0]) if position else None
    told = json.dumps(record, indent=1, allow_nan=False) + "\n"
    if len(told) > MOST_JSON:
        raise UserError(
            f"{RECORD_FILE}: would have more than {MOST_JSON // MIB} MiB; expected an engine whose "
            "events say less"
        )
    texts = (timeline.text(), told, runs_csv(record, runs, order))
    return dict(zip(RESULT_FILES, texts, strict=True))


class Before:
    """What is known before the engine starts: the time, the machine, the harness and the inputs."""

    def __init__(self, request: dict, gpu):
        self.harness = provenance.harness()
        self.inputs = provenance.inputs(request)
        self.started_at = utc_now()
        self.machine = machine.state(gpu.state() if gpu else None)


def record_of(
    attempt: Attempt, before: Before, ended: Ended, outcome: str, detail: str | None
) -> dict:
    """cell.json of a process that has ended. It begins with the cell and its outcome."""
    conversation, gpu = ended.watched.conversation, attempt.gpu
    after = machine.state(gpu.state() if gpu else None)
    slowed = gpu.slowed() if gpu else []
    return {
        "cell": attempt.request["cell"],
        "outcome": outcome,
        "detail": detail,
        "request": attempt.request,
        "started_at": before.started_at,
        "elapsed_s": round(ended.elapsed_s, 3),
        "engine": _merged(conversation.first("started"), conversation.first("loaded")),
        "memory": with_tree(
            memory_numbers(conversation, ended.peaks, gpu.peak() if gpu else UNKNOWN),
            ended.watched.peak_tree_mib,
            attempt.external,
        ),
        "energy": ended.energy,
        "phases": ended.watched.phases,
        "machine": {"before": before.machine, "after": after},
        "flags": machine.flags(before.machine, after, ended, slowed),
        "harness": before.harness,
        "inputs": before.inputs,
        "events": conversation.events,
        "log": str(attempt.folder),
    }


def record_of_unmeasured(request: dict, outcome: str, why: str, log: Path | None = None) -> dict:
    """cell.json of a cell that is not measured, or whose start at `log` gave no outcome."""
    before = Before(request, None)
    return {
        "cell": request["cell"],
        "outcome": outcome,
        "detail": why,
        "request": request,
        "started_at": before.started_at,
        "elapsed_s": 0.0,
        "engine": {},
        "memory": memory_numbers(Conversation(0, 1), Peaks(None, None, None), UNKNOWN),
        "energy": None,
        "phases": [],
        "machine": {"before": before.machine, "after": before.machine},
        "flags": [],
        "harness": before.harness,
        "inputs": before.inputs,
        "events": [],
        "log": log and str(log),
    }


def memory_numbers(
    conversation: Conversation | Table, peaks: Peaks, device: tuple[float | None, str | None]
) -> dict:
    """The memory part of cell.json, MiB; null where not known."""
    reports = [*conversation.runs, conversation.first("done")]

    def largest(key: str, *more: float | None) -> float | None:
        values = [*more, *(report.get(key) for report in reports)]
        return max((value for value in values if value is not None), default=None)

    return {
        "peak_footprint_mib": peaks.footprint_mib,
        "peak_footprint_source": peaks.source,
        "peak_pool_mib": largest("peak_pool_mib"),
        "peak_active_mib": largest("peak_active_mib"),
        "peak_rss_mib": largest("peak_rss_mib", peaks.rss_mib),
        "peak_device_mib": device[0],
        "peak_device_source": device[1],
        "peak_reserved_mib": largest("peak_reserved_mib"),
        "loaded_mib": conversation.first("loaded").get("loaded_mib"),
    }


def with_tree(memory: dict, tree_mib: float | None, external: bool) -> dict:
    """The memory part with the peak of the whole process tree, null where it started nothing.

    What an external program starts is the program: a script, or a launcher such as `uv run`. Its
    peak is the tree's, where that is larger. Our own engines start compilers, which are not the
    engine.
    """
    memory = memory | {"peak_tree_mib": tree_mib}
    if external and tree_mib and tree_mib > (memory["peak_footprint_mib"] or 0.0):
        memory |= {"peak_footprint_mib": tree_mib, "peak_footprint_source": TREE}
    return memory


def runs_csv(record: dict, runs: list[dict], order: int | None) -> str:
    """The runs as CSV; an unknown figure is empty. `record` is that of cell.json."""
    before = record["machine"]["before"]
    same = {
        **record["cell"],
        "order": order,
        "started_at": record["started_at"],
        "temperature_c": (before.get("gpu") or before).get("temperature_c"),
        "thermal_pressure": before.get("thermal_pressure"),
    }
    rows = []
    joules = (record["energy"] or {"runs": [dict.fromkeys(JOULES)] * len(runs)})["runs"]
    for run, energy in zip(runs, joules, strict=True):
        ttft = run["ttft_s"]
        figures = {
            "prefill_tok_s": prefill_tok_s(run),
            "ttft_ms": None if ttft is None else 1000 * ttft,
            "decode_tok_s": decode_tok_s(run),
        }
        row = run | figures | energy | same
        rows.append({column: _csv_value(row[column]) for column in RUNS.names})
    return csv_text(RUNS.names, rows)


def _csv_value(value):
    if isinstance(value, bool):
        return "true" if value else "false"
    return round(value, 6) if isinstance(value, float) else value


def _merged(*events: dict) -> dict:
    """What the events say, without their names and times."""
    return {
        key: value
        for event in events
        for key, value in event.items()
        if key not in ("event", "t_s")
    }
