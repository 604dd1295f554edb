"""What every engine program of this project does: answer on standard output, and know its own
peak.
"""

import argparse
import json
import os
import re
import resource
import sys
from collections.abc import Callable
from pathlib import Path

from kvpeak.base.errors import UserError
from kvpeak.base.numbers import KIB, MIB
from kvpeak.base.text import OF_PROGRAMS

Emit = Callable[..., None]


def run_engine(program: str, description: str, answer: Callable[[dict, Emit], None]) -> int:
    """An engine's main: read the request that the command line names, and let `answer` emit the
    events.

    The request gets the key `folder`: where its file lies, and where an engine may leave more.
    Returns the exit code. What `answer` raises as a UserError, and a request that cannot be read,
    is one line.
    """
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("request", type=Path, help="a JSON file, as docs/protocol.md describes it")
    path = parser.parse_args().request
    emit = take_stdout()
    try:
        asked = json.loads(path.read_text(encoding="utf-8"))
        answer(asked | {"folder": str(path.parent)}, emit)
    except (OSError, json.JSONDecodeError) as error:
        print(f"{program}: {path}: {error}", file=sys.stderr)
        return 1
    except UserError as error:
        print(f"{program}: {error}", file=sys.stderr)
        return 1
    return 0


def take_stdout() -> Emit:
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
    """The most memory that this process had resident: VmHWM on Linux, ru_maxrss (bytes) on
    macOS.
    """
    if sys.platform == "darwin":
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / MIB
    status = Path("/proc/self/status").read_text(**OF_PROGRAMS)
    return int(re.search(r"^VmHWM:\s+(\d+) kB$", status, re.MULTILINE)[1]) / KIB
