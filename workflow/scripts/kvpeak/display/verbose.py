"""Whether a person wants to see all that Snakemake and the steps print."""

import os

VARIABLE = "V"


def shows_all() -> bool:
    """Whether V=1 was asked for: `make finding V=1`, or `V=1 snakemake …`."""
    return os.environ.get(VARIABLE, "") not in ("", "0")


def is_display(handler: object) -> bool:
    """Whether a log handler of Snakemake's is ours and shows the run in a few lines."""
    return getattr(handler, "run", None) is not None and type(handler).__name__ == "LogHandler"
