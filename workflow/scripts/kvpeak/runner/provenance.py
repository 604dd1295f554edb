"""Which harness measured, on which inputs."""

from pathlib import Path

from kvpeak.base.files import sha256_of
from kvpeak.base.layout import MODEL_RECORD
from kvpeak.base.version import VERSION
from kvpeak.system.git import GitError, git

PROJECT = Path(__file__).resolve().parents[4]


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
    """SHA-256 of the model's model.json (it lists the hashes of the model's files) and of the
    prompt's file; null for one that is not there.
    """
    return {
        "model_sha256": _sha256(Path(request["model"]["folder"], MODEL_RECORD)),
        "prompt_sha256": _sha256(Path(request["prompt"]["path"])),
    }


def _sha256(file: Path) -> str | None:
    return sha256_of(file) if file.is_file() else None


def _git(*arguments: str) -> str | None:
    try:
        return git(*arguments, folder=PROJECT)
    except GitError:
        return None
