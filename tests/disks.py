"""Full and read-only disks. They are mounts, so they need root on Linux; elsewhere the test is
skipped.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest


class Disks:
    """Mounts, taken away at the end of the block."""

    def __init__(self, spare: Path):
        self._spare = spare / "spare"
        self._mounted: list[Path] = []

    def __enter__(self) -> "Disks":
        return self

    def __exit__(self, *_) -> None:
        for folder in reversed(self._mounted):
            subprocess.run(["umount", "--lazy", folder], check=True)

    def small(self, folder: Path, kib: int) -> None:
        """A disk on which `kib` are free, with what was in the folder."""
        if folder.exists():
            shutil.copytree(folder, self._spare, symlinks=True)
        folder.mkdir(parents=True, exist_ok=True)
        self._mount("-t", "tmpfs", "-o", "size=256M", "tmpfs", folder)
        if self._spare.exists():
            shutil.copytree(self._spare, folder, symlinks=True, dirs_exist_ok=True)
        used = shutil.disk_usage(folder).used
        size = f"remount,size={used // 1024 + kib}k"
        subprocess.run(["mount", "-o", size, folder], check=True)

    def read_only(self, folder: Path) -> None:
        self._mount("--bind", folder, folder)
        subprocess.run(["mount", "-o", "remount,bind,ro", folder], check=True)

    def _mount(self, *arguments) -> None:
        if sys.platform != "linux" or os.getuid() != 0:
            pytest.skip("mounting needs root on Linux")
        done = subprocess.run(["mount", *arguments], capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip(f"no mounts here: {done.stderr.strip()}")
        self._mounted.append(arguments[-1])
