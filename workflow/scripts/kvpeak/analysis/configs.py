"""The config of the model that a process measured.

What lies in models/ and config/ may have been changed since, or been handed over. So a file counts
only if the process's record says that it is the one: by its hash, or by that of model.json, which
has its hash.
"""

import hashlib
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

from kvpeak.base.errors import UserError
from kvpeak.base.files import inside
from kvpeak.base.layout import MODEL_RECORD, MODELS
from kvpeak.base.roots import check_in_project
from kvpeak.base.untrusted import MOST_JSON, read_bytes, read_object

CONFIG = "config.json"


@dataclass(frozen=True)
class Stored:
    """A JSON file: its SHA-256, '' if it cannot be read; its object, None if it is damaged."""

    sha256: str
    values: dict | None


@dataclass
class Configs:
    """What was measured, the model's own config.json before the one that the matrix names; and the
    paths of those that are here, but are not what was measured, and are missed.
    """

    found: list[dict] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)

    def add(self, path: str, stored: Stored | None, measured: bool) -> None:
        """Take a file that is here, if it is what was measured."""
        if stored and not measured:
            self.left_out.append(path)
        elif stored and stored.values is not None:
            self.found.append(stored.values)


def configs_of(record: dict) -> Configs:
    """The configs of the model that a cell.json is about, as far as they are here."""
    configs = Configs()
    with suppress(AttributeError, KeyError, TypeError, ValueError):
        model = record["request"]["model"]
        folder, named = model["folder"], model.get("config")
        own_sha256, named_sha256 = _hashes(folder, record.get("inputs") or {})
        own = _of_model(folder, CONFIG)
        configs.add(str(Path(folder, CONFIG)), own, own is not None and own.sha256 == own_sha256)
        if stored := _of_project(named) if named else None:
            # Nobody can tell of an older record whose model is not here.
            measured = named_sha256 in (None, stored.sha256)
            if measured or not configs.found:
                configs.add(named, _quantised(stored, model), measured)
    return configs


def config_of(record: dict) -> dict | None:
    """The first of them, None if there is none."""
    found = configs_of(record).found
    return found[0] if found else None


def _quantised(stored: Stored, model: dict) -> Stored:
    """A config that the matrix names, with what it does not say: that the weights are quantised."""
    if stored.values is None or not model.get("quantize"):
        return stored
    return replace(stored, values=stored.values | {"quantization": {"how": model["quantize"]}})


def _hashes(folder: str, inputs: dict) -> tuple[str | None, str | None]:
    """The SHA-256 of the model's own config.json, and of the config that the matrix names; None
    each where it is not known. An older record has only that of model.json, which has both.
    """
    if "shapes_sha256" in inputs:
        return inputs["shapes_sha256"], inputs.get("config_sha256")
    made = _of_model(folder, MODEL_RECORD)
    if made is None or made.values is None or made.sha256 != inputs.get("model_sha256"):
        return None, None
    own = (made.values.get("files") or {}).get(CONFIG) or {}
    return own.get("sha256"), made.values.get("config_sha256")


def _of_model(folder: str, name: str) -> Stored | None:
    """A file of a model's folder; None if it is not there, or not below models/."""
    try:
        return _read(inside(MODELS, Path(folder, name).relative_to(MODELS)))
    except (OSError, UserError, ValueError):
        return None


def _of_project(path: str) -> Stored | None:
    """A file of this project; None if it is not there, or leads out of it."""
    try:
        check_in_project(path)
        return _read(Path(path))
    except (OSError, UserError, ValueError):
        return None


def _read(path: Path) -> Stored:
    """A file, read again only if it has changed. Raises OSError if it is not there."""
    found = path.stat()
    return _read_once(
        path, found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns
    )


@cache
def _read_once(path: Path, *_state: int) -> Stored:
    sha256, values = "", None
    with suppress(OSError, UserError):
        sha256 = hashlib.sha256(read_bytes(path, MOST_JSON)).hexdigest()
        values = read_object(path)
    return Stored(sha256, values)
