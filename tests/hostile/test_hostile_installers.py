"""What pip, uv and git find in folders that others may write into: none of it counts."""

import base64
import fcntl
import io
import os
import shutil
import subprocess
import sys
import tarfile
import threading
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from kvpeak.base.errors import Unavailable
from kvpeak.base.text import without_password
from kvpeak.commands.resolve_env import resolve_all
from kvpeak.environments import build, resolve, wheels
from kvpeak.inputs import wheel
from kvpeak.system import programs
from kvpeak.system.git import git
from kvpeak.system.installers import (
    ADDRESSES,
    PIP,
    UV,
    address_lines,
    address_options,
    installer_environment,
)
from kvpeak.system.programs import hosts_only, last_line

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
    pip, kept = [sys.executable, "-c", says], []
    monkeypatch.setattr(wheel, "run_program", lambda _, *a, **b: programs.run_program(pip, *a, **b))
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
        ("cause: HTTPS://me:SECRET@H/SECRET", "HTTPS://H"),
    ],
)
def test_of_an_address_a_reason_says_the_host_alone(said, shown):
    assert resolve.one_line(said) == shown
    assert resolve.last_cause(said).endswith(shown)
    assert "SECRET@" not in hosts_only(said)
    assert "SECRET@" not in without_password(said)


@pytest.mark.parametrize("scheme", ["http", "HTTPS"])
def test_the_host_goes_before_the_last_cause(scheme):
    said = f"Failed to fetch: {scheme}://me:SECRET@h/SECRET\n  cause: connecting\n  cause: refused"
    assert resolve.last_cause(said) == f"{scheme}://h: refused"


def test_a_token_in_the_address_of_packages_is_in_no_reason(shared, monkeypatch):
    for name in ("UV_FIND_LINKS", "PIP_INDEX_URL"):
        monkeypatch.setenv(name, "http://127.0.0.1:9/SECRET/?token=SECRET")
    monkeypatch.delenv("UV_OFFLINE")
    monkeypatch.setenv("UV_HTTP_RETRIES", "0")
    with pytest.raises(Unavailable, match=r"127\.0\.0\.1:9") as error:
        resolve.resolve({"kvpeak-planted": "1"})
    assert "SECRET" not in str(error.value)


@pytest.mark.parametrize("installer", ["uv", "pip"])
def test_a_token_in_the_address_of_packages_is_in_no_log(shared, monkeypatch, capfd, installer):
    """What they print while they install is in results/logs, which is passed on with results/."""
    says = "'x'*9 + ' for http://me:SECRET@127.0.0.1:9/SECRET/?t=SECRET' + 9000 * 'SECRET'"
    says = f"import sys; print({says}, 'rest SECRET', file=sys.stderr); print('last'); sys.exit(1)"
    run = programs.run_program
    said = [sys.executable, "-c", says]
    for module in (build, wheels):
        monkeypatch.setattr(module, "run_program", lambda _, *a, **b: run(said, *a, **b))
    with pytest.raises(Unavailable):
        build._run("c", []) if installer == "uv" else wheels._download(Path("down"))
    shown = capfd.readouterr().err
    assert "xxx for http://127.0.0.1:9\n" in shown and "last\n" in shown
    assert "SECRET" not in shown


def test_git_works_where_its_configuration_is_counted(monkeypatch):
    """One of the three holds a secret at times, and without one of them git fails."""
    monkeypatch.setenv("GIT_CONFIG_COUNT", "1")
    monkeypatch.setenv("GIT_CONFIG_KEY_0", "http.extraHeader")
    monkeypatch.setenv("GIT_CONFIG_VALUE_0", "Authorization: SECRET")
    assert "SECRET" not in git("config", "--list")


BACKEND = """import os, zipfile
def _seen():
    with open({seen!r}, "a") as file:
        print(dict(os.environ), file=file)
def get_requires_for_build_wheel(config_settings=None):
    _seen()
    return []
def build_wheel(folder, config_settings=None, metadata_directory=None):
    _seen()
    name = "kvpeak_secret-1.0-py3-none-any.whl"
    with zipfile.ZipFile(os.path.join(folder, name), "w") as made:
        info = "kvpeak_secret-1.0.dist-info/"
        about = ["Metadata-Version: 2.1", "Name: kvpeak-secret", "Version: 1.0", ""]
        made.writestr(info + "METADATA", chr(10).join(about))
        about = ["Wheel-Version: 1.0", "Root-Is-Purelib: true", "Tag: py3-none-any", ""]
        made.writestr(info + "WHEEL", chr(10).join(about))
        made.writestr(info + "RECORD", "")
    return name
"""


