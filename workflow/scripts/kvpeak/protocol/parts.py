"""The parts of a run that is more than one generation: turns, requests, sequences of a batch.

They are in its event `run` (docs/protocol.md).
"""

import hashlib
from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class Reuse:
    """What a request took over from an earlier one.

    tokens: how many were not computed again. cache_mib: what their cache held when the request
    began. The rest is of a cache that was saved and loaded, None of one that stayed in memory: the
    file's size, how long loading took, and the most live bytes meanwhile.
    """

    reused_tokens: int
    cache_mib: float | None = None
    cache_file_mib: float | None = None
    cache_load_s: float | None = None
    cache_load_peak_mib: float | None = None


@dataclass(frozen=True)
class Part:
    """One turn, request (`turn`, from 1) or sequence of a batch (`sequence`, from 1) of a run.

    prompt_tokens: those that were computed. held_pool_mib: live and kept bytes when it had ended,
    its cache included; held_rss_mib: the process's resident memory then. None: not known alone.
    """

    turn: int | None
    sequence: int | None
    prompt_tokens: int
    generated_tokens: int
    prefill_s: float | None
    ttft_s: float | None
    decode_s: float | None
    tokens_sha256: str | None
    tokens: list[int] | None
    peak_active_mib: float | None
    peak_pool_mib: float | None
    held_pool_mib: float | None
    held_rss_mib: float | None
    reuse: Reuse | None = None


def digest(tokens: list[int]) -> str:
    """SHA-256 of the ids as ASCII decimals joined by commas."""
    return hashlib.sha256(",".join(map(str, tokens)).encode()).hexdigest()


def whole_run(parts: list[Part]) -> dict:
    """The keys of the event `run` for parts one after another: sums over them."""
    seconds = {}
    for name in ("prefill_s", "decode_s"):
        values = [getattr(each, name) for each in parts]
        seconds[name] = None if None in values else sum(values)
    known = all(each.tokens is not None for each in parts)
    tokens = [token for each in parts for token in each.tokens or ()]
    return {
        **seconds,
        "ttft_s": parts[0].ttft_s,
        "prompt_tokens": sum(each.prompt_tokens for each in parts),
        "generated_tokens": sum(each.generated_tokens for each in parts),
        "decode_steps": sum(each.generated_tokens - 1 for each in parts),
        "tokens_sha256": digest(tokens) if known else None,
    }


def largest(parts: list[Part]) -> dict[str, float]:
    """The largest of each peak, MiB."""
    names = ("peak_active_mib", "peak_pool_mib")
    return {name: max(getattr(each, name) for each in parts) for name in names}


def as_event(parts: list[Part]) -> list[dict]:
    """The parts as the event `run` carries them, without the ids, which have a hash."""
    flat = (asdict(each) for each in parts)
    return [
        {key: value for key, value in part.items() if key not in ("tokens", "reuse")}
        | (part["reuse"] or {})
        for part in flat
    ]
