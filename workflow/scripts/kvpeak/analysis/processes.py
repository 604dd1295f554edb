"""One process as its folder tells it: a row of processes.csv, and its runs.

A record may come from a stranger or from an older version. What a finding cannot do without is
checked here; a figure that is optional is empty where it cannot be worked out, and costs no row.
"""

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from statistics import fmean

from kvpeak.analysis.configs import config_of
from kvpeak.analysis.headline import counter_of
from kvpeak.analysis.kv_held import difference
from kvpeak.analysis.least_work import counted_shapes, decode_bytes, kv_bytes, prefill_flops
from kvpeak.analysis.record_rows import LONGEST, check_cell, check_numbers, check_texts
from kvpeak.analysis.workloads import rows_of
from kvpeak.base.columns import (
    ENERGY,
    MEMORY,
    PEAKS,
    PROCESSES,
    RUNS,
    SPEEDS,
    SUMMARY,
    TURNS,
)
from kvpeak.base.errors import UserError
from kvpeak.base.fields import join_texts
from kvpeak.base.kv_caches import keeps_all
from kvpeak.base.layout import MEMORY_FILE
from kvpeak.base.numbers import LARGEST, bounded
from kvpeak.base.text import plain
from kvpeak.base.untrusted import read_csv, read_object
from kvpeak.experiment.requests import asked_otherwise
from kvpeak.experiment.workloads import NAMED, name_of, parts_of
from kvpeak.inputs.shapes import kv_bytes_per_token

MOST_TEXTS = 100  # of a list: all cells' are kept
MOST_RUNS = 10_000  # of a process that does not say how many it was asked for
HELD = ("kv_bytes_per_token", "kv_window_bytes", "kv_state_bytes")  # the engine measures them
WORK = (*HELD, "kv_bytes_from_shapes", "kv_difference", "prefill_flops", "decode_bytes")
HARDWARE = (("machine", "before", "machine_id"), ("machine", "before", "gpu", "uuid"))
RUN_PHASES = ("prefill-", "decode-")
PHASES = ("sampled_load_mib", "sampled_run_mib", "sampled_end_mib")
_OPTIONAL = ("temperature_c", "thermal_pressure", "prefill_j", "decode_j")
_NEEDED = tuple(name for name in RUNS.names if name not in _OPTIONAL)


class Record:
    """A record of nested JSON objects, read by path. A value of another type is a UserError."""

    def __init__(self, file: Path, values: dict):
        self.file, self.values = file, values

    def at(self, *path: str):
        """The value at a path of keys; None where one of them is missing or null."""
        value = self.values
        for key in path:
            if not isinstance(value, dict):
                raise UserError(f"{self.file}: {'.'.join(path)}: expected an object before {key}")
            if (value := value.get(key)) is None:
                return None
        return value

    def text(self, *path: str) -> str | None:
        """The text at a path, as one line that can be seen; a number is spelled."""
        value = self.at(*path)
        if isinstance(value, (list, dict)):
            raise UserError(f"{self.file}: {'.'.join(path)}: {str(value)[:80]}: expected text")
        return None if value is None else plain(str(value), LONGEST)

    def number(self, *path: str) -> float | None:
        """The number at a path, None if it is none or beyond LARGEST."""
        value = self.at(*path)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise UserError(f"{self.file}: {'.'.join(path)}: {str(value)[:80]}: expected a number")
        return value if abs(value) <= LARGEST else None

    def texts(self, *path: str, most: int | None = MOST_TEXTS) -> list[str]:
        """The first so many texts of the list at a path; empty where there is none."""
        value = self.at(*path) or []
        if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
            raise UserError(f"{self.file}: {'.'.join(path)}: expected a list of texts")
        return [plain(text, LONGEST) for text in value[:most]]

    def items(self, *path: str) -> dict:
        """The object at a path; empty where there is none."""
        value = self.at(*path) or {}
        if not isinstance(value, dict):
            raise UserError(f"{self.file}: {'.'.join(path)}: expected an object")
        return value


