"""Which program each engine of docs/protocol.md is."""

import sys
from pathlib import Path

from kvpeak.protocol.command import command_of

SCRIPTS = Path(__file__).resolve().parents[2]
PROGRAMS = {
    "mlx": "mlx_engine.py",
    "mistralrs": "mistralrs_engine.py",
    "candle-replay": "candle_replay.py",
}
COMMAND = "command"  # any external program
PROBE = "probe"  # of the instruments' check; no engine of a matrix


def engine_argv(request: dict, request_file: Path, out: Path) -> list[str]:
    """The command that starts the request's engine, in the request's `python` or else in this one.

    `out` is the folder that an external program writes into.
    """
    if request["engine"] == COMMAND:
        return command_of(request, out)
    program = SCRIPTS / {**PROGRAMS, PROBE: "probe.py"}[request["engine"]]
    return [request.get("python", sys.executable), str(program), str(request_file)]
