"""Which Candle is inside each release of mistral.rs: candle.csv, and how it is known."""

import csv
from dataclasses import dataclass
from pathlib import Path

TABLE = Path(__file__).with_name("candle.csv")


@dataclass(frozen=True)
class Release:
    """version: of mistralrs on PyPI. candle: Candle's version, '' where its lock file is not
    published. revision: seven digits of the commit of huggingface/candle. known_from: Cargo.lock,
    or the wheel.
    """

    version: str
    candle: str
    revision: str
    known_from: str

    @property
    def words(self) -> str:
        """Candle's version and commit, for a table."""
        return f"{self.candle or 'unreleased'} at {self.revision}"


def releases() -> list[Release]:
    """Every release in the table, the newest first."""
    with TABLE.open(encoding="utf-8", newline="") as file:
        return [Release(**row) for row in csv.DictReader(file)]


def candle_inside(version: str) -> Release | None:
    """The release's row, None for one that the table does not have."""
    return next((release for release in releases() if release.version == version), None)
