"""An installation from wheels/ in a folder whose name has a space in it, as many home folders
have.
"""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
METADATA = "Metadata-Version: 2.1\nName: kvpeak-nothing\nVersion: 1.0\n"
WHEEL = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"


@pytest.fixture(params=["plain", "Jane Doe's 50% copy"])
def folder(request, tmp_path) -> Path:
    """A folder with the Makefile, and one package in wheels/."""
    folder = tmp_path / request.param
    (folder / "wheels").mkdir(parents=True)
    shutil.copy2(ROOT / "Makefile", folder)
    # a rule of the test's own, in a way that make 3.81 of macOS knows too
    (folder / "shown.mk").write_text("include Makefile\nshown: ; @env | grep _FIND_LINKS\n")
    info = "kvpeak_nothing-1.0.dist-info"
    with zipfile.ZipFile(folder / "wheels/kvpeak_nothing-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{info}/METADATA", METADATA)
        wheel.writestr(f"{info}/WHEEL", WHEEL)
        wheel.writestr(f"{info}/RECORD", f"{info}/METADATA,,\n{info}/WHEEL,,\n{info}/RECORD,,\n")
    return folder


INSTALLERS = {
    "pip": ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-cache-dir"],
    "uv": ["-m", "uv", "pip", "install", "--quiet", "--no-cache"],
}


@pytest.mark.parametrize("installer", INSTALLERS)
def test_pip_and_uv_find_the_wheels(folder, tmp_path, installer):
    shown = subprocess.run(
        ["make", "--no-print-directory", "-f", "shown.mk", "shown"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    variables = dict(line.split("=", 1) for line in shown.splitlines())
    offline = {
        "PIP_NO_INDEX": "1",
        "UV_OFFLINE": "1",
        "UV_NO_INDEX": "1",
        "PIP_CONFIG_FILE": os.devnull,
    }
    command = [
        sys.executable,
        *INSTALLERS[installer],
        "--target",
        str(tmp_path / "site"),
        "kvpeak-nothing",
    ]
    done = subprocess.run(
        command, cwd=tmp_path, env=os.environ | variables | offline, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "site/kvpeak_nothing-1.0.dist-info").is_dir()
