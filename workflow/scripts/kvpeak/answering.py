"""What every engine program of this project does: answer on standard output, and know its own peak."""

import json
import os
import re
import resource
import sys
from collections.abc import Callable
from pathlib import Path


def take_stdout() -> Callable[..., None]:
    """Keep standard output for events, and send what anything else prints to standard error.

    Returns the function that writes one event: its name, and its keys.
    """
    stream = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def emit(event: str, **keys) -> None:
        stream.write(json.dumps({"event": event, **keys}) + "\n")
        stream.flush()

    return emit


def peak_rss_mib() -> float:
    """The most memory that this process had resident: VmHWM on Linux, ru_maxrss (bytes) on macOS."""
    if sys.platform == "darwin":
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    status = Path("/proc/self/status").read_text()
    return int(re.search(r"^VmHWM:\s+(\d+) kB$", status, re.MULTILINE)[1]) / 2**10
