"""The MLX engine: answers one JSON request with the events of docs/protocol.md on standard output.

Live inference with MLX and mlx-lm, on Metal, CUDA or a CPU.
"""

import re
import sys

from kvpeak.base.errors import Unsupported, UserError
from kvpeak.live.blas import load_blas
from kvpeak.live.null_buffer import on_null_buffer
from kvpeak.protocol.emit import Emit, peak_rss_mib, run_engine

# What MLX says when it cannot allocate: on a CPU, with Metal, with CUDA.
OUT_OF_MEMORY = re.compile(r"malloc|out of memory|insufficient memory", re.IGNORECASE)

NO_COMPILER = (
    "MLX could not compile a kernel for the CPU; "
    "install a C++ compiler (Debian: g++), or see the lines above"
)
NULL_BUFFER = "malloc gave MLX no memory (it used the null pointer as a buffer)"


def answer(request: dict, emit: Emit) -> None:
    """Run the request; the last event is `done` or `outcome`. Raises UserError."""
    on_null_buffer(lambda: emit("outcome", outcome="oom", detail=NULL_BUFFER))
    blas = load_blas()
    from kvpeak.live import device, session  # imports MLX, which the BLAS has to precede

    try:
        peaks = session.run_cell(request, blas, emit)
    except Unsupported as error:
        emit("outcome", outcome="unsupported", detail=str(error))
    except (MemoryError, RuntimeError) as error:
        if "Compile::eval_cpu" in str(error):
            raise UserError(NO_COMPILER) from None
        if not (isinstance(error, MemoryError) or OUT_OF_MEMORY.search(str(error))):
            raise
        emit("outcome", outcome="oom", detail=" ".join(str(error).split()) or "out of memory")
    else:
        emit("done", **peaks, **device.reserve(), peak_rss_mib=peak_rss_mib())


def main() -> int:
    return run_engine("mlx_engine", __doc__, answer)


if __name__ == "__main__":
    sys.exit(main())