@pytest.fixture
def index(tmp_path):
    """The address of an index that asks for a password, and a file: what the build of its one
    package sees.
    """
    seen = tmp_path / "seen"
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for name, text in {
            "pyproject.toml": '[build-system]\nrequires = []\nbuild-backend = "b"\n'
            'backend-path = ["."]\n[project]\nname = "kvpeak-secret"\ndynamic = ["version"]\n',
            "b.py": BACKEND.format(seen=str(seen)),
        }.items():
            member = tarfile.TarInfo(f"kvpeak_secret-1.0/{name}")
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text.encode()))
    file = "kvpeak_secret-1.0.tar.gz"
    pages = {"/simple/kvpeak-secret/": f'<a href="/{file}">{file}</a>'.encode()}
    pages[f"/{file}"] = packed.getvalue()
    password = "Basic " + base64.b64encode(b"me:PASSWORD").decode()

    class Index(BaseHTTPRequestHandler):
        def do_GET(self):
            known = self.headers.get("Authorization") == password
            found = pages.get(self.path) if known else b""
            self.send_response(401 if not known else 200 if found else 404)
            self.send_header("Content-Type", "text/html")
            self.send_header("WWW-Authenticate", "Basic")
            self.send_header("Content-Length", str(len(found or b"")))
            self.end_headers()
            self.wfile.write(found or b"")

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Index)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://me:PASSWORD@127.0.0.1:{server.server_port}/simple", seen
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize(
    ("variable", "before"),
    [
        ("UV_INDEX", "mine="),
        ("UV_EXTRA_INDEX_URL", ""),
        ("UV_INDEX_URL", ""),
        ("UV_DEFAULT_INDEX", ""),
    ],
)
def test_a_build_sees_no_password_of_an_index(shared, monkeypatch, index, variable, before):
    """The index is used all the same: when versions are found, and when they are installed."""
    address, seen = index
    for name in ("UV_OFFLINE", *ADDRESSES[UV]):
        monkeypatch.delenv(name, raising=False)
    if variable in ("UV_INDEX", "UV_EXTRA_INDEX_URL"):
        monkeypatch.setenv("UV_DEFAULT_INDEX", address.replace("/simple", "/none"))
    monkeypatch.setenv(variable, before + address)
    monkeypatch.setenv("PIP_INDEX_URL", address)
    monkeypatch.setenv("UV_LINK_MODE", "copy")
    compiled = resolve._uv_compile(["kvpeak-secret"], "", [])
    assert compiled.stdout.startswith("kvpeak-secret==1.0"), compiled.stderr
    assert "PASSWORD" not in compiled.stdout
    lock = Path("lock.txt")
    lock.write_text(compiled.stdout)
    with address_options(UV) as addresses:
        install = [*UV, "pip", "install", "--no-cache", "--target", "site", "--require-hashes"]
        build._run("c", [*install, *addresses, "-r", str(lock)])
    assert Path("site/kvpeak_secret-1.0.dist-info").is_dir()
    assert seen.read_text().count("UV_LINK_MODE") >= 2
    assert "PASSWORD" not in seen.read_text()


def test_pip_takes_addresses_from_a_file(shared, monkeypatch, index):
    address, seen = index
    monkeypatch.setenv("PIP_INDEX_URL", address)
    monkeypatch.delenv("PIP_NO_INDEX", raising=False)
    wheels._download(Path("down"), "--no-deps", "--no-build-isolation", "kvpeak-secret")
    assert Path("down/kvpeak_secret-1.0.tar.gz").exists()
    assert seen.exists() and "PASSWORD" not in seen.read_text()


def test_the_file_of_addresses_is_its_owners(monkeypatch):
    monkeypatch.setenv("UV_FIND_LINKS", "https://a:b@h/x,/folder")
    with address_options(UV) as (_, name):
        assert Path(name).parent.stat().st_mode & 0o077 == 0
        assert Path(name).read_text() == "--find-links https://a:b@h/x\n--find-links /folder\n"
    assert not Path(name).exists()
    assert "UV_FIND_LINKS" not in installer_environment(UV)


