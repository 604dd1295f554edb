"""How an external engine is started: a list of arguments with named placeholders; never a shell."""

import re
from pathlib import Path

from kvpeak.base.axes import AXES

# What a placeholder stands for; paths are absolute, because the program runs in its own checkout.
PLACEHOLDERS = (
    *("model", "model_folder", "prompt", "prompt_file", "prompt_tokens", "kv_cache", "cap"),
    *("variant", "out", "warmup", "recorded", "generate", "seed"),
)


def placeholders(argument: str) -> list[str]:
    """The names in braces inside an argument; {{ and }} stand for braces."""
    return re.findall(r"\{([^{}]*)\}", argument.replace("{{", "").replace("}}", ""))


def fill(argument: str, values: dict[str, str]) -> str:
    """Put the values into an argument's placeholders; a value is never read as a placeholder
    itself.
    """

    def replace(found: re.Match) -> str:
        return {"{{": "{", "}}": "}"}.get(found[0]) or str(values[found[1]])

    return re.sub(r"\{\{|\}\}|\{([^{}]*)\}", replace, argument)


def values_of(request: dict, out: Path) -> dict[str, str]:
    """What each placeholder stands for in a request whose output belongs into the folder `out`."""
    cell, protocol = request["cell"], request["protocol"]
    return {
        **{name: cell[name] for name in AXES if name != "commit"},
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
