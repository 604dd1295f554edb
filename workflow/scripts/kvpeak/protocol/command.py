"""External engines: their command line, and their output as the runs of docs/protocol.md.

An external engine is any program that measures itself and writes a table. Its entry in the matrix says how to start
it (`run`, a list of arguments with named placeholders; never a shell) and what its columns are called (`output`).
"""

import csv
import hashlib
import json
import math
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from kvpeak.base.errors import UserError

# What a placeholder stands for; paths are absolute, because the program runs in its own checkout.
PLACEHOLDERS = (
    "model", "model_folder", "prompt", "prompt_file", "prompt_tokens", "kv_cache", "cap", "variant",
    "out", "warmup", "recorded", "generate", "seed",
)  # fmt: skip
UNITS = {
    "s": 1.0, "ms": 1e-3, "us": 1e-6, "tok/s": 1.0, "tokens": 1.0,
    "bytes": 2.0**-20, "KiB": 2.0**-10, "MiB": 1.0, "GiB": 2.0**10,
}  # fmt: skip
COUNTS = ("prompt_tokens", "generated_tokens")
NUMBERS = (
    *COUNTS, "prefill_s", "prefill_tok_s", "ttft_s", "decode_s", "decode_tok_s", "peak_active_mib",
    "peak_pool_mib",
)  # fmt: skip
TEXTS = ("tokens_sha256", "warmup")


class Table:
    """What stands in for an engine's events: its table, read when it has ended.

    The program's own output says nothing to the runner, so there is one phase, `run`.
    """

    def __init__(self, request: dict, out: Path):
        """`out` is the folder that {out} names."""
        self.phase = "run"
        self.runs: list[dict] = []
        self._request, self._out = request, out
        self.events: list[dict] = [started(request)]

    def first(self, name: str) -> dict:
        """The first event of that name, {} if there is none."""
        return next((event for event in self.events if event["event"] == name), {})

    def feed(self, _data: bytes, _t_s: float) -> Iterator[None]:
        """Nothing the program prints is an event."""
        return iter(())

    def answer(self) -> tuple[str, None]:
        """('ok', None) if the table is as the matrix says. Raises UserError."""
        self.runs = read_runs(self._request, self._out)
        self.events += self.runs
        return "ok", None


def engine_record(request: dict) -> dict:
    """The engine.json of the request's build."""
    file = Path(request["external"]["folder"]).parent / "engine.json"
    return json.loads(file.read_text(encoding="utf-8"))


def started(request: dict) -> dict:
    """What is known of the program before it runs, as a `started` event of docs/protocol.md."""
    record = engine_record(request)
    name = Path(record["program"]).name
    versions = {name: record["revision"][:12], **record["toolchain"]}
    return {"event": "started", "versions": versions, "device": {}, "cap_bytes": None}


def verify(request: dict) -> None:
    """Raise UserError if the program is not the one that was built."""
    program, record = Path(request["external"]["program"]), engine_record(request)
    folder = Path(request["external"]["folder"]).parent
    try:
        with program.open("rb") as file:
            same = hashlib.file_digest(file, "sha256").hexdigest() == record["program_sha256"]
    except OSError as error:
        raise UserError(f"{program}: {error.strerror}; build it again: delete {folder}") from None
    if not same:
        raise UserError(
            f"{program}: is not the program that was built; build it again: delete {folder}"
        )


def missing_programs(programs: list[str]) -> list[str]:
    """The programs that are not on the PATH."""
    return [name for name in programs if shutil.which(name) is None]


def placeholders(argument: str) -> list[str]:
    """The names in braces inside an argument; {{ and }} stand for braces."""
    return re.findall(r"\{([^{}]*)\}", argument.replace("{{", "").replace("}}", ""))


def fill(argument: str, values: dict[str, str]) -> str:
    """Put the values into an argument's placeholders; a value is never read as a placeholder itself."""

    def replace(found: re.Match) -> str:
        return {"{{": "{", "}}": "}"}.get(found[0]) or str(values[found[1]])

    return re.sub(r"\{\{|\}\}|\{([^{}]*)\}", replace, argument)


