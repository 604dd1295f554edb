"""The environments of other versions: what is resolved, from what time, and what is recorded of
it.
"""

import json
import re
import sys
from pathlib import Path

import pytest

from kvpeak.base.axes import Cell
from kvpeak.base.errors import UserError
from kvpeak.environments import build, resolve
from kvpeak.environments.releases import mlx_lm_of_its_time, numbers, releases, until
from kvpeak.environments.requirements import completed, constraints, requirement, requirements
from kvpeak.experiment.matrix import Matrix

NOT_THERE = {"mlx": "0.31.999"}


def test_the_table_names_every_release_once_in_the_order_of_their_dates():
    for package in ("mlx", "mlx-lm"):
        known = releases(package)
        assert len({release.version for release in known}) == len(known)
        assert [each.published for each in known] == sorted(each.published for each in known)


def test_versions_are_compared_as_numbers():
    assert numbers("0.9.10") > numbers("0.9.9")


def test_a_release_has_its_time_until_the_next_one():
    assert until({"mlx": "0.32.0"}) == next(
        release.published for release in releases("mlx") if release.version == "0.32.1"
    )
    newest = releases("mlx")[-1].version
    assert until({"mlx": newest}) is None
    assert until({"mlx": "0.32.0", "mlx-lm": releases("mlx-lm")[-1].version}) is None
    assert until({"mistralrs": "0.9.2"}) is None


def test_mlx_alone_gets_the_mlx_lm_of_its_time():
    assert mlx_lm_of_its_time("0.32.0") == "0.31.3"
    assert completed({"mlx": "0.26.5"}) == {"mlx": "0.26.5", "mlx-lm": "0.26.0"}
    assert completed({"mlx": "0.26.5", "mlx-lm": "0.27.0"})["mlx-lm"] == "0.27.0"
    assert completed({"mistralrs": "0.9.2"}) == {"mistralrs": "0.9.2"}


def test_an_mlx_that_the_table_does_not_have_takes_any_mlx_lm():
    assert requirements({"mlx": "9.9.9"}, "cpu") == ["mlx[cpu]==9.9.9", "mlx-lm"]


def test_a_revision_is_installed_from_git():
    assert requirement("mlx", "git+https://x/mlx@0123456", "cpu") == (
        "mlx @ git+https://x/mlx@0123456"
    )


def test_what_the_entry_does_not_choose_keeps_its_pin():
    pins = "mlx==0.32.4 \\\n    --hash=sha256:aa\nnumpy==2.4.6 \\\n    --hash=sha256:bb\n"
    assert constraints(pins, {"mlx": "0.31.2"}) == "numpy==2.4.6\n"
    assert constraints(pins, {"numpy": "2"}) == "\n"


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("UV_OFFLINE", "1", "without a network"),
        (
            "UV_DEFAULT_INDEX",
            "http://127.0.0.1:9/simple",
            r"the package index cannot be reached \(http://127.0.0.1:9: .*Connection refused",
        ),
    ],
)
def test_an_index_that_does_not_answer_is_no_verdict_on_a_release(
    monkeypatch, tmp_path, name, value, said
):
    monkeypatch.setenv(name, value)
    monkeypatch.setenv("UV_HTTP_RETRIES", "0")
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path))
    with pytest.raises(UserError, match=said):
        resolve.resolve({"mlx": "0.30.6"})


