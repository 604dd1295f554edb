"""The entries of commits and models in matrix.yaml: what the schema cannot check, and the
defaults.
"""

import re
from pathlib import Path

from kvpeak.experiment.config_file import ConfigError, did_you_mean, shown
from kvpeak.experiment.engines import COMMAND, commit_keys
from kvpeak.experiment.schema import defaults
from kvpeak.protocol import command

_KIND_KEYS = {
    "hub": ("repository", "revision"),
    "package": ("package", "version", "file", "sha256"),
    "random": ("config",),
}
_OPTIONAL_KEYS = {"hub": ("files",), "package": (), "random": ()}
_ANY_KIND = ("kind", "weights", "dtype", "seed", "config", "needs", "generate", "quantize")


def commit_entry(file, name: str, entry: dict) -> dict:
    """The entry of a commit, complete. Raises ConfigError."""
    engine, key = entry["engine"], f"commits.{name}"
    for given in entry:
        if given not in ("engine", *commit_keys(engine)):
            raise ConfigError(
                file, f"{key}.{given}", f"{shown(entry[given])}: engine {engine} has no such key"
            )
    for package, version in entry.get("packages", {}).items():
        if version.startswith("git+"):
            _check_address(file, f"{key}.packages.{package}", version.removeprefix("git+"))
    return _command_entry(file, key, entry) if engine == COMMAND else entry


def _command_entry(file, key: str, entry: dict) -> dict:
    for needed in ("repository", "revision", "run", "output"):
        if needed not in entry:
            raise ConfigError(file, key, f"key {needed} is missing; engine command needs it")
    _check_address(file, f"{key}.repository", entry["repository"])
    for number, argument in enumerate(entry["run"]):
        _check_placeholders(file, f"{key}.run[{number}]", argument)
    _check_placeholders(file, f"{key}.output.file", entry["output"]["file"])
    _check_output(file, f"{key}.output.file", entry["output"]["file"])
    if Path(entry["run"][0]).is_absolute() or ".." in Path(entry["run"][0]).parts:
        raise ConfigError(
            file,
            f"{key}.run[0]",
            f"{shown(entry['run'][0])}: expected the program's path in the checkout",
        )
    told = {word for argument in entry["run"] for word in command.placeholders(argument)}
    if "kv_cache" not in told and "kv_caches" not in entry:
        raise ConfigError(
            file,
            f"{key}.run",
            "has no {kv_cache}; add it, or say which the program has: kv_caches: [cat]",
        )
    output = defaults("commits", "*", "output") | entry["output"]
    return {**entry, "output": output}


def _check_address(file, key: str, address: str) -> None:
    """An address is published with the finding, so that it holds no secret. ssh needs its user."""
    if re.search(r"^https?://[^/]*@|://[^/@]*:[^/]*@|\?", address, re.IGNORECASE):
        raise ConfigError(
            file,
            key,
            "holds a user, a password or a question, which would be published; expected an "
            "address without, and the rest in git's own credentials",
        )


def _check_output(file, key: str, path: str) -> None:
    """The table lies in the folder that is the command's alone, so that nothing else is taken for
    it.
    """
    if not path.startswith("{out}/") or ".." in Path(path).parts:
        raise ConfigError(
            file, key, f"{shown(path)}: expected a path inside {{out}}, such as {{out}}/runs.csv"
        )


def _check_placeholders(file, key: str, argument: str) -> None:
    known = command.PLACEHOLDERS
    for name in command.placeholders(argument):
        if name not in known:
            raise ConfigError(
                file,
                key,
                f"{shown(argument)}: no placeholder {{{name}}}{did_you_mean(name, known)}; "
                f"expected one of {', '.join(known)}",
            )


def model_entry(file, name: str, entry: dict) -> dict:
    """The entry of a model, complete: `weights` and `seed` said, `dtype` None for what is stored.

    Raises ConfigError.
    """
    kind = entry["kind"]
    for key in entry:
        if key not in (*_ANY_KIND, *_KIND_KEYS[kind], *_OPTIONAL_KEYS[kind]):
            raise ConfigError(
                file,
                f"models.{name}.{key}",
                f"{shown(entry[key])}: a model of kind {kind} has no such key",
            )
    weights = entry.get("weights", "random" if kind == "random" else "real")
    if kind == "random" and weights == "real":
        raise ConfigError(
            file,
            f"models.{name}.weights",
            '"real": a model of kind random has none; expected random',
        )
    needed = ("config",) if weights == "random" and "config" in entry else _KIND_KEYS[kind]
    for key in needed:
        if key not in entry:
            raise ConfigError(file, f"models.{name}", f"key {key} is missing; kind {kind} needs it")
    return {**defaults("models", "*"), "dtype": None, **entry, "weights": weights}
