"""The size of the processor's last-level cache."""

import re
import sys
from pathlib import Path

from kvpeak.system import mac

UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def last_level_cache_bytes(root: Path = Path("/sys/devices/system/cpu")) -> int | None:
    """All of the last level together, over the processors; None where the system does not say.

    Linux: sysfs (Documentation/ABI/testing/sysfs-devices-system-cpu). macOS: sysctl; Apple's
    processors have a system-level cache behind it, whose size no system call tells.
    """
    if sys.platform == "darwin":
        return mac.cache_bytes()
    found: dict[int, dict[str, int]] = {}  # level → processors that share one → bytes
    for index in root.glob("cpu[0-9]*/cache/index*"):
        try:
            kind, level, size, shared = (
                (index / name).read_text().strip()
                for name in ("type", "level", "size", "shared_cpu_list")
            )
        except OSError:
            continue
        number = re.fullmatch(r"(\d+)([KMG]?)", size)
        if kind != "Instruction" and level.isdigit() and number:
            found.setdefault(int(level), {})[shared] = int(number[1]) * UNITS[number[2]]
    return sum(found[max(found)].values()) if found else None
