"""Candle's traces in our format: the policy gives the figures of the replay's own pool."""

import csv
from itertools import pairwise
from pathlib import Path

import pytest

from kvpeak.base.errors import UserError
from kvpeak.base.numbers import GIB
from kvpeak.commands.pools import _candle
from kvpeak.inputs.shapes import find_shapes
from kvpeak.pools.replay import Setting, replay
from kvpeak.pools.sources import from_blocks, open_traces
from kvpeak.replay.pools import CandlePool
from kvpeak.replay.published import SECOND_CASE
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


LOG = Path(__file__).parents[1] / "config/fornace/fornace-alloc-log-cat-contiguous-4096.csv"


def test_the_published_log_becomes_a_trace_that_gives_the_log_again():
    (trace,) = open_traces(LOG)
    with LOG.open(newline="") as file:
        rows = list(csv.DictReader(file))
    ends = [i for i in range(len(trace)) if trace.phase[i] != trace.phase[i - 1]][1:]
    made = [replay(trace, Setting("candle"), stop=end).made for end in [*ends, len(trace)]]
    assert [after - before for before, after in pairwise([0, *made])] == [
        int(row["new_512mib"]) for row in rows
    ]
    assert replay(trace, Setting("candle")).reserved_peak == 25 * 512 * 2**20
    capped = replay(trace, Setting("candle", "cap:4x"))
    assert capped.reserved_peak == 3 * 512 * 2**20 + 22 * 2**20


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ("", "expected a first layer"),
        ("0,3,", "expected a first layer"),
        ("0,3,2\n1,0,1", "layer 1: held 1; expected no fewer"),
        ("0,many,2", "line 2: expected whole numbers"),
        ("0,3,99999999", "line 2: expected at most 10,000"),
    ],
)
def test_a_log_that_cannot_be_is_one_line(tmp_path, rows, said):
    path = tmp_path / "log.csv"
    path.write_text(f"layer,new_512mib,held_512mib_at_softmax\n{rows}\n")
    with pytest.raises(UserError, match=said):
        open_traces(path)


@pytest.mark.parametrize(("chunk", "cap", "published"), SECOND_CASE)
def test_the_pull_requests_peaks_are_those_of_its_model_as_a_trace(chunk, cap, published):
    trace = _candle(f"candle:qwen2.5-7b-instruct-q4_k_m,cat-contiguous,5831,{chunk}")
    outcome = replay(trace, Setting("candle", f"cap:{cap}"))
    assert outcome.reserved_peak / GIB == pytest.approx(published, rel=0.02)
