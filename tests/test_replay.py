"""The fast replay against the plain one."""

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from kvpeak.inputs.shapes import find_shapes
from kvpeak.replay.pools import CandlePool
from kvpeak.replay.replay import FastReplay, Replay
from kvpeak.replay.trace import candle_trace
from kvpeak.replay.workload import ATTENTIONS, KV_CACHES, WAITS, Workload

MODELS = [
    replace(find_shapes(name), layers=3, vocab=1000)
    for name in ("qwen2.5-0.5b-instruct", "qwen2.5-7b-instruct-q4_k_m", "llama-3.2-1b-instruct")
]
WORK = st.builds(
    Workload,
    prompt_tokens=st.one_of(st.integers(1, 600), st.sampled_from([127, 128, 129, 1023, 1025])),
    kv_cache=st.sampled_from(KV_CACHES),
    generate=st.integers(1, 12),
    runs=st.integers(1, 3),
    prefill_chunk=st.one_of(st.none(), st.integers(50, 300)),
    attention=st.sampled_from(ATTENTIONS),
    wait=st.sampled_from(WAITS),
    capacity=st.integers(1100, 2200),
)


def books(replay: Replay) -> tuple:
    pool = replay.pool
    return pool.held, pool.free, pool.peak, pool.peak_held, replay.buffers


@settings(deadline=None, max_examples=60)
@given(shapes=st.sampled_from(MODELS), work=WORK, slack=st.one_of(st.none(), st.integers(0, 4)))
def test_the_fast_replay_keeps_the_same_books(shapes, work, slack):
    plain, fast = Replay(CandlePool(slack)), FastReplay(CandlePool(slack))
    plain.run(candle_trace(shapes, work))
    fast.run(candle_trace(shapes, work))
    assert books(fast) == books(plain)
    again = FastReplay(CandlePool(slack))
    again.run(candle_trace(shapes, work))
    assert books(again) == books(fast)


class Told:
    """A pool's memory that only remembers what it was told."""

    def __init__(self):
        self.calls = []

    def make(self, heap: int, size: int) -> None:
        self.calls.append(("make", heap, size))

    def drop(self, heap: int, size: int) -> None:
        self.calls.append(("drop", heap, size))


@settings(deadline=None, max_examples=30)
@given(shapes=st.sampled_from(MODELS), work=WORK, slack=st.one_of(st.none(), st.integers(0, 4)))
def test_the_fast_replay_tells_the_memory_the_same(shapes, work, slack):
    plain, fast = Told(), Told()
    Replay(CandlePool(slack, plain)).run(candle_trace(shapes, work))
    FastReplay(CandlePool(slack, fast)).run(candle_trace(shapes, work))
    assert fast.calls == plain.calls


def test_the_fast_replay_remembers_no_more_with_more_runs():
    """Its memory does not grow with the number of events."""
    sizes = []
    for runs in (4, 8):
        fast = FastReplay(CandlePool())
        fast.run(candle_trace(MODELS[0], Workload(300, "cat", 40, runs=runs)))
        sizes.append(len(fast._effects))
    assert sizes[0] == sizes[1]
