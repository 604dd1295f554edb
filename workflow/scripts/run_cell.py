"""Run one cell: start its engine, measure the process, write runs.csv, cell.json and memory.csv."""

import argparse
import contextlib
import csv
import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from kvpeak.base.axes import AXES
from kvpeak.base.errors import UserError
from kvpeak.base.files import write_together
from kvpeak.protocol.command import Table
from kvpeak.protocol.events import BadAnswer, Conversation, excerpt
from kvpeak.protocol.programs import SCRIPTS, engine_argv
from kvpeak.protocol.request import cell_path, limits_of, load_request
from kvpeak.runner import provenance
from kvpeak.runner.child import Child
from kvpeak.runner.progress import Progress
from kvpeak.runner.speeds import decode_tok_s, prefill_tok_s
from kvpeak.runner.timeline import Timeline
from kvpeak.runner.watch import Guard, Watch, Watched
from kvpeak.system import machine
from kvpeak.system.lock import measuring_alone
from kvpeak.system.nvml import Gpu, chosen_gpu, open_gpu
from kvpeak.system.process_memory import Peaks, memory_of

RUN_COLUMNS = (
    *AXES, "round", "run", "warmup", "prompt_tokens", "generated_tokens", "prefill_s", "prefill_tok_s",
    "ttft_ms", "decode_s", "decode_tok_s", "tokens_sha256", "peak_active_mib", "peak_pool_mib", "order",
    "started_at", "temperature_c", "thermal_pressure",
)  # fmt: skip
FILES = ("memory.csv", "cell.json", "runs.csv")  # of a result; the last one is its marker


@dataclass(frozen=True)
class Ended:
    """An engine's process that has ended. code: its exit code, negative: the signal that killed it.
    elapsed_s: by the monotonic clock; wall_s: by the wall clock; cpu_s: of the engine and the runner, and of
    everything else of the same Snakemake where that measures cells side by side."""

    watched: Watched
    pid: int
    code: int
    killed_for_memory: bool
    peaks: Peaks
    elapsed_s: float
    wall_s: float
    cpu_s: float


class Signals:
    """Remembers the first signal that asks the runner to stop."""

    def __init__(self):
        self._received: int | None = None
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._receive)

    def check(self) -> None:
        """Raise UserError if there was one."""
        if self._received:
            raise UserError(f"stopped by {signal.Signals(self._received).name}")

    def _receive(self, number: int, _frame) -> None:
        self._received = self._received or number


def run_cell(
    request: dict,
    out: Path,
    position: str | None = None,
    check: Callable[[], None] = lambda: None,
    gpus: int = 0,
) -> str:
    """Measure one cell, write its files into `out` and into the folder of this start; return its outcome.

    `position` ("k/n") is for the progress lines; `check` is called all the time and may raise UserError to
    stop. With `gpus` the cell shares the machine and has for itself one of that many GPUs, unless its request
    names one; with 0 it has the machine for itself. Raises UserError, one line that names the cell, the cause
    and the log, if there is no outcome; then what was in `out` stays as it was.
    """
    cell = cell_path(request)
    logs = _results_folder(out, cell) / "logs" / cell
    attempt = None
    progress = Progress(cell, position)
    try:
        named = [request["gpu"]] if "gpu" in request else range(gpus)
        with measuring_alone(cell, named, progress.say, check) as gpu:
            if gpu is not None:
                request = request | {"gpu": gpu}
            attempt = logs / f"{datetime.now(UTC):%Y%m%dT%H%M%S.%fZ}-{os.getpid()}"
            attempt.mkdir(parents=True)
            progress.start(attempt)
            return _measure(request, out, attempt, position, progress, check)
    except OSError as error:
        cause = f"{error.filename or attempt}: {error.strerror}"
    except UserError as error:
        cause = str(error)
    with contextlib.suppress(OSError):
        progress.failed(cause)
    log = f"; log: {attempt}" if attempt else ""
    kept = sorted(logs.glob(f"*/{FILES[-1]}"))
    result = f"; its last result is kept in {kept[-1].parent}" if kept else ""
    raise UserError(f"{cell}: {cause}{log}{result}")


def skip_cell(request: dict, out: Path, position: str | None, why: str) -> None:
    """Write the result of a cell that is not measured: outcome `skipped`, no runs. Raises UserError."""
    cell = cell_path(request)
    _results_folder(out, cell)
    unknown = Conversation(0, 1)
    record = {
        "cell": request["cell"],
        "outcome": "skipped",
        "detail": why,
        "request": request,
        "started_at": _now(),
        "elapsed_s": 0.0,
        "engine": {},
        "memory": memory_numbers(unknown, Peaks(None, None, None), (None, None)),
        "phases": [],
        "machine": {"before": _machine(None), "after": _machine(None)},
        "flags": [],
        "harness": provenance.harness(),
        "inputs": provenance.inputs(request),
        "events": [],
        "log": None,
    }
    try:
        write_together(out, result_texts(record, Timeline(), [], position))
    except OSError as error:
        raise UserError(f"{cell}: {error.filename or out}: {error.strerror}") from None
    Progress(cell, position).say(f"skipped: {why}")


