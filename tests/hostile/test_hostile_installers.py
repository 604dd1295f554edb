"""What pip, uv and git find in folders that others may write into: none of it counts."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from kvpeak.base.errors import Unavailable
from kvpeak.environments import build, resolve
from kvpeak.inputs import wheel
from kvpeak.system import programs
from kvpeak.system.git import git
from kvpeak.system.programs import PIP, UV, hosts_only, last_line

ROOT = Path(__file__).parents[2]
INFO = "kvpeak_planted-1.0.dist-info"
PLANTED = {
    "uv.toml": 'find-links = ["{wheels}"]\n',
    "pyproject.toml": '[tool.uv]\nfind-links = ["{wheels}"]\n',
    "pyproject.toml, for pip": '[tool.uv.pip]\nfind-links = ["{wheels}"]\n',
    "pyproject.toml, of a workspace": (
        '[project]\nname = "x"\nversion = "1"\n[tool.uv.workspace]\nmembers = ["**"]\n'
        '[tool.uv]\nfind-links = ["{wheels}"]\n'
    ),
}


@pytest.fixture
def shared(tmp_path, monkeypatch) -> Path:
    """A folder that others may write into, with a project in it, and a wheel that no index has."""
    for name in ("UV_FIND_LINKS", "UV_CONFIG_FILE", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("UV_OFFLINE", "1")
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "cache"))
    shared = tmp_path / "shared"
    for folder in ("project", "tmp", "wheels"):
        (shared / folder).mkdir(parents=True)
    file = shared / "wheels/kvpeak_planted-1.0-py3-none-any.whl"
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(
            f"{INFO}/METADATA", "Metadata-Version: 2.1\nName: kvpeak-planted\nVersion: 1.0\n"
        )
        archive.writestr(
            f"{INFO}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{INFO}/RECORD", "")
    monkeypatch.setattr("tempfile.tempdir", str(shared / "tmp"))
    monkeypatch.chdir(shared / "project")
    return shared


def plant(shared: Path, case: str, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    text = PLANTED[case].format(wheels=shared / "wheels")
    (folder / case.partition(",")[0]).write_text(text)


def resolves() -> bool:
    return resolve._uv_compile(["kvpeak-planted"], "", []).returncode == 0


@pytest.mark.parametrize("case", PLANTED)
def test_a_configuration_of_uv_in_a_folder_above_is_not_read(shared, case):
    plant(shared, case, shared)
    assert not resolves()
    install = [*UV, "pip", "install", "--target", "site", "kvpeak-planted"]
    assert subprocess.run(install, capture_output=True).returncode
    old = ["-m", "uv", *install[len(UV) :]]  # the test's own test
    assert subprocess.run([sys.executable, *old], capture_output=True).returncode == 0


@pytest.mark.parametrize("system", [False, True])
def test_the_users_and_the_systems_configuration_of_uv_count(shared, monkeypatch, system):
    name = "XDG_CONFIG_DIRS" if system else "XDG_CONFIG_HOME"
    monkeypatch.setenv(name, str(shared / "config"))
    plant(shared, "uv.toml", shared / "config/uv")
    assert resolves()


def test_make_lets_uv_read_no_folder_above(shared):
    """Nor the project's own, whose parents may be shared."""
    shutil.copy2(ROOT / "Makefile", ".")
    Path("shown.mk").write_text("include Makefile\nshown: ; @echo $(INSTALL)\n")
    make = ["make", "--no-print-directory", "-f", "shown.mk", "shown"]
    said = subprocess.run(make, capture_output=True, text=True, check=True).stdout
    assert said.startswith(".venv/bin/uv --project / pip install ")
    text = Path("Makefile").read_text()
    assert text.count("/uv ") == 1, "every call of uv is $(UV)"


@pytest.mark.parametrize("name", ["pip", "uv"])
def test_a_module_in_the_projects_folder_is_not_taken_for_pip_or_uv(shared, monkeypatch, name):
    wire = shared / "executed"
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    Path(f"{name}.py").write_text(f"open({str(wire)!r}, 'w')\n")
    with pytest.raises(Exception, match="kvpeak-planted"):
        wheel.fetch("kvpeak-planted==2", shared / "tmp", shared / "wheels")
    for words in (PIP, UV):
        subprocess.run([*words, "--version"], check=True, capture_output=True)
    build._run("c", [*UV, "pip", "list", "--quiet"])
    assert not resolves()
    assert not wire.exists()


