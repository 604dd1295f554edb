"""Which program each engine of docs/protocol.md is, and which Python runs it."""

import json
import sys
from pathlib import Path

SCRIPTS = Path(__file__).resolve().parents[1]

PROGRAMS = {"mlx": "mlx_engine.py", "candle-replay": "candle_replay.py"}


def engine_argv(request: dict, request_file: Path, results: Path) -> list[str]:
    """The command that starts the request's engine."""
    program = SCRIPTS / PROGRAMS[request["engine"]]
    return [interpreter(request, results), str(program), str(request_file)]


def interpreter(request: dict, results: Path) -> str:
    """The Python of the request; else of the commit's own environment, if make_env.py built it one
    below results/envs/; else the one that runs this."""
    folder = results / "envs" / request["cell"]["commit"]
    try:
        own = json.loads((folder / "environment.json").read_text(encoding="utf-8"))["own"]
    except FileNotFoundError:
        own = False
    return request.get("python") or (str(folder / "venv/bin/python") if own else sys.executable)
