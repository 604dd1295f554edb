"""The speeds of a run, from the counts and durations of its event (docs/protocol.md)."""

import math


def prefill_tok_s(run: dict) -> float | None:
    """Prompt tokens per second of prefill; None where the engine did not say how many or how
    long.
    """
    return _rate(run["prompt_tokens"], run["prefill_s"])


def decode_tok_s(run: dict) -> float | None:
    """Tokens per second between the first token id on the host and the last: n tokens, n − 1
    intervals.

    A run of several generations says itself how many there were (`decode_steps`).
    """
    steps = run.get("decode_steps", (run["generated_tokens"] or 0) - 1)
    return _rate(steps, run["decode_s"])


def _rate(count: int | None, seconds: float | None) -> float | None:
    if not seconds or not count or count < 0:
        return None
    rate = count / seconds
    return rate if math.isfinite(rate) else None
