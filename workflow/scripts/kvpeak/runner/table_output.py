"""The table that an external engine writes, read as the runs of docs/protocol.md.

Its entry in the matrix says what its columns are called (`output`).
"""

import csv
import json
import math
import os
import stat
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from kvpeak.base.errors import UserError
from kvpeak.base.numbers import LARGEST
from kvpeak.base.text import plain
from kvpeak.base.untrusted import LONGEST_FIELD
from kvpeak.protocol.command import fill, values_of
from kvpeak.runner.build_record import started

UNITS = {
    **{"s": 1.0, "ms": 1e-3, "us": 1e-6, "tok/s": 1.0, "tokens": 1.0},
    **{"bytes": 2.0**-20, "KiB": 2.0**-10, "MiB": 1.0, "GiB": 2.0**10},
}
COUNTS = ("prompt_tokens", "generated_tokens")
NUMBERS = (
    *COUNTS,
    *("prefill_s", "prefill_tok_s", "ttft_s", "decode_s", "decode_tok_s"),
    *("peak_active_mib", "peak_pool_mib"),
)
TEXTS = ("tokens_sha256", "warmup")
LARGEST_FILE = 1 << 26  # bytes
MOST_ROWS = 100_000
CLOCK_SLACK_S = 2.0  # some file systems keep times to two seconds


class Table:
    """What stands in for an engine's events: its table, read when it has ended.

    The program's own output says nothing to the runner, so there is one phase, `run`.
    """

    def __init__(self, request: dict, out: Path):
        """`out` is the folder that {out} names; what was in it before now is not the program's."""
        self.phase, self.turn = "run", None
        self.runs: list[dict] = []
        self._request, self._out, self._since = request, out, time.time()
        self.events: list[dict] = [started(request)]

    def first(self, name: str) -> dict:
        """The first event of that name, {} if there is none."""
        return next((event for event in self.events if event["event"] == name), {})

    def feed(self, _data: bytes, _t_s: float) -> Iterator[None]:
        """Nothing the program prints is an event."""
        return iter(())

    def answer(self) -> tuple[str, None]:
        """('ok', None) if the table is as the matrix says. Raises UserError."""
        self.runs = read_runs(self._request, self._out, self._since)
        self.events += self.runs
        return "ok", None


def read_runs(request: dict, out: Path, since: float = 0.0) -> list[dict]:
    """The runs in the program's output, as `run` events of docs/protocol.md. Raises UserError.

    since: seconds of the clock; an older file is not this process's.
    """
    output, protocol = request["external"]["output"], request["protocol"]
    file = Path(fill(output["file"], values_of(request, out)))
    rows = _rows(read_output(file, out, since), file, output["format"])
    runs = [read_run(row, output["columns"], file, number) for number, row in enumerate(rows, 1)]
    if "warmup" not in output["columns"] and len(runs) == protocol["warmup"] + protocol["recorded"]:
        for run in runs[: protocol["warmup"]]:
            run["warmup"] = True
    recorded = sum(not run["warmup"] for run in runs)
    if recorded != protocol["recorded"]:
        raise UserError(f"{file}: {recorded} recorded runs; expected {protocol['recorded']}")
    return [{"event": "run", "run": number} | run for number, run in enumerate(runs)]


def read_output(file: Path, out: Path, since: float) -> str:
    """The text of a file that a program has written into its folder `out`. Raises UserError.

    It has to be a regular file of at most LARGEST_FILE bytes, not a link, and not older than
    `since`.
    """
    if not file.parent.resolve().is_relative_to(out.resolve()):
        raise UserError(f"{file}: is not in the cell's own folder; expected a file inside {{out}}")
    try:
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        with os.fdopen(os.open(file, flags), "rb") as opened:
            found = os.fstat(opened.fileno())
            if not stat.S_ISREG(found.st_mode):
                raise UserError(f"{file}: is not a regular file")
            if found.st_mtime < since - CLOCK_SLACK_S:
                raise UserError(f"{file}: is older than the start of the program")
            data = opened.read(LARGEST_FILE + 1)
    except OSError as error:
        link = "; it is a link" if file.is_symlink() else ""
        raise UserError(f"{file}: the engine wrote no such file ({error.strerror}{link})") from None
    if len(data) > LARGEST_FILE:
        raise UserError(f"{file}: more than {LARGEST_FILE} bytes; expected a row for each run")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise UserError(f"{file}: expected UTF-8 text") from None


def _rows(text: str, file: Path, form: str) -> list[dict]:
    """The rows of a CSV text, or the objects of a JSON list (or of JSON lines). Raises
    UserError.
    """
    try:
        csv.field_size_limit(LONGEST_FIELD)
        rows = _csv_rows(text) if form == "csv" else _json_rows(text)
    except (ValueError, RecursionError, csv.Error) as error:
        cause = plain(str(error), 200)
        raise UserError(f"{file}: expected {form.upper()}: {cause}") from None
    if not all(isinstance(row, dict) for row in rows):
        raise UserError(f"{file}: expected a JSON object for each run")
    if len(rows) > MOST_ROWS:
        raise UserError(f"{file}: {len(rows)} rows; expected one for each run")
    return rows


def _csv_rows(text: str) -> list[dict]:
    """Raises ValueError where it is not sure which column a field belongs to."""
    reader = csv.DictReader(text.splitlines())
    names = [name for name in reader.fieldnames or [] if name]
    if len({*names}) < len(names):
        raise ValueError(f"column {Counter(names).most_common(1)[0][0]} is there twice")
    rows = []
    for row in reader:
        if any(row.pop(None, ())):  # a decimal comma makes two fields of a number
            raise ValueError(f"line {reader.line_num}: more fields than columns")
        rows.append(row)
    return rows


def _json_rows(text: str) -> list:
    try:
        rows = json.loads(text)
    except ValueError:
        return [json.loads(line) for line in text.splitlines() if line.strip()]
    return rows if isinstance(rows, list) else [rows]


def read_run(row: dict, columns: dict, file: Path, number: int) -> dict:
    """One row in this project's columns and units; durations and rates fill each other in."""
    where = f"{file}: row {number}"
    run = {name: None for name in (*NUMBERS, "tokens_sha256")} | {"warmup": False}
    for name, column in columns.items():
        column = {"name": column} if isinstance(column, str) else column
        if column["name"] not in row:
            found = ", ".join(str(key) for key in row) or "none"
            raise UserError(
                f"{where}: column {column['name']} (output.columns.{name}) is not there; "
                f"found {plain(found, 300)}"
            )
        value = row[column["name"]]
        if name == "tokens_sha256":
            run[name] = plain(str(value), 100)
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
    """A number from 0 to LARGEST. Raises UserError."""
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if isinstance(value, bool) or not 0 <= number <= LARGEST:
        shown = plain(json.dumps(value, default=str), 60)
        raise UserError(f"{where}: {shown}: expected a number ≥ 0")
    return number


def fill_in(run: dict) -> None:
    """Duration = tokens / rate, where only the rate is known."""
    rates = {"prefill": run["prompt_tokens"], "decode": (run["generated_tokens"] or 0) - 1}
    for phase, tokens in rates.items():
        rate = run.pop(f"{phase}_tok_s")
        if run[f"{phase}_s"] is None and rate and tokens and tokens > 0:
            seconds = tokens / rate
            run[f"{phase}_s"] = seconds if seconds <= LARGEST else None