def _measure(request, out, attempt, position, progress, check) -> str:
    gpu = _gpu_of(request)
    harness, inputs = provenance.harness(), provenance.inputs(request)
    started_at = _now()
    before = _machine(gpu)
    argv = engine_argv(request, attempt / "request.json")
    ended = _run_engine(request, argv, attempt, before["available_mib"], gpu, progress, check)
    after = _machine(gpu)
    outcome, detail = conclude(ended, attempt / "stderr.txt")
    conversation = ended.watched.conversation
    record = {
        "cell": request["cell"],
        "outcome": outcome,
        "detail": detail,
        "request": request,
        "started_at": started_at,
        "elapsed_s": round(ended.elapsed_s, 3),
        "engine": _merged(conversation.first("started"), conversation.first("loaded")),
        "memory": memory_numbers(conversation, ended.peaks, gpu.peak() if gpu else (None, None)),
        "phases": ended.watched.phases,
        "machine": {"before": before, "after": after},
        "flags": machine.flags(before, after, ended, gpu.slowed() if gpu else []),
        "harness": harness,
        "inputs": inputs,
        "events": conversation.events,
        "log": str(attempt),
    }
    texts = result_texts(record, ended.watched.timeline, conversation.runs, position)
    write_together(attempt, texts)  # stays when the cell is measured again
    write_together(out, texts)
    progress.end(outcome, ended.watched, ended.peaks.footprint_mib)
    return outcome


def result_texts(
    record: dict, timeline: Timeline, runs: list[dict], position: str | None
) -> dict[str, str]:
    """The contents of FILES. `record` is that of cell.json, `position` "k/n" or None."""
    order = int(position.split("/")[0]) if position else None
    texts = (
        timeline.text(),
        json.dumps(record, indent=1, allow_nan=False) + "\n",
        runs_csv(record, runs, order),
    )
    return dict(zip(FILES, texts, strict=True))


def _now() -> str:
    """The time in UTC, ISO 8601."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _run_engine(request, argv, attempt, available_mib, gpu, progress, check) -> Ended:
    """Run the engine to its end, whichever that is; its request, events and messages stay in `attempt`."""
    limits, protocol = limits_of(request), request["protocol"]
    guard = Guard.at_start(limits.guard_fraction, available_mib, machine.total_mib())
    external = request["engine"] == "command"
    watched = Watched(
        Table(request, attempt)
        if external
        else Conversation(protocol["warmup"], protocol["recorded"])
    )
    request_text = json.dumps(request, indent=1) + "\n"
    (attempt / "request.json").write_text(request_text, encoding="utf-8")
    environment = dict(os.environ) | ({"CUDA_VISIBLE_DEVICES": gpu.uuid} if gpu else {})
    cpu_s = _count_cpu_s(request)
    kills, wall, clock = machine.oom_kills(), time.time(), time.monotonic()
    folder = request["external"]["folder"] if external else None
    with (attempt / ("stdout.txt" if external else "events.jsonl")).open("wb", buffering=0) as raw:
        child = Child(argv, environment, attempt / "stderr.txt", folder)
        try:
            memory = memory_of(child.pid)
            Watch(child, memory, gpu, guard, limits, watched, raw, progress.phase, check).run()
        except BaseException:
            child.stop(limits.grace_s)
            raise
        finally:
            code, usage = child.reap()
    return Ended(
        watched=watched,
        pid=child.pid,
        code=code,
        killed_for_memory=code == -signal.SIGKILL and machine.oom_kills() > kills,
        peaks=memory.exited(usage, watched.conversation.first("done").get("peak_rss_mib")),
        elapsed_s=time.monotonic() - clock,
        wall_s=time.time() - wall,
        cpu_s=cpu_s(),
    )


def _gpu_of(request: dict) -> Gpu | None:
    """The GPU that the cell gets. Raises UserError if the request names one that is not there."""
    wanted = request.get("gpu")
    gpu = open_gpu(chosen_gpu(wanted, os.environ.get("CUDA_VISIBLE_DEVICES")))
    if wanted is not None and gpu is None:
        raise UserError(f"request: gpu: {wanted}; expected none, because no NVIDIA driver answers")
    return gpu


def _machine(gpu: Gpu | None) -> dict:
    return machine.state(gpu.state() if gpu else None)


def _merged(*events: dict) -> dict:
    """What the events say, without their names and times."""
    return {
        key: value
        for event in events
        for key, value in event.items()
        if key not in ("event", "t_s")
    }


def conclude(ended: Ended, stderr: Path) -> tuple[str, str | None]:
    """(outcome, detail) of a process that has ended.

    Raises UserError if it crashed or its answer is not one of the protocol.
    """
    watched, code = ended.watched, ended.code
    phase = watched.phases[-1]["phase"]
    if watched.stopped:
        why, words = watched.stopped
        if why == "garbled":
            raise UserError(f"garbled answer in phase {phase}: {words}")
        return why, f"in phase {phase}: {words}"
    if ended.killed_for_memory:
        return "oom", f"in phase {phase}: killed by the kernel, which was out of memory"
    if code:
        how = f"killed by {_signal_name(-code)}" if code < 0 else f"exit code {code}"
        said = _last_line(stderr)
        raise UserError(f"engine crashed in phase {phase}: {how}" + (f": {said}" if said else ""))
    try:
        return watched.conversation.answer()
    except BadAnswer as error:
        raise UserError(f"garbled answer in phase {phase}: {error}") from None


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
        "loaded_mib": conversation.first("loaded").get("loaded_mib"),
    }


def runs_csv(record: dict, runs: list[dict], order: int | None) -> str:
    """The runs as CSV with RUN_COLUMNS; an unknown figure is empty. `record` is that of cell.json."""
    before = record["machine"]["before"]
    same = {
        **record["cell"],
        "order": order,
        "started_at": record["started_at"],
        "temperature_c": (before.get("gpu") or before).get("temperature_c"),
        "thermal_pressure": before.get("thermal_pressure"),
    }
    out = io.StringIO()
    writer = csv.DictWriter(out, RUN_COLUMNS, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    for run in runs:
        ttft = run["ttft_s"]
        figures = {
            "prefill_tok_s": prefill_tok_s(run),
            "ttft_ms": None if ttft is None else 1000 * ttft,
            "decode_tok_s": decode_tok_s(run),
        }
        row = run | figures | same
        writer.writerow({column: _csv_value(row[column]) for column in RUN_COLUMNS})
    return out.getvalue()


def _csv_value(value):
    if isinstance(value, bool):
        return "true" if value else "false"
    return round(value, 6) if isinstance(value, float) else value


def _results_folder(out: Path, cell: str) -> Path:
    """The folder above cells/ of --out."""
    parts = ("cells", *cell.split("/"))
    if out.parts[-len(parts) :] != parts:
        raise UserError(f"--out: {out}; expected a path that ends with {'/'.join(parts)}")
    return out.parents[len(parts) - 1]


def _count_cpu_s(request: dict) -> Callable[[], float]:
    """A function that tells how many processor seconds the runner and its children have taken from now on.

    Beside a cell that shares the machine others are meant to run: then it is what the whole Snakemake that
    started the cell has taken, whose process id comes from workflow/rules/common.smk, unless that has ended.
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


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _last_line(file: Path) -> str:
    """The last line of a log that says something: usually the cause."""
    with file.open("rb") as opened:
        opened.seek(max(0, file.stat().st_size - 4096))
        lines = opened.read().split(b"\n")
    return next((excerpt(line.strip(), 200) for line in reversed(lines) if line.strip()), "")


