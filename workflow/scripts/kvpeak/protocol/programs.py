"""Which program each engine of docs/protocol.md is."""

import sys
from pathlib import Path

from kvpeak.protocol import command

SCRIPTS = Path(__file__).resolve().parents[2]

PROGRAMS = {"mlx": "mlx_engine.py", "candle-replay": "candle_replay.py"}


def engine_argv(request: dict, request_file: Path) -> list[str]:
    """The command that starts the request's engine, in the request's `python` or else in this one.

    Raises UserError if an external program is not the one that was built.
    """
    if request["engine"] == "command":
        command.verify(request)
        return command.command_of(request, request_file.parent)
    program = SCRIPTS / PROGRAMS[request["engine"]]
    return [request.get("python", sys.executable), str(program), str(request_file)]
