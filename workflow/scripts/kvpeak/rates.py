"""The speeds of a run, from the counts and durations of its event (docs/protocol.md)."""

import math


def prefill_tok_s(run: dict) -> float | None:
    """Prompt tokens per second of prefill; None where the engine gave no duration."""
    return _rate(run["prompt_tokens"], run["prefill_s"])


def decode_tok_s(run: dict) -> float | None:
    """Tokens per second between the first token id on the host and the last: n tokens, n − 1 intervals."""
    return _rate(run["generated_tokens"] - 1, run["decode_s"])


def _rate(count: int, seconds: float | None) -> float | None:
    if not seconds or count <= 0:
        return None
    rate = count / seconds
    return rate if math.isfinite(rate) else None
