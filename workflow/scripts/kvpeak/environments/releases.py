"""When each release of MLX and of mlx-lm was published: releases.csv, which
workflow/scripts/release_table.py renews.
"""

import csv
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

TABLE = Path(__file__).with_name("releases.csv")


@dataclass(frozen=True)
class Release:
    """published: UTC, ISO 8601, when its first file was there."""

    package: str
    version: str
    published: str


def numbers(version: str) -> tuple[int, ...]:
    """A version as numbers that can be compared: 0.32.4 → (0, 32, 4)."""
    return tuple(map(int, re.findall(r"\d+", version)))


@cache
def releases(package: str) -> tuple[Release, ...]:
    """The package's releases in the table, the oldest first; none of another package."""
    with TABLE.open(encoding="utf-8", newline="") as file:
        rows = [Release(**row) for row in csv.DictReader(file)]
    mine = (release for release in rows if release.package == package)
    return tuple(sorted(mine, key=lambda release: numbers(release.version)))


def successor_published(package: str, version: str) -> str | None:
    """When the release after this one came; None if this is the newest, or is not in the table."""
    known = releases(package)
    versions = [release.version for release in known]
    if version not in versions[:-1]:
        return None
    return known[versions.index(version) + 1].published


def until(packages: dict[str, str]) -> str | None:
    """The end of the time in which these versions were the newest ones: what came later is not of
    it.

    None: that time has not ended, or nothing is known of it.
    """
    ends = [
        successor_published(name, version)
        for name, version in packages.items()
        if any(release.version == version for release in releases(name))
    ]
    return max(ends) if ends and None not in ends else None


def mlx_lm_of_its_time(mlx: str) -> str | None:
    """The newest mlx-lm that was published before the MLX after this one; None: the newest of
    all.
    """
    end = successor_published("mlx", mlx)
    before = [one for one in releases("mlx-lm") if end is None or one.published < end]
    known = any(release.version == mlx for release in releases("mlx"))
    return max(before, key=lambda one: numbers(one.version)).version if known and before else None
