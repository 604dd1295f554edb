"""Which of Snakemake's log handlers is ours."""


def is_display(handler: object) -> bool:
    """Whether a log handler of Snakemake's is ours and shows the run in a few lines."""
    return getattr(handler, "run", None) is not None and type(handler).__name__ == "LogHandler"