def test_another_question_is_not_answered_by_what_was_recorded(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    found = resolve.Resolution(resolve.key_of(NOT_THERE), NOT_THERE, "", None, "", "no such")
    resolve.keep("a", found)
    assert resolve.known("a", NOT_THERE) == found
    assert resolve.known("a", {"mlx": "0.31.2"}) is None
    assert resolve.known("b", NOT_THERE) is None


def test_a_lock_is_read_as_it_was_recorded(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    lock = "numpy==2.4.6 \\\n    --hash=sha256:aa \\\n    --hash=sha256:bb\nscipy==1.17\n"
    packages = {"numpy": "2.4.6"}
    found = resolve.Resolution(resolve.key_of(packages), packages, "newest", None, lock, "")
    resolve.keep("a", found)
    assert resolve.known("a", packages) == found


@pytest.fixture
def planned(monkeypatch, tmp_path) -> Matrix:
    """A matrix with one commit whose environment was found not to be resolvable."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KVPEAK_ACCELERATOR", "cpu")
    Path("alice.txt").write_text("alice")
    Path("config.json").write_text("{}")
    reason = "Because there is no version of mlx==0.31.999"
    found = resolve.Resolution(resolve.key_of(NOT_THERE), NOT_THERE, "", None, "", reason)
    resolve.keep("old", found)
    data = {
        "commits": {"old": {"engine": "mlx", "packages": NOT_THERE}},
        "models": {"m": {"kind": "random", "config": "config.json"}},
        "prompts": {"p": {"corpus": "alice.txt", "tokens": 3}},
        **{"kv_caches": ["cat"], "caps": ["none"], "variants": {"v": {}}},
    }
    return Matrix(data, "matrix.yaml")


def test_a_release_that_cannot_be_resolved_is_planned_as_unavailable(planned):
    cell = Cell("old", "m", "p", "cat", "none", "v")
    assert planned.reason_not_here(cell) == (
        "unavailable: commit old: Because there is no version of mlx==0.31.999"
    )
    assert planned.cells_here == []


def test_an_unavailable_environment_is_not_built():
    found = resolve.Resolution("k", NOT_THERE, "", None, "", "no such version")
    with pytest.raises(UserError, match="commit old: no such version"):
        build.build("old", found)


def test_every_distribution_of_an_environment_has_a_hash():
    found = build.distributions(None)
    names = {each["name"].lower() for each in found}
    assert {"mlx", "numpy"} <= names
    hashed = [each for each in found if re.fullmatch("[0-9a-f]{64}", each["sha256"])]
    assert len(hashed) >= len(found) - 1


@pytest.mark.slow
def test_the_oldest_release_resolves_with_hashes_of_its_time():
    found = resolve.resolve({"mlx": "0.26.5"})
    assert (found.how, found.packages["mlx-lm"]) == (resolve.OF_ITS_TIME, "0.26.0")
    names = re.findall(r"^([a-z0-9-]+)(?:\[[a-z]+\])?==", found.lock, re.MULTILINE)
    assert {"mlx", "mlx-lm", "transformers"} <= set(names)
    blocks = re.split(r"\n(?=\S)", found.lock.strip())
    assert all("--hash=sha256:" in block for block in blocks)


@pytest.mark.slow
def test_a_release_that_pins_a_pre_release_resolves():
    """mlx-lm 0.30.5 asks for one release candidate of transformers."""
    found = resolve.resolve({"mlx": "0.31.2", "mlx-lm": "0.30.5"})
    assert found.unavailable == ""
    assert re.search(r"^transformers==5\.0\.0rc\d", found.lock, re.MULTILINE)
    others = re.findall(r"^([a-z0-9-]+)==\S*\d(?:rc|a|b)\d", found.lock, re.MULTILINE)
    assert others == ["transformers"]


@pytest.mark.slow
def test_what_no_index_has_is_unavailable_with_the_reason_in_one_line():
    found = resolve.resolve(NOT_THERE)
    assert "no version of mlx" in found.unavailable
    assert "\n" not in found.unavailable


@pytest.mark.slow
def test_an_environment_holds_what_its_lock_says(tmp_path):
    resolution = resolve.resolve({"tokenizers": "0.22.1"})
    python = build.build(tmp_path / "t", resolution)
    found = {each["name"]: each for each in build.distributions(python)}
    assert found["tokenizers"]["version"] == "0.22.1"
    assert re.fullmatch("[0-9a-f]{64}", found["tokenizers"]["sha256"])
    again = build.build(tmp_path / "u", resolution)
    assert build.distributions(again) == build.distributions(python)
    assert sys.version.split()[0].rsplit(".", 1)[0] in json.dumps(
        [str(path) for path in (python.parents[1] / "lib").iterdir()]
    )
