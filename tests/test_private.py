"""A folder that only this user may write into, and what it is for."""

import os
import shutil
from pathlib import Path

import pytest

from kvpeak.base.errors import UserError
from kvpeak.system import private
from kvpeak.system.lock import lock_file, measuring_alone
from kvpeak.system.programs import engine_environment, environment


def prepare(folder: Path, how: str) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    if how == "link":
        folder.symlink_to(folder.parent)
    elif how == "file":
        folder.touch()
    else:
        folder.mkdir()
        folder.chmod(0o777)


@pytest.mark.parametrize("prepared", ["link", "writable", "file"])
def test_a_name_that_somebody_else_took_is_left_for_the_next_place(tmp_path, monkeypatch, prepared):
    monkeypatch.setattr(private.tempfile, "gettempdir", lambda: str(tmp_path))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    prepare(tmp_path / f"kvpeak-{os.getuid()}", prepared)
    assert lock_file().parent == tmp_path / "run/kvpeak"
    shutil.rmtree(tmp_path / "run/kvpeak")
    prepare(tmp_path / "run/kvpeak", prepared)
    assert lock_file().parent == tmp_path / "home/.cache/kvpeak/private"
    shutil.rmtree(tmp_path / "home/.cache/kvpeak/private")
    prepare(tmp_path / "home/.cache/kvpeak/private", prepared)
    with pytest.raises(UserError, match="none is a folder that only you may write into"):
        lock_file()


def test_who_takes_the_first_place_and_leaves_it_does_not_divide_the_lock(tmp_path, monkeypatch):
    """The second runner may use the first place, and waits all the same."""
    monkeypatch.setattr(private.tempfile, "gettempdir", lambda: str(tmp_path))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    taken, said = tmp_path / f"kvpeak-{os.getuid()}", []
    prepare(taken, "writable")

    def give_up():
        raise UserError("waits")

    for gpus in ([], [0]):
        with measuring_alone("a", gpus, said.append, lambda: None):
            taken.rmdir()
            for runtime in ("run", "another"):
                monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / runtime))
                second = measuring_alone("b", gpus, said.append, give_up)
                with pytest.raises(UserError, match="waits"):
                    second.__enter__()
        shutil.rmtree(taken)
        prepare(taken, "writable")
    assert all("cell a, which has the lock" in line for line in said) and len(said) == 4


SECRETS = {
    "HF_TOKEN": "hf_secret",
    "CUDA_X_AUTH": "secret",
    "NVIDIA_PAT": "secret",
    "CARGO_REGISTRIES_MINE_INDEX": "https://u:secret@host/",
    "CARGO_HTTP_PROXY": "user:secret@proxy:9",
    "MLX_HTTP_PROXY": "secret@proxy:9",
    "CARGO_REGISTRIES_A_INDEX": "user:secret@host/",
    "RUSTUP_DIST_SERVER": "https://host/?t=secret",
    "RUSTFLAGS": "-C linker=https://user:secret@host",
    "MLX_SECRET": "secret",
    "MLX_SERVER": "https://user:secret@host",
    "MLX_USERNAME": "secret",
}
PROXY = {"http_proxy": "http://user:secret@127.0.0.1:9"}


def test_what_is_measured_sees_no_secret_and_no_proxy(monkeypatch):
    for name, value in (SECRETS | PROXY | {"MLX_ENABLE_TF32": "0"}).items():
        monkeypatch.setenv(name, value)
    found = engine_environment("MLX_")
    assert found["MLX_ENABLE_TF32"] == "0"
    assert "secret" not in str(found)
    assert not environment().keys() & (SECRETS | PROXY).keys()


def test_a_folder_with_the_sign_of_an_address_in_its_name_is_no_secret(monkeypatch):
    paths = {"PATH": "bin:node@18", "LD_LIBRARY_PATH": "/opt/llvm@18/lib:/opt/openssl@3/lib"}
    for name, value in paths.items():
        monkeypatch.setenv(name, value)
    assert environment().items() >= paths.items()


def test_a_proxy_without_a_password_is_for_builds_too_and_not_for_what_is_measured(monkeypatch):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    assert "http_proxy" in environment() and "http_proxy" not in engine_environment()
