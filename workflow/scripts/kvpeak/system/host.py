"""What this machine can run."""

import os
import platform
import shutil
import sys
from contextlib import suppress
from functools import cache
from importlib import metadata
from pathlib import Path

from kvpeak.base.errors import UserError

DEV = Path("/dev")


def accelerator() -> str:
    """Return `metal`, `cuda` or `cpu`: what MLX uses in this environment.

    Metal is what MLX uses on every Apple-silicon Mac. CUDA needs both the GPU's device node and one
    of MLX's CUDA builds; KVPEAK_ACCELERATOR overrides the answer.
    """
    forced = os.environ.get("KVPEAK_ACCELERATOR")
    if forced in ("metal", "cuda", "cpu"):
        return forced
    if sys.platform == "darwin" and platform.machine() == "arm64":
        return "metal"
    return "cuda" if has_nvidia_gpu() and installed_version("mlx-cuda-12", "mlx-cuda-13") else "cpu"


def has_nvidia_gpu() -> bool:
    """Whether the NVIDIA driver's device nodes are there."""
    return Path("/dev/nvidiactl").exists() or Path("/dev/dxg").exists()


def no_gpu_reason() -> str:
    """Say in a few words why this machine counts as having no GPU."""
    if has_nvidia_gpu():
        built = "MLX's CPU build is installed"
        return f"needs a GPU: there is one, but {built} (make finding ACCEL=cuda13)"
    return "needs a GPU (Metal or CUDA): this machine has none"


def gpus_asked_for(given: object, accelerator: str) -> int:
    """How many NVIDIA GPUs cells may use side by side; 0: one cell at a time. Raises UserError."""
    try:
        gpus = int(given)
    except (TypeError, ValueError):
        gpus = -1
    if gpus < 0:
        raise UserError(f"--config gpus: {given}; expected a number of NVIDIA GPUs")
    if gpus and accelerator != "cuda":
        raise UserError(
            f"--config gpus: {gpus}; expected none, because MLX runs on {accelerator} here"
        )
    if gpus > (here := _nvidia_gpus() or gpus):
        raise UserError(f"--config gpus: {gpus}; expected at most {here}, the GPUs of this machine")
    return gpus


def _nvidia_gpus() -> int:
    """How many GPUs the NVIDIA driver shows; 0 where it has no device nodes of their own (WSL)."""
    return sum(file.name.removeprefix("nvidia").isdigit() for file in DEV.glob("nvidia[0-9]*"))


def operating_system() -> str:
    """Return macos, linux, or what Python calls the system."""
    return {"darwin": "macos"}.get(sys.platform, sys.platform)


@cache
def installed_version(*distributions: str) -> str | None:
    """Return the version of the first of the distributions that is installed here, or None."""
    for name in distributions:
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return None


def wheel_tags(*distributions: str) -> str | None:
    """What the first of the distributions that is installed here was built for, or None.

    One wheel of MLX for each system: on macOS the version in its tag decides which kernels are in
    it.
    """
    for name in distributions:
        with suppress(metadata.PackageNotFoundError):
            text = metadata.distribution(name).read_text("WHEEL") or ""
            tags = [line.removeprefix("Tag: ") for line in text.splitlines() if line[:5] == "Tag: "]
            return ", ".join(tags) or None
    return None


def missing_packages(packages: dict[str, str]) -> list[str]:
    """The entries (package → version) that the running environment does not have at that
    version.
    """
    return [name for name, version in packages.items() if installed_version(name) != version]


def missing_programs(programs: list[str]) -> list[str]:
    """The programs that are not on the PATH."""
    return [name for name in programs if shutil.which(name) is None]
