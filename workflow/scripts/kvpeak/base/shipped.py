"""The files that come with kvpeak: schemas, models' configurations, templates."""

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parents[1]
_CHECKOUT = _PACKAGE.parents[2]
_INSTALLED = _PACKAGE / "shipped"  # where pyproject.toml puts them in an installation


def shipped(path: str) -> Path:
    """Where a file or folder of the repository is, which installations have too.

    `path` is relative to the repository, e.g. "workflow/schemas".
    """
    installed = _INSTALLED / path
    return installed if installed.exists() else _CHECKOUT / path
