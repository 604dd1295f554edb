"""The request that starts a cell's engine (docs/protocol.md), made from the matrix's entries."""

import hashlib
import json

from kvpeak.base import layout
from kvpeak.base.axes import Cell
from kvpeak.base.text import plain
from kvpeak.experiment import workloads
from kvpeak.experiment.engines import PROTOCOL_OPTIONS
from kvpeak.experiment.schema import defaults
from kvpeak.system import host

_RUN_PROTOCOL = (
    *("warmup", "recorded", "generate", "ignore_eos"),
    *("repeat_penalty", "repeat_window"),
)
# What a request says of the machine and of the project's own layout, and limits that no result
# within them depends on.
_ELSEWHERE = {
    *("cell", "gpu", "python", "limits", "folder", "model.folder", "prompt.path"),
    *("external.program", "external.folder"),
}


def model_folder(commit: dict, name: str, model: dict) -> str:
    """Where the cell's model lies. A replay needs shapes only, and none of a model's weights if the
    matrix says where its config is."""
    shapes = commit["engine"] == "candle-replay" and "config" in model
    return str(layout.model_folder(name, shapes))


def request(cell: Cell, commit: dict, model: dict, prompt: dict, options: dict, protocol: dict):
    """The request of one cell: its six entries, and the protocol."""
    options = dict(options)
    env = {name: str(value) for name, value in options.pop("env", {}).items()}
    own_protocol = {key: options.pop(key) for key in PROTOCOL_OPTIONS if key in options}
    asked = {key: value for key, value in model.items() if key != "generate"}
    if commit["engine"] == "candle-replay":
        asked["weights"] = "none"
    own = host.missing_packages(commit.get("packages", {}))
    return {
        "cell": cell.as_dict(),
        "engine": commit["engine"],
        "model": {
            "name": cell.model,
            "folder": model_folder(commit, cell.model, model),
            **asked,
        },
        "prompt": {
            "name": cell.prompt,
            "tokens": prompt["tokens"],
            "path": str(layout.prompt_file(cell.model, cell.prompt)),
            **workloads.asked(prompt, model.get("generate", protocol["generate"])),
        },
        "kv_cache": cell.kv_cache,
        "cap": cell.cap,
        "options": options,
        **({"env": env} if env else {}),
        "protocol": {key: protocol[key] for key in _RUN_PROTOCOL}
        | own_protocol
        | {"generate": model.get("generate", protocol["generate"]), "seed": model["seed"]},
        "limits": {"timeout_s": protocol["timeout_s"], "guard_fraction": protocol["guard"]},
        **({"python": str(layout.environment_python(cell.commit))} if own else {}),
        **({"external": _external(cell.commit, commit)} if "run" in commit else {}),
    }


def _external(name: str, commit: dict) -> dict:
    """What the runner needs to know of a command: where it lies, its arguments and its output."""
    source = layout.engine_source(name)
    return {
        "program": str(source / commit["run"][0]),
        "folder": str(source),
        "run": commit["run"],
        "output": commit["output"],
    }


def build_entry(commit: dict) -> dict:
    """What decides how an external engine is built."""
    keys = ("repository", "revision", "build", "verify", "needs")
    return {key: commit[key] for key in keys if key in commit} | {"run": commit["run"][:1]}


def digest(asked: dict) -> str:
    """Twelve hexadecimal digits that differ when a request does."""
    return hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()[:12]


def asked_otherwise(recorded: dict, asked: dict) -> str:
    """The first thing that a recorded request asked otherwise than `asked` does, in words; '' if
    they ask the same.

    What a record of an older version does not say was the default.
    """
    options = defaults("variants", "*") | _mapping(recorded, "options")
    protocol = _mapping(recorded, "protocol")
    protocol = {key: defaults("protocol").get(key) for key in _RUN_PROTOCOL} | protocol
    then = _values(recorded | {"options": options, "protocol": protocol})
    now = _values(asked)
    for key in sorted(then.keys() | now.keys()):
        if (was := then.get(key, "nothing")) != (new := now.get(key, "nothing")):
            return f"{plain(key, 80)}: asked {plain(str(was), 80)}, and the matrix {new}"
    return ""


def _mapping(request: dict, key: str) -> dict:
    return found if isinstance(found := request.get(key), dict) else {}


def _values(asked: dict, within: str = "") -> dict[str, object]:
    """Dotted key → value of a request, without what it says of the machine and what is null."""
    found: dict[str, object] = {}
    for name, value in asked.items():
        if (key := f"{within}{name}") in _ELSEWHERE:
            continue
        if isinstance(value, dict):
            found |= _values(value, f"{key}.")
        elif value is not None:
            found[key] = value
    return found
