"""The table of releases: what an index says of them, and what is documented."""

import re
from pathlib import Path

import pytest

from kvpeak.base.errors import UserError
from kvpeak.commands.release_table import document, first_files
from kvpeak.environments.releases import mlx_lm_of_its_time, releases
from kvpeak.environments.resolve import Resolution

ROOT = Path(__file__).parents[1]


def file(name: str, at: str, **more) -> dict:
    return {"filename": name, "upload-time": f"{at}T00:00:00Z"} | more


def test_a_release_was_published_with_its_first_file():
    page = {
        "files": [
            file("mlx_lm-0.26.0-py3-none-any.whl", "2025-07-09"),
            file("mlx_lm-0.26.0.tar.gz", "2025-07-08"),
            file("mlx_lm-0.27.0rc1-py3-none-any.whl", "2025-07-10"),
            file("mlx_lm-0.27.0-py3-none-any.whl", "2025-08-01", yanked=True),
        ]
    }
    assert first_files(page, "mlx-lm") == {"0.26.0": "2025-07-08T00:00:00Z"}


def test_an_index_without_times_is_refused():
    with pytest.raises(UserError, match="does not say when files were published"):
        first_files({"files": [{"filename": "mlx-0.1.0-py3-none-any.whl"}]}, "mlx")


def test_the_documented_table_has_every_release_with_the_mlx_lm_of_its_time():
    text = (ROOT / "docs/releases.md").read_text()
    rows = re.findall(r"^\| (0\.\d+\.\d+) \| ([\d-]+) \| (\S+) \|", text, re.MULTILINE)
    assert rows == [
        (each.version, each.published[:10], mlx_lm_of_its_time(each.version))
        for each in releases("mlx")
    ]


def test_a_release_that_does_not_resolve_is_named_with_its_reason():
    version = releases("mlx")[0].version
    found = {version: Resolution("k", {"mlx": version}, "", None, "", "no wheel for this Python")}
    text = document(found, {f"mlx-{version}": {"stock": "oom"}})
    assert f"- {version}: no wheel for this Python" in text
    assert re.search(rf"^\| {re.escape(version)} .* unavailable .* oom \|$", text, re.MULTILINE)
