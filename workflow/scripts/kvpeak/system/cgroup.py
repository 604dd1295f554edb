"""The memory that this process's control groups leave it (Linux, versions 1 and 2)."""

from pathlib import Path

from kvpeak.base.numbers import MIB
from kvpeak.base.text import OF_PROGRAMS

NO_LIMIT = 1 << 60  # version 1 writes a huge number where there is no limit


def memory_limits(root: Path = Path("/")) -> list[tuple[float, float]]:
    """(limit, available) in MiB of every control group above this process that has a limit.

    available = limit − (usage − file pages that can be dropped at once). [] where there is none.
    Layout: Linux Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/memory.rst.
    """
    found = []
    for folder, names in _folders(root):
        try:
            limit, usage = (int((folder / name).read_text()) for name in names[:2])
            stat = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
        except (OSError, ValueError):  # no limit is "max" in version 2
            continue
        if limit < NO_LIMIT:
            free = limit - max(0, usage - int(stat.get(names[2], 0)))
            found.append((limit / MIB, max(0, free) / MIB))
    return found


def _folders(root: Path) -> list[tuple[Path, tuple[str, str, str]]]:
    """The groups of this process from the innermost up, with the names of their files."""
    try:
        lines = (root / "proc/self/cgroup").read_text(**OF_PROGRAMS).splitlines()
    except OSError:
        return []
    groups = [line.split(":", 2)[1:] for line in lines if line.count(":") >= 2]
    own = next((path for names, path in groups if "memory" in names.split(",")), None)
    if own is not None:
        top = root / "sys/fs/cgroup/memory"
        files = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
    else:
        own = next((path for names, path in groups if not names), "/")
        top, files = root / "sys/fs/cgroup", ("memory.max", "memory.current", "inactive_file")
    inner = top / own.lstrip("/")
    return [(path, files) for path in (inner, *inner.parents) if path.is_relative_to(top)]
