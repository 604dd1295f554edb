"""What a process of the replay is asked to do."""

from collections.abc import Iterator
from dataclasses import dataclass

from kvpeak.base.kv_caches import kv_caches_of

KV_CACHES = tuple(kv_caches_of("candle-replay"))
ATTENTIONS = ("naive", "fused")
WAITS = ("none", "op")

CAPACITY_FACTOR = 2  # tokens that prealloc has room for, in units of prompt + generated; fitted


@dataclass(frozen=True)
class Workload:
    """`runs` times a prompt of `prompt_tokens` and `generate` tokens after it.

    `prefill_chunk` None prefills the prompt whole. `capacity` is how many tokens a prealloc cache
    has room for.
    """

    prompt_tokens: int
    kv_cache: str
    generate: int = 128
    runs: int = 4
    prefill_chunk: int | None = None
    attention: str = "naive"
    wait: str = "none"
    capacity: int = 0

    def chunks(self) -> Iterator[tuple[int, int]]:
        """(tokens, tokens with those before) of each step of the prefill."""
        step = self.prefill_chunk or self.prompt_tokens
        for start in range(0, self.prompt_tokens, step):
            end = min(start + step, self.prompt_tokens)
            yield end - start, end


def workload(prompt_tokens: int, kv_cache: str, *, generate: int = 128, **options) -> Workload:
    """The finding's protocol for one prompt and cache; `options` are Workload's other fields."""
    capacity = CAPACITY_FACTOR * (prompt_tokens + generate) if kv_cache == "prealloc" else 0
    return Workload(prompt_tokens, kv_cache, generate, capacity=capacity, **options)
