"""What an entry of the matrix asks to be installed, as requirements."""

import re

from kvpeak.environments.releases import mlx_lm_of_its_time
from kvpeak.system.host import installed_version


def completed(packages: dict[str, str]) -> dict[str, str]:
    """The entry, with the mlx-lm of its time where it names MLX alone."""
    if "mlx" not in packages or "mlx-lm" in packages:
        return packages
    found = mlx_lm_of_its_time(packages["mlx"])
    return packages | ({"mlx-lm": found} if found else {})


def requirement(package: str, version: str, backend: str | None) -> str:
    """What to install for one entry: a pinned version, or a git revision (git+URL@SHA).

    On Linux mlx takes its backend as an extra, e.g. mlx[cpu]; a build from source brings its own.
    """
    if version.startswith("git+"):
        return f"{package} @ {version}"
    extra = f"[{backend}]" if package == "mlx" and backend else ""
    return f"{package}{extra}=={version}"


def requirements(packages: dict[str, str], backend: str | None) -> list[str]:
    """All that an entry asks for. mlx-lm comes along with MLX whether it has a version or not."""
    wanted = [requirement(*item, backend) for item in completed(packages).items()]
    if "mlx" in packages and "mlx-lm" not in completed(packages):
        wanted.append("mlx-lm")
    return wanted


def mlx_backend() -> str | None:
    """The extra of mlx that the running environment has: cpu, cuda12, cuda13, or None on macOS."""
    for backend in ("cpu", "cuda12", "cuda13"):
        if installed_version(f"mlx-{backend.replace('cuda', 'cuda-')}"):
            return backend
    return None


def constraints(pins: str, packages: dict[str, str]) -> str:
    """The pinned versions of everything that the entry does not choose, without hashes."""
    chosen = {name.lower().replace("_", "-") for name in packages}
    lines = []
    for line in pins.splitlines():
        found = re.match(r"([A-Za-z0-9._-]+)==([^ \\]+)( ; [^\\]*)?", line)
        if found and found[1] not in chosen and not found[1].startswith("mlx"):
            lines.append(f"{found[1]}=={found[2]}{(found[3] or '').rstrip()}")
    return "\n".join(lines) + "\n"