def values_of(request: dict, out: Path) -> dict[str, str]:
    """What each placeholder stands for in a request whose output belongs into the folder `out`."""
    cell, protocol = request["cell"], request["protocol"]
    return {
        **{name: cell[name] for name in ("model", "prompt", "kv_cache", "cap", "variant")},
        "model_folder": str(Path(request["model"]["folder"]).resolve()),
        "prompt_file": str(Path(request["prompt"]["path"]).resolve()),
        "prompt_tokens": request["prompt"]["tokens"],
        "out": str(out.resolve()),
        **{name: protocol[name] for name in ("warmup", "recorded", "generate", "seed")},
    }


def command_of(request: dict, out: Path) -> list[str]:
    """The program's command; the program itself is the one the build recorded."""
    values = values_of(request, out)
    external = request["external"]
    program = str(Path(external["program"]).resolve())
    return [program, *(fill(argument, values) for argument in external["run"][1:])]


def read_runs(request: dict, out: Path) -> list[dict]:
    """The runs in the program's output, as `run` events of docs/protocol.md. Raises UserError."""
    output = request["external"]["output"]
    file = Path(fill(output["file"], values_of(request, out)))
    rows = read_rows(file, output["format"])
    runs = [read_run(row, output["columns"], file, number) for number, row in enumerate(rows, 1)]
    protocol = request["protocol"]
    if "warmup" not in output["columns"] and len(runs) == protocol["warmup"] + protocol["recorded"]:
        for run in runs[: protocol["warmup"]]:
            run["warmup"] = True
    recorded = sum(not run["warmup"] for run in runs)
    if recorded != protocol["recorded"]:
        raise UserError(f"{file}: {recorded} recorded runs; expected {protocol['recorded']}")
    return [{"event": "run", "run": number} | run for number, run in enumerate(runs)]


def read_rows(file: Path, form: str) -> list[dict]:
    """The rows of a CSV file, or the objects of a JSON list (or of JSON lines). Raises UserError."""
    try:
        text = file.read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(f"{file}: the engine wrote no such file ({error.strerror})") from None
    except UnicodeDecodeError:
        raise UserError(f"{file}: expected UTF-8 text") from None
    if form == "csv":
        return list(csv.DictReader(text.splitlines()))
    try:
        rows = json.loads(text)
    except ValueError:
        try:
            rows = [json.loads(line) for line in text.splitlines() if line.strip()]
        except ValueError as error:
            raise UserError(f"{file}: expected JSON: {error}") from None
    rows = rows if isinstance(rows, list) else [rows]
    if not all(isinstance(row, dict) for row in rows):
        raise UserError(f"{file}: expected a JSON object for each run")
    return rows


def read_run(row: dict, columns: dict, file: Path, number: int) -> dict:
    """One row in this project's columns and units; durations and rates fill each other in."""
    where = f"{file}: row {number}"
    run = {name: None for name in (*NUMBERS, "tokens_sha256")} | {"warmup": False}
    for name, column in columns.items():
        column = {"name": column} if isinstance(column, str) else column
        if column["name"] not in row:
            raise UserError(
                f"{where}: column {column['name']} (output.columns.{name}) is not there; "
                f"found {', '.join(map(str, row)) or 'none'}"
            )
        value = row[column["name"]]
        if name == "tokens_sha256":
            run[name] = str(value)
        elif name == "warmup":
            run[name] = str(value).strip().lower() in ("1", "true", "yes", "warmup", "warm-up")
        else:
            unit = UNITS[column.get("unit", default_unit(name))]
            run[name] = parse_number(value, f"{where}, column {column['name']}") * unit
            if name in COUNTS:
                run[name] = round(run[name])
    fill_in(run)
    return run


def default_unit(name: str) -> str:
    """The unit of this project's column."""
    endings = {"_tok_s": "tok/s", "_mib": "MiB", "_tokens": "tokens", "_s": "s"}
    return next(unit for ending, unit in endings.items() if name.endswith(ending))


def parse_number(value, where: str) -> float:
    """A finite number ≥ 0. Raises UserError."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if isinstance(value, bool) or not math.isfinite(number) or number < 0:
        raise UserError(f"{where}: {json.dumps(value)[:60]}: expected a number ≥ 0")
    return number


def fill_in(run: dict) -> None:
    """Duration = tokens / rate, where only the rate is known."""
    rates = {"prefill": run["prompt_tokens"], "decode": (run["generated_tokens"] or 0) - 1}
    for phase, tokens in rates.items():
        rate = run.pop(f"{phase}_tok_s")
        if run[f"{phase}_s"] is None and rate and tokens and tokens > 0:
            run[f"{phase}_s"] = tokens / rate