@pytest.mark.parametrize("step", ["calibrate", "pool"])
def test_an_interpreter_of_a_matrix_sees_no_token(tmp_path, step):
    """What its packages put there is imported by it."""
    python, seen = tmp_path / "python", tmp_path / "seen"
    python.write_text(f"#!/bin/sh\nenv > {seen}\nexit 3\n")
    python.chmod(0o755)
    out = ["--out", str(tmp_path / "out.json")]
    scripts = ROOT / "workflow/scripts"
    if step == "calibrate":
        words = [scripts / "calibrate.py", "--commit", "x", "--python", python, *out]
    else:
        words = [scripts / "try_step.py", *out, "--limit", "9", "--as-engine", "--", python]
    secrets = {"HF_TOKEN": "hf_secret", "AWS_SECRET_ACCESS_KEY": "aws_secret"}
    environment = os.environ | secrets | {"TMPDIR": str(tmp_path), "MLX_X": "1"}
    subprocess.run([sys.executable, *words], env=environment, capture_output=True, check=False)
    assert "MLX_X=1" in seen.read_text() and "secret" not in seen.read_text()


def test_the_rule_of_the_pool_says_that_its_interpreter_is_an_engines():
    rules = (ROOT / "workflow/rules/engines.smk").read_text()
    rule = rules.partition("rule pool:")[2].partition("\nrule ")[0]
    assert "{params.python:q}" in rule and "--as-engine" in rule


def test_pip_sees_no_token(shared, monkeypatch):
    seen = {}

    def run(command, limit_s, variables, capture):
        seen.update(variables)
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(wheel, "run_program", run)
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    monkeypatch.setenv("PIP_TIMEOUT", "9")
    wheel.fetch("kvpeak-planted==1.0", shared / "wheels", None)
    assert seen["PIP_TIMEOUT"] == "9"
    assert "hf_secret" not in seen.values()


def test_what_pip_prints_without_end_is_not_kept(shared, monkeypatch):
    monkeypatch.setattr(programs, "MOST_SAID", 10_000)
    says = "import sys; sys.stderr.write('no such wheel\\n' * 100_000); sys.exit(1)"
    monkeypatch.setattr(wheel, "PIP", (sys.executable, "-c", says))
    kept = []
    monkeypatch.setattr(wheel, "last_line", lambda text: kept.append(text) or last_line(text))
    with pytest.raises(Unavailable, match="no such wheel"):
        wheel.fetch("kvpeak-planted==1.0", shared / "wheels", None)
    assert len(kept[0]) < 10_000 + programs.LAST_LINES


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("cause: http://h:9/a?token=SECRET refused", "http://h:9 refused"),
        ("cause: `https://me:SECRET@h/SECRET/x` (SECRETS)", "`https://h` (SECRETS)"),
        ("cause: https://SECRET@[::1]:9/x", "https://[::1]:9"),
    ],
)
def test_of_an_address_a_reason_says_the_host_alone(said, shown):
    assert resolve.one_line(said) == shown
    assert resolve.last_cause(said).endswith(shown)
    assert "SECRET@" not in hosts_only(said)


def test_a_token_in_the_address_of_packages_is_in_no_reason(shared, monkeypatch):
    for name in ("UV_FIND_LINKS", "PIP_INDEX_URL"):
        monkeypatch.setenv(name, "http://127.0.0.1:9/SECRET/?token=SECRET")
    monkeypatch.delenv("UV_OFFLINE")
    monkeypatch.setenv("UV_HTTP_RETRIES", "0")
    with pytest.raises(Unavailable, match=r"127\.0\.0\.1:9") as error:
        resolve.resolve({"kvpeak-planted": "1"})
    assert "SECRET" not in str(error.value)


def test_git_works_where_its_configuration_is_counted(monkeypatch):
    """One of the three holds a secret at times, and without one of them git fails."""
    monkeypatch.setenv("GIT_CONFIG_COUNT", "1")
    monkeypatch.setenv("GIT_CONFIG_KEY_0", "http.extraHeader")
    monkeypatch.setenv("GIT_CONFIG_VALUE_0", "Authorization: SECRET")
    assert "SECRET" not in git("config", "--list")
