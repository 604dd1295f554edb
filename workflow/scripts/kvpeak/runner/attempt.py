"""One start of a cell's engine: what was asked, where it writes, and who may stop it."""

import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path

from kvpeak.base.errors import UserError
from kvpeak.protocol.programs import COMMAND
from kvpeak.protocol.request import Limits, limits_of
from kvpeak.runner.held import Held
from kvpeak.runner.progress import Progress
from kvpeak.system.nvml import Gpu, chosen_gpu, open_gpu


class Stopped(UserError):
    """Somebody has asked the runner to stop."""


@dataclass
class Attempt:
    """What one start of an engine carries from its beginning to its record.

    folder: of this start, with its request, its events and its messages. check: is called all the
    time and may raise UserError to stop. clock: seconds that no jump of the wall clock changes.
    """

    request: dict
    folder: Path
    progress: Progress
    check: Callable[[], None] = lambda: None
    clock: Callable[[], float] = lambda: time.monotonic()
    wall: Callable[[], float] = lambda: time.time()
    _held: list[Held] = field(default_factory=list)

    @property
    def external(self) -> bool:
        """Whether the engine is another program, which answers with a table."""
        return self.request["engine"] == COMMAND

    @property
    def request_file(self) -> Path:
        return self.folder / "request.json"

    @property
    def out(self) -> Path:
        """The folder that is an external program's alone: what {out} stands for."""
        return self.folder / "out"

    @property
    def answers(self) -> Path:
        """What the engine writes on its standard output."""
        return self.folder / ("stdout.txt" if self.external else "events.jsonl")

    @property
    def messages(self) -> Path:
        """What the engine writes on its standard error."""
        return self.folder / "stderr.txt"

    @cached_property
    def limits(self) -> Limits:
        return limits_of(self.request)

    @cached_property
    def gpu(self) -> Gpu | None:
        """The GPU that the cell gets. Raises UserError if the request names one that is not
        there.
        """
        wanted = self.request.get("gpu")
        gpu = open_gpu(chosen_gpu(wanted, os.environ.get("CUDA_VISIBLE_DEVICES")))
        if wanted is not None and gpu is None:
            raise UserError(
                f"request: gpu: {wanted}; expected none, because no NVIDIA driver answers"
            )
        return gpu

    def begin(self) -> None:
        """Make the folder and write down what is asked."""
        self.folder.mkdir(parents=True)
        self.progress.start(self.folder)
        self._held.append(Held(self.folder))
        if self.external:
            self.out.mkdir()
            self._held.append(Held(self.out))
        text = json.dumps(self.request, indent=1) + "\n"
        self.request_file.write_text(text, encoding="utf-8")

    def check_folders(self) -> None:
        """Raise UserError if something else is in the place of a folder that `begin` made."""
        for held in self._held:
            held.check()


def attempt_name() -> str:
    """The name of the folder of a start; names sort by time."""
    return f"{datetime.now(UTC):%Y%m%dT%H%M%S.%fZ}-{os.getpid()}"


def utc_now() -> str:
    """The time in UTC, ISO 8601."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
