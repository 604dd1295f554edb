"""One cell in one round: its engine is started, watched and recorded, or it is skipped."""

import contextlib
from collections.abc import Callable
from pathlib import Path

from kvpeak.base.errors import UserError
from kvpeak.base.files import unlinked, write_together
from kvpeak.base.layout import RUNS_FILE
from kvpeak.base.made import FAILED
from kvpeak.base.program import UNFORESEEN, shows_all, unforeseen
from kvpeak.protocol.request import cell_path
from kvpeak.runner.attempt import Attempt, Stopped, attempt_name
from kvpeak.runner.held import Held
from kvpeak.runner.launch import run_engine
from kvpeak.runner.outcome import conclude
from kvpeak.runner.progress import Progress
from kvpeak.runner.record import Before, record_of, record_of_unmeasured, result_texts
from kvpeak.runner.timeline import Timeline
from kvpeak.system.lock import measuring_alone


class CellFailed(UserError):
    """A cell's engine gave no outcome.

    cause: in one line. log: the folder of the start, if there was one. recorded: whether it may be
    written as the cell's result; not if somebody asked the runner to stop, and not if the folder of
    the result is no longer the runner's.
    """

    def __init__(self, text: str, cause: str, log: Path | None, recorded: bool):
        super().__init__(text)
        self.cause, self.log, self.recorded = cause, log, recorded


def run_cell(
    request: dict,
    out: Path,
    position: str | None = None,
    check: Callable[[], None] = lambda: None,
    gpus: int = 0,
) -> str:
    """Measure one cell, write its files into `out` and into the folder of this start; return its
    outcome.

    `position` ("k/n") is for the progress lines; `check` is called all the time and may raise
    UserError to stop. With `gpus` the cell shares the machine and has for itself one of that many
    GPUs, unless its request names one; with 0 it has the machine for itself. Raises UserError, one
    line that names the cell, the cause and the log, if there is no outcome; then what was in `out`
    stays as it was.
    """
    cell = cell_path(request)
    results = _results_folder(out, cell)
    logs = unlinked(results, Path("logs", cell))
    attempt, result, stopped = None, None, False
    progress = Progress(cell, position)
    try:
        named = [request["gpu"]] if "gpu" in request else range(gpus)
        with measuring_alone(cell, named, progress.say, check) as gpu:
            if gpu is not None:
                request = request | {"gpu": gpu}
            attempt = Attempt(request, logs / attempt_name(), progress, check)
            out.mkdir(parents=True, exist_ok=True)
            result = Held(out)
            attempt.begin()
            return _measure(attempt, result, position)
    except OSError as error:
        cause = f"{error.filename or (attempt and attempt.folder)}: {error.strerror}"
    except UserError as error:
        cause = str(error)
        stopped = isinstance(error, Stopped)
    except UNFORESEEN as error:  # else the other cells would not be measured either
        if shows_all():
            raise
        cause = unforeseen(error)
    with contextlib.suppress(OSError):
        progress.failed(cause)
    log = f"; log: {attempt.folder}" if attempt else ""
    kept = sorted(logs.glob(f"*/{RUNS_FILE}"), key=lambda file: file.stat().st_mtime)
    last = f"; its last result is kept in {kept[-1].parent}" if kept else ""
    where = attempt and attempt.folder
    recorded = not stopped and (result is None or result.is_there())
    raise CellFailed(f"{cell}: {cause}{log}{last}", cause, where, recorded)


def leave_unmeasured(
    request: dict,
    out: Path,
    position: str | None,
    outcome: str,
    why: str,
    log: Path | None = None,
) -> None:
    """Write the result of a cell that is not measured, or that failed at `log`: no runs. Raises
    UserError.
    """
    cell = cell_path(request)
    _results_folder(out, cell)
    record = record_of_unmeasured(request, outcome, why, log)
    try:
        write_together(out, result_texts(record, Timeline(), [], position))
    except OSError as error:
        raise UserError(f"{cell}: {error.filename or out}: {error.strerror}") from None
    if outcome != FAILED or not log:  # else the program says what the start at `log` failed of
        Progress(cell, position).say(f"{outcome}: {why}")


def _measure(attempt: Attempt, result: Held, position: str | None) -> str:
    before = Before(attempt.request, attempt.gpu)
    ended = run_engine(attempt, before.machine["available_mib"])
    attempt.check_folders()
    result.check()
    outcome, detail = conclude(ended, attempt.messages)
    record = record_of(attempt, before, ended, outcome, detail)
    runs = ended.watched.conversation.runs
    texts = result_texts(record, ended.watched.timeline, runs, position)
    write_together(attempt.folder, texts)  # stays when the cell is measured again
    write_together(result.folder, texts)
    attempt.progress.end(outcome, ended.watched, record["memory"]["peak_footprint_mib"])
    return outcome


def _results_folder(out: Path, cell: str) -> Path:
    """The folder above cells/ of `out`. Raises UserError if `out` is not the cell's folder, or if a
    link is in its path.
    """
    parts = ("cells", *cell.split("/"))
    if out.parts[-len(parts) :] != parts:
        raise UserError(f"--out: {out}; expected a path that ends with {'/'.join(parts)}")
    results = out.parents[len(parts) - 1]
    unlinked(results, Path(*parts))
    return results
