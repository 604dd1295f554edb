"""The engine mistralrs: mistral.rs, which runs on Candle, live, by released version.

Answers one JSON request with the events of docs/protocol.md on standard output.
"""

import sys

from kvpeak.base.errors import Unsupported
from kvpeak.mistral.session import OutOfMemory, run_cell
from kvpeak.protocol.emit import Emit, peak_rss_mib, run_engine


def answer(request: dict, emit: Emit) -> None:
    """Run the request; the last event is `done` or `outcome`. Raises UserError."""
    try:
        run_cell(request, emit)
    except Unsupported as error:
        emit("outcome", outcome="unsupported", detail=str(error))
    except (OutOfMemory, MemoryError) as error:
        emit("outcome", outcome="oom", detail=str(error) or "out of memory")
    else:
        emit("done", peak_active_mib=None, peak_pool_mib=None, peak_rss_mib=peak_rss_mib())


def main() -> int:
    return run_engine("mistralrs_engine", __doc__, answer)


if __name__ == "__main__":
    sys.exit(main())
