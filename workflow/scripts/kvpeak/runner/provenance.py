"""Which harness measured, on which inputs."""

from pathlib import Path

from kvpeak.base.errors import UserError
from kvpeak.base.files import sha256_of
from kvpeak.base.layout import MODEL_RECORD
from kvpeak.base.made import BY_HAND, is_own_model, why_not_made
from kvpeak.base.model_config import quantization
from kvpeak.base.text import brief
from kvpeak.base.untrusted import read_object
from kvpeak.base.version import VERSION
from kvpeak.system.git import GitError, git

PROJECT = Path(__file__).resolve().parents[4]
CONFIG = "config.json"
QUANT_CONFIG = "hf_quant_config.json"  # where NVIDIA's tools say it, and mlx-lm reads it
SAID = ("quant_method", "mode", "bits", "group_size")


def harness() -> dict:
    """Version, git revision and whether workflow/ differs from it; null outside a git repository.

    Edits elsewhere do not count: what the cell was asked is in its request.
    """
    revision = _git("rev-parse", "HEAD")
    changed = _git("status", "--porcelain", "--", "workflow")
    return {
        "version": VERSION,
        "revision": revision,
        "dirty": None if revision is None or changed is None else bool(changed),
    }


def inputs(request: dict) -> dict:
    """SHA-256 of the model's model.json (it lists the hashes of the model's files), of its
    config.json, of the config that the matrix names, and of the prompt's file; where the model
    comes from, and how its weights are quantised. Null for what is not there.
    """
    model = request["model"]
    folder, config = Path(model["folder"]), model.get("config")
    return {
        "model_sha256": _sha256(folder / MODEL_RECORD),
        "shapes_sha256": _sha256(folder / CONFIG),
        "config_sha256": _sha256(Path(config)) if config else None,
        "model_source": _source(folder / MODEL_RECORD),
        "model_quantization": _quantization(folder, model.get("weights")),
        "prompt_sha256": _sha256(Path(request["prompt"]["path"])),
    }


def _source(record: Path) -> str | None:
    """What model.json says of it, if that was written here; else nobody here knows more of the
    model than if it was put there by hand.
    """
    if not record.is_file() or why_not_made(record):
        return None
    return read_object(record).get("source") if is_own_model(record) else BY_HAND


def _quantization(folder: Path, weights: str | None) -> dict | None:
    """What the model's own files say of it, without what they say of single layers. Random weights
    follow mlx-lm's own key alone.
    """
    try:
        config = read_object(folder / CONFIG)
        if weights == "random":
            found = config.get("quantization")
        elif not (found := quantization(config)) and (folder / QUANT_CONFIG).is_file():
            found = read_object(folder / QUANT_CONFIG)
    except (FileNotFoundError, UserError):
        return None
    if not isinstance(found, dict) or not found:
        return None
    return brief({key: found[key] for key in SAID if isinstance(found.get(key), int | str)})


def _sha256(file: Path) -> str | None:
    return sha256_of(file) if file.is_file() else None


def _git(*arguments: str) -> str | None:
    try:
        return git(*arguments, folder=PROJECT)
    except GitError:
        return None
