"""A policy of one's own: the example of docs/pools.md, one file, replayed, live and on the page."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from test_mlx_engine import ON_CPU, Engine

from kvpeak.base.errors import UserError
from kvpeak.pools import library

ROOT = Path(__file__).parents[1]
TRACE = ROOT / "tests/data/torch/plain-1.pickle.xz"


@pytest.fixture(scope="module")
def policies(tmp_path_factory) -> Path:
    """A folder with the header that the document shows, and nothing else."""
    (example,) = re.findall(r"```cpp\n(.*?)```", (ROOT / "docs/pools.md").read_text(), re.DOTALL)
    folder = tmp_path_factory.mktemp("policies")
    (folder / "doubling.h").write_text(example)
    return folder


def test_it_is_replayed_and_on_the_page(policies, tmp_path):
    environment = os.environ | {"KVPEAK_POLICIES": str(policies)}
    command = [sys.executable, ROOT / "workflow/scripts/pools.py"]
    done = subprocess.run(
        [*command, TRACE, "--search", "--out", tmp_path],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "doubling" in done.stdout
    page = (tmp_path / "index.html").read_text()
    assert all(f"doubling{more}" in page for more in ("", ",slack:1", ",slack:2", ",slack:4"))
    listed = subprocess.run(
        [*command, "--policies"], env=environment, capture_output=True, text=True, check=True
    )
    assert "powers of two above 1 MiB" in listed.stdout


@pytest.mark.slow
def test_a_name_that_another_policy_has_is_an_error_and_not_that_one(policies, tmp_path):
    text = (policies / "doubling.h").read_text().replace('"doubling"', '"exact"')
    (tmp_path / "mine.h").write_text(text)
    done = subprocess.run(
        [sys.executable, ROOT / "workflow/scripts/pools.py", TRACE, "--policy", "exact"],
        env=os.environ | {"KVPEAK_POLICIES": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "exact: two policies have this name; rename the one that was added" in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.skipif(not ON_CPU, reason="the tiny cell is a CPU's")
def test_it_runs_live(policies, tmp_path, monkeypatch):
    monkeypatch.setenv("KVPEAK_POLICIES", str(policies))
    engine = Engine(tmp_path)
    events = engine.events(options={"pool": "doubling,slack:4"})
    assert events["started"]["pool"]["setting"] == "doubling,slack:4"
    assert events["done"]["peak_pool_mib"] > 0


@pytest.mark.parametrize("given", ["nowhere", "two:folders", "empty"])
def test_a_folder_without_a_policy_is_one_line(tmp_path, monkeypatch, given):
    (tmp_path / "empty").mkdir()
    monkeypatch.setenv("KVPEAK_POLICIES", str(tmp_path / given))
    with pytest.raises(UserError, match=r"KVPEAK_POLICIES: .*expected one folder, with a policy"):
        library.policies()
