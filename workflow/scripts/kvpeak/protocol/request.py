"""The runner's request: what docs/protocol.md says that it holds, checked as far as the runner
needs it.
"""

import json
from dataclasses import dataclass
from pathlib import Path

from kvpeak.base.axes import AXES, is_name
from kvpeak.base.errors import UserError
from kvpeak.base.untrusted import json_value
from kvpeak.protocol.programs import PROGRAMS


@dataclass(frozen=True)
class Limits:
    """When the runner stops an engine. timeout_s: seconds after its start, None for never.
    guard_fraction: of the memory available at the start. grace_s: from TERM to KILL."""

    timeout_s: float | None = None
    guard_fraction: float = 0.8
    grace_s: float = 5.0


def load_request(text: str) -> dict:
    """The request of a JSON text, or of the file named after an @. Raises UserError."""
    try:
        if text.startswith("@"):
            text = Path(text[1:]).read_text(encoding="utf-8")
        request = json_value(text)
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"request: {error}; expected a JSON object or @FILE") from None
    _check(isinstance(request, dict), "", request, "a JSON object")
    for key in ("cell", "model", "prompt", "protocol"):
        _check(isinstance(request.get(key), dict), key, request.get(key), "an object")
    for key in AXES:
        name = request["cell"].get(key)
        _check(is_name(name), f"cell.{key}", name, "a name of letters, digits and . _ -")
    _check_whole(request, "cell", "round", 1)
    _check_whole(request, "protocol", "warmup", 0)
    _check_whole(request, "protocol", "recorded", 1)
    for section, key in (("model", "folder"), ("prompt", "path")):
        _check(isinstance(request[section].get(key), str), f"{section}.{key}", None, "a path")
    engine = request.get("engine")
    _check(
        isinstance(engine, str) and engine in (*PROGRAMS, "command"),
        "engine",
        engine,
        f"one of {', '.join((*PROGRAMS, 'command'))}",
    )
    python = request.get("python", "")
    _check(isinstance(python, str), "python", python, "the path of an interpreter")
    gpu = request.get("gpu")
    _check(gpu is None or (type(gpu) is int and gpu >= 0), "gpu", gpu, "a GPU's number, from 0")
    limits_of(request)
    return request


def cell_path(request: dict) -> str:
    """The cell's path below results/cells/: the six names and rN."""
    cell = request["cell"]
    return "/".join([*(cell[key] for key in AXES), f"r{cell['round']}"])


def limits_of(request: dict) -> Limits:
    """The request's limits. Raises UserError for an unknown or wrong one."""
    given = request.get("limits", {})
    _check(isinstance(given, dict), "limits", given, "an object")
    for key, value in given.items():
        _check(
            key in Limits.__annotations__,
            f"limits.{key}",
            value,
            "one of " + ", ".join(Limits.__annotations__),
        )
        number = type(value) in (int, float) and 0 < value < 1e9
        _check(
            number or (value is None and key == "timeout_s"),
            f"limits.{key}",
            value,
            "a number above 0",
        )
    return Limits(**given)


def _check_whole(request: dict, section: str, key: str, least: int) -> None:
    value = request[section].get(key)
    fits = type(value) is int and value >= least
    _check(fits, f"{section}.{key}", value, f"a whole number from {least}")


def _check(fits: object, key: str, value: object, expected: str) -> None:
    if not fits:
        raise UserError(f"request: {key}: {json.dumps(value)[:80]}; expected {expected}")