def read_process(
    folder: Path, cell: dict[str, str] | None = None, asked: dict | None = None
) -> tuple[dict, list[dict]] | None:
    """What one process's cell.json and runs.csv say, and its runs; None if it was not measured.

    Raises UserError, one line, for files that are not what they should be, or that are not those of
    `cell`, its names and its round, or whose request is another than `asked`.
    """
    try:
        runs = read_csv(folder / "runs.csv", _NEEDED)
        record = Record(folder / "cell.json", read_object(folder / "cell.json"))
    except FileNotFoundError:
        return None
    for line, run in enumerate(runs, 2):
        check_numbers(RUNS, run, f"{folder / 'runs.csv'}: line {line}")
        check_texts(RUNS, run, f"{folder / 'runs.csv'}: line {line}")
    if len({run["run"] for run in runs}) < len(runs):
        raise UserError(f"{folder / 'runs.csv'}: run: one of them is there twice")
    if cell:
        check_cell(record.items("cell"), cell, record.file)
        for run in runs:
            check_cell(run, cell, folder / "runs.csv")
    if asked and (otherwise := asked_otherwise(record.items("request"), asked)):
        raise UserError(f"{record.file}: request: {otherwise}")
    _check_count(runs, record, "runs")
    recorded = [run for run in runs if run["warmup"].lower() != "true"]
    hashes = {run["tokens_sha256"] for run in recorded if run["tokens_sha256"]}
    found = {
        "outcome": record.text("outcome") or "unknown",
        "runs": len(recorded),
        "prompt_tokens": next((run["prompt_tokens"] for run in recorded), None),
        "generated_tokens": next((run["generated_tokens"] for run in recorded), None),
        **{name: record.number("memory", name) for name in PEAKS},
        **{name: _mean_of(recorded, name) for name in SPEEDS},
        **{name: _joules_of(recorded, *columns) for name, columns in ENERGY.items()},
        "idle_w": record.number("energy", "idle_w"),
        "hashes": sorted(hashes),
        "outputs": len(hashes),
        "flags": record.texts("flags"),
        **said(record),
        **optional_work(record),
        "turns": turns_of(record),
    }
    counter = counter_of(found)
    found |= sampled_by_phase(folder, counter)
    check_numbers(PROCESSES, found, str(record.file))
    for turn in found["turns"]:
        check_numbers(TURNS, turn, f"{record.file}: events: parts")
        check_texts(TURNS, turn, f"{record.file}: events: parts")
    return found | {"peak_source": record.text("memory", f"peak_{counter}_source") or ""}, runs


def _check_count(rows: list[dict], record: Record, what: str, each: int = 1) -> None:
    """Raise UserError for more runs, or parts of them (`each` so many), than were asked for: those
    of all cells have to fit one table. A record that does not say it may have MOST_RUNS.
    """
    asked = [record.number("request", "protocol", name) for name in ("warmup", "recorded")]
    most = MOST_RUNS if None in asked else each * sum(asked)
    if len(rows) > most:
        raise UserError(f"{record.file}: {len(rows):,} {what}: expected {most:,}, as it was asked")


def sampled_by_phase(folder: Path, counter: str) -> dict[str, float | None]:
    """The largest sample of a counter before the first run, in the runs and between them, and after
    the last, MiB; None each where memory.csv is not there, damaged, or without such samples.
    """
    largest: dict[str, float | None] = dict.fromkeys(PHASES)
    try:
        samples = read_csv(folder / MEMORY_FILE, MEMORY.names, only=("phase", f"{counter}_mib"))
        runs = [at for at, each in enumerate(samples) if each["phase"].startswith(RUN_PHASES)]
        first, last = (runs[0], runs[-1]) if runs else (len(samples), len(samples))
        for at, sample in enumerate(samples):
            name = PHASES[(at >= first) + (at > last)]
            if size := sample.get(f"{counter}_mib"):
                largest[name] = max(bounded(size), largest[name] or 0.0)
    except (OSError, UserError, ValueError):
        return dict.fromkeys(PHASES)
    return largest


def turns_of(record: Record) -> list[dict]:
    """The rows of turns.csv; none for a plain prompt. Raises UserError for parts that are none."""
    events = record.at("events") or []
    try:
        found = rows_of(events)
    except (AttributeError, KeyError, TypeError) as error:
        raise UserError(f"{record.file}: events: a run's parts: {error!r}") from None
    _check_count(found, record, "parts of runs", parts_of(workload_of(record)))
    return found


def workload_of(record: Record) -> str:
    """What the prompt is beside one text, e.g. `batch 8`; '' for one text. Raises UserError."""
    name = name_of(record.items("request", "prompt", "workload"))
    if name and not NAMED.fullmatch(name):
        raise UserError(
            f"{record.file}: request.prompt.workload: {name[:80]}: expected one such as batch 8"
        )
    return name


def said(record: Record) -> dict:
    """What the record says in words."""
    versions = record.items("engine", "versions").items()
    env = record.items("request", "env")
    harness = record.text("harness", "revision") or record.text("harness", "version")
    return {
        "detail": record.text("detail"),
        "method": record.text("engine", "method") or "live",
        "weights": record.text("request", "model", "weights"),
        "workload": workload_of(record),
        "machine": record.text("machine", "before", "name") or "unknown",
        "accelerator": record.text("engine", "device", "accelerator"),
        "gpu": record.text("request", "gpu") or "",
        "hardware": " ".join(filter(None, (record.text(*path) for path in HARDWARE))),
        "versions": plain(", ".join(f"{name} {text}" for name, text in versions), LONGEST),
        "loop": record.text("engine", "loop"),
        "attention": record.text("engine", "attention"),
        "env": join_texts(
            plain(f"{name}={env[name]}", LONGEST) for name in sorted(env)[:MOST_TEXTS]
        ),
        "cap_bytes": record.text("engine", "cap_bytes") or "",
        "loop_mib": record.number("engine", "loop_mib"),
        "prefill_chunk": record.text("request", "options", "prefill_chunk"),
        "pool_rule": record.text("engine", "pool", "setting") or "",
        "recorded": "yes" if record.at("request", "options", "record") else "",
        "repeat_penalty": record.text("request", "protocol", "repeat_penalty"),
        "kv_layers": record.text("engine", "kv_layers"),
        "blas": record.text("engine", "blas"),
        "energy_source": record.text("energy", "source"),
        "harness": harness,
        "dirty": "yes" if record.at("harness", "dirty") else "no",
    }


