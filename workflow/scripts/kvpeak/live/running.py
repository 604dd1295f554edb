"""One of several generations of a run: how it is run on the caches that it is given, and what is
known of it.
"""

from collections.abc import Callable
from dataclasses import dataclass

import mlx.core as mx

from kvpeak.base.errors import Unsupported
from kvpeak.base.numbers import MIB
from kvpeak.live import allocator
from kvpeak.live.generation import Generation, Sampling, Watch
from kvpeak.live.kv_caches import layers_text
from kvpeak.live.loading import mlx_lm_module
from kvpeak.protocol.parts import Part, Reuse, digest
from kvpeak.system.process_memory import own_memory


@dataclass(frozen=True)
class Session:
    """The model and how it is run; `caches` makes fresh ones, `loop` is stock's or our own."""

    model: object
    loop: Callable[..., Generation]
    caches: Callable[[], list]
    sampling: Sampling
    chunk: int | None
    feeds_last: bool  # whether the loop puts the last generated token into the caches


@dataclass(frozen=True)
class Marks:
    """Who hears when a turn begins (its number, from 1), and of its first token."""

    begun: Callable[[int], None] = lambda turn: None
    first: Callable[[], None] = lambda: None


def run_part(
    session: Session,
    number: int,
    caches: list,
    prompt: mx.array,
    marks: Marks,
    *,
    sampling: Sampling | None = None,
    reuse: Reuse | None = None,
) -> Part:
    """The turn or request of that number: one generation from `prompt` on top of the caches."""
    marks.begun(number)
    peaks = allocator.Peaks()
    watch = Watch(peaks, marks.first)
    result = session.loop(
        session.model, caches, prompt, sampling or session.sampling, watch, session.chunk
    )
    found = peaks.mib()
    mx.synchronize()
    return Part(
        turn=number,
        sequence=None,
        prompt_tokens=prompt.size,
        generated_tokens=len(result.tokens),
        prefill_s=result.prefill_s,
        ttft_s=result.ttft_s,
        decode_s=result.decode_s,
        tokens_sha256=digest(result.tokens),
        tokens=result.tokens,
        **found,
        held_pool_mib=held_pool_mib(),
        held_rss_mib=own_memory().rss_mib,
        reuse=reuse,
    )


def check_trimming(caches: list) -> None:
    """Raise Unsupported for caches that mlx-lm cannot cut back to fewer tokens."""
    if not mlx_lm_module("cache").can_trim_prompt_cache(caches):
        raise Unsupported(f"a cache cannot be trimmed: {layers_text(caches)}")


def trim(caches: list, tokens: int) -> None:
    """Take the last tokens out of the caches, by mlx-lm's own function.

    Raises Unsupported where a cache no longer can, such as one whose window is full.
    """
    check_trimming(caches)
    taken = mlx_lm_module("cache").trim_prompt_cache(caches, tokens) if tokens else 0
    if taken != tokens:
        raise Unsupported(f"a cache gave back {taken} of {tokens} tokens: {layers_text(caches)}")


def first_difference(one: list[int], other: list[int]) -> int | None:
    """The index of the first token that differs, None where none does."""
    pairs = enumerate(zip(one, other, strict=True))
    return next((index for index, (left, right) in pairs if left != right), None)


def held_pool_mib() -> float:
    """Live and kept bytes now, MiB."""
    return allocator.counting.reserved() / MIB
