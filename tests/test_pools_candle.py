"""Candle's traces in our format: the policy gives the figures of the replay's own pool."""

import pytest

from kvpeak.inputs.shapes import find_shapes
from kvpeak.pools.replay import Setting, replay
from kvpeak.pools.sources import from_blocks
from kvpeak.replay.pools import CandlePool
from kvpeak.replay.replay import Replay, place_of
from kvpeak.replay.trace import candle_trace
from kvpeak.replay.workload import workload


def blocks(model: str, cache: str, tokens: int, **options):
    return candle_trace(find_shapes(model), workload(tokens, cache, generate=9, runs=2, **options))


@pytest.mark.parametrize("slack", [None, 0, 2])
@pytest.mark.parametrize(
    ("model", "cache", "tokens", "chunk"),
    [
        ("qwen2.5-0.5b-instruct", "cat", 1025, None),
        ("qwen2.5-0.5b-instruct", "cat-contiguous", 4097, None),
        ("qwen2.5-0.5b-instruct", "prealloc", 513, None),
        ("llama-3.2-1b-instruct", "cat", 513, None),
        ("qwen2.5-7b-instruct-q4_k_m", "cat", 5831, 512),
    ],
)
def test_candles_rule_gives_what_the_replays_own_pool_gives(model, cache, tokens, chunk, slack):
    pool = CandlePool(slack)
    Replay(pool).run(blocks(model, cache, tokens, prefill_chunk=chunk))
    trace = from_blocks(blocks(model, cache, tokens, prefill_chunk=chunk), place_of, "", "candle")
    cap = "none" if slack is None else f"{2**slack}x"
    outcome = replay(trace, Setting("candle", f"cap:{cap}"))
    assert (outcome.reserved_peak, outcome.active_peak) == (pool.peak, pool.peak_held)
    assert outcome.reserved_end == pool.total