@pytest.mark.parametrize(
    ("program", "name", "value", "line"),
    [
        (UV, "UV_INDEX_URL", "{}", "--index-url {}"),
        (UV, "UV_INDEX", "mine={}", "--extra-index-url {}"),
        (PIP, "PIP_EXTRA_INDEX_URL", "{}", "--extra-index-url {}"),
    ],
)
@pytest.mark.parametrize("address", ["HTTPS://h/TOKEN/simple", "Http://h/TOKEN"])
def test_an_address_is_one_however_its_scheme_is_spelled(
    monkeypatch, program, name, value, line, address
):
    """It goes by the file, and not by a variable that every build sees."""
    for each in ADDRESSES[program]:
        monkeypatch.delenv(each, raising=False)
    monkeypatch.setenv(name, value.format(address))
    assert "TOKEN" not in str(installer_environment(program))
    assert address_lines(program) == [line.format(address)]


@pytest.mark.parametrize(
    ("program", "name", "value"),
    [
        (PIP, "PIP_INDEX_URL", "me:PASSWORD@h/simple"),
        (UV, "UV_DEFAULT_INDEX", "me:PASSWORD@h/simple"),
        (UV, "UV_INDEX", "mine=me:PASSWORD@h/simple"),
        (UV, "UV_INDEX_MINE_USERNAME", "PASSWORD"),
        (UV, "UV_TORCH_MIRROR", "HTTPS://PASSWORD@h/x"),
        (UV, "UV_PYTHON_INSTALL_MIRROR", "https://h/?t=PASSWORD"),
    ],
)
def test_what_a_package_is_built_with_is_no_password_however_it_is_written(
    monkeypatch, program, name, value
):
    monkeypatch.setenv(name, value)
    assert "PASSWORD" not in str(installer_environment(program))


def test_a_build_of_an_engine_sees_no_password_of_a_proxy(monkeypatch):
    """pip, uv and git, which need it, do; a proxy without a password is everybody's."""
    monkeypatch.setenv("https_proxy", "http://u:PASSWORD@h:9")
    monkeypatch.setenv("ALL_PROXY", "u:PASSWORD@h:9")
    monkeypatch.setenv("CARGO_HTTP_PROXY", "u:PASSWORD@h:9")
    monkeypatch.setenv("http_proxy", "http://h:9")
    assert programs.environment()["http_proxy"] == "http://h:9"
    assert "PASSWORD" not in str(programs.environment())
    for program in (PIP, UV):
        assert installer_environment(program)["https_proxy"] == "http://u:PASSWORD@h:9"


def test_git_alone_is_given_the_agent_of_ssh(monkeypatch):
    monkeypatch.setenv("SSH_AUTH_SOCK", "/run/agent")
    assert "SSH_AUTH_SOCK" not in programs.environment()
    assert git("-c", "alias.shown=!env", "shown").count("SSH_AUTH_SOCK=/run/agent") == 1


LEAVING = """import os, subprocess, time
def prepare_metadata_for_build_wheel(folder, config_settings=None):
    left = "exec 9>{held}; flock 9; touch {held}.left; exec sleep 1000"
    nothing = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
    subprocess.Popen(["sh", "-c", left], start_new_session=True, **nothing)
    while not os.path.exists("{held}.left"):
        time.sleep(0.01)
    name = "kvpeak_left-1.0.dist-info"
    os.mkdir(os.path.join(folder, name))
    with open(os.path.join(folder, name, "METADATA"), "w") as file:
        for line in ("Metadata-Version: 2.1", "Name: kvpeak-left", "Version: 1.0"):
            print(line, file=file)
    return name
def build_wheel(*_):
    raise NotImplementedError
"""


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere an orphan is lost")
def test_what_a_build_starts_while_versions_are_found_ends_with_it(shared, tmp_path):
    """The plan alone has a package built."""
    held, package = tmp_path / "held", tmp_path / "package"
    package.mkdir()
    about = '[build-system]\nrequires = []\nbuild-backend = "b"\nbackend-path = ["."]\n'
    (package / "pyproject.toml").write_text(about)
    (package / "b.py").write_text(LEAVING.format(held=held))
    identity = ("-c", "user.name=x", "-c", "user.email=x@example.org")
    for words in (["init", "-q"], ["add", "."], [*identity, "commit", "-q", "-m", "x"]):
        git("-C", str(package), *words)
    revision = git("-C", str(package), "rev-parse", "HEAD").strip()
    packages = {"kvpeak-left": f"git+file://{package}@{revision}"}
    resolve_all({"evil": packages})
    assert f"kvpeak-left @ git+file://{package}@{revision}" in resolve.known("evil", packages).lock
    assert Path(f"{held}.left").exists()
    with held.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # nobody holds it any more