def _mean_of(runs: Iterable[dict], column: str) -> float | None:
    """The mean of the runs that have a value in the column."""
    values = [float(run[column]) for run in runs if run[column]]
    return fmean(values) if values else None


def _joules_of(runs: Iterable[dict], joules: str, tokens: str) -> float | None:
    """Joules a token of the runs that have both; of decode those after a first token."""
    try:
        pairs = [
            (float(run[joules]), _steps(run) if joules == "decode_j" else int(run[tokens]))
            for run in runs
            if run.get(joules) and run[tokens]
        ]
    except ValueError:
        return None
    counted = sum(count for _, count in pairs)
    return sum(each for each, _ in pairs) / counted if counted > 0 else None


def _steps(run: dict) -> int:
    """Tokens after a first one: each sequence and each turn of a run has a first one."""
    if run["decode_s"] and run["decode_tok_s"]:
        return round(float(run["decode_s"]) * float(run["decode_tok_s"]))
    return int(run["generated_tokens"]) - 1


def optional_work(record: Record) -> dict:
    """What one token adds, and the least work of each phase.

    What the engine measured goes before what the shapes say. A model whose config says it in
    another way has no figures of the shapes, and all its measured ones.
    """
    measured = {name: record.number("engine", name) for name in HELD}
    counted = {}
    for count in (of_the_caches, of_the_work):
        with suppress(
            UserError, KeyError, TypeError, ValueError, ZeroDivisionError, AttributeError
        ):
            counted |= count(record, measured["kv_bytes_per_token"])
    said = {name: value for name, value in measured.items() if value is not None}
    work = dict.fromkeys(WORK) | counted | said
    known = {
        name: work[name] for name in SUMMARY.numbers if isinstance(work.get(name), int | float)
    }
    return work | {name: value if 0 <= value <= LARGEST else None for name, value in known.items()}


def of_the_caches(record: Record, measured: float | None) -> dict:
    """What one token adds by the model's shapes, and why the engine measured something else.

    measured: the bytes of one token's keys and values, if the engine says them. Raises whatever a
    config causes, as of_the_work does.
    """
    kv_cache, dtype = record.items("request")["kv_cache"], record.text("engine", "dtype")
    config = config_of(record.values)
    if config is None:
        return {}
    formula = kv_bytes_per_token(config, dtype)
    found = {"kv_bytes_from_shapes": formula}
    if keeps_all(kv_cache):
        found["kv_bytes_per_token"] = kv_bytes(config, dtype)
    if layers := record.text("engine", "kv_layers"):
        found["kv_difference"] = difference(config, dtype, kv_cache, layers, measured, formula)
    return found


def of_the_work(record: Record, measured: float | None) -> dict:
    """The least work of each phase, from the model's shapes and what its caches hold; none of a
    workload, whose tokens are not those of one prompt.
    """
    request, dtype = record.items("request"), record.text("engine", "dtype")
    config = config_of(record.values)
    live = (record.text("engine", "method") or "live") == "live"
    if config is None or not live or not (keeps_all(request["kv_cache"]) or measured):
        return {}
    if workload_of(record):
        return {}
    shapes = counted_shapes(config, dtype)
    if shapes is None:
        return {}
    tokens, generated = request["prompt"]["tokens"], request["protocol"]["generate"]
    chunk = request["options"].get("prefill_chunk", "whole")
    chunk = tokens if chunk == "whole" else int(chunk)
    fused = (record.text("engine", "attention") or "naive") != "naive"
    held = measured or kv_bytes_per_token(config, dtype)
    found = {"prefill_flops": prefill_flops(shapes, tokens, chunk, fused)}
    if not _packed(request):
        found["decode_bytes"] = round(decode_bytes(shapes, tokens, generated, held))
    return found


def _packed(request: dict) -> bool:
    """Whether an engine reads a file's quantised weights as they are, which the shapes do not
    tell; MLX makes floats of them.
    """
    return request.get("engine", "mlx") != "mlx" and str(request["model"].get("file")).endswith(
        ".gguf"
    )