def _position(text: str) -> str:
    if not re.fullmatch(r"[0-9]+/[0-9]+", text):
        raise argparse.ArgumentTypeError(f"{text}; expected K/N, such as 3/24")
    return text


def planned(out: Path, matrix: str, digest: str | None) -> dict:
    """What the matrix says of the cell of `out`: expand.told.

    expand.py says it in a process of its own, because the runner stays small. Raises UserError if the matrix
    does not plan the cell, or no longer asks what the digest stands for.
    """
    program = str(SCRIPTS / "expand.py")
    command = [sys.executable, program, "--matrix", matrix, "--request", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise UserError(done.stderr.strip() or f"expand.py ended with {done.returncode}")
    said = json.loads(done.stdout)
    if digest and said["digest"] != digest:
        raise UserError(
            f"{matrix} was changed after this run was planned and asks something else of {out}; "
            "run snakemake again"
        )
    return said


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path, help="the cell's folder: results/cells/…/r1")
    parser.add_argument("--matrix", default="config/matrix.yaml", help="default: %(default)s")
    parser.add_argument("--digest", help="of the request when it was planned; refuse another one")
    parser.add_argument(
        "--request",
        help="ask this instead of what the matrix asks: JSON (docs/protocol.md), or @FILE",
    )
    parser.add_argument(
        "--position", type=_position, metavar="K/N", help="with --request: this is cell K of N"
    )
    parser.add_argument(
        "--gpus",
        type=int,
        default=0,
        metavar="N",
        help="share the machine with other cells; take one of the NVIDIA GPUs 0 to N - 1 alone "
        "(default: the cell has the machine for itself)",
    )
    arguments = parser.parse_args()
    signals = Signals()
    try:
        if arguments.request:
            request = load_request(arguments.request)
            said = {"request": request, "skip": "", "position": arguments.position}
        else:
            said = planned(arguments.out, arguments.matrix, arguments.digest)
        request, out, position = said["request"], arguments.out, said["position"]
        if said["skip"]:
            skip_cell(request, out, position, said["skip"])
        else:
            run_cell(request, out, position, signals.check, arguments.gpus)
    except UserError as error:
        print(f"run_cell: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
