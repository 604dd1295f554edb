"""The longest prompt that fits, on peaks made up here and on those of a small model's replay."""

from dataclasses import replace

import pytest

from kvpeak.inputs.shapes import find_shapes
from kvpeak.replay import longest as module
from kvpeak.replay.longest import longest
from kvpeak.replay.prediction import predict
from kvpeak.replay.workload import workload

TINY = replace(find_shapes("qwen2-tiny"), layers=2, positions=1300)


class Peak:
    """A peak of a MiB a token; the search for it ends."""

    def __init__(self):
        self.calls = 0

    def __call__(self, tokens: int) -> float:
        self.calls += 1
        assert self.calls < 1000, "the search does not end"
        return float(tokens)


@pytest.mark.parametrize("memory", [0.5, 1, 2, 511, 512, 513, 767, 1023, 1024, 1025, 1535, 1599])
def test_the_last_length_that_fits_is_found_between_the_multiples(memory):
    assert module._last(Peak(), memory, 1600) == int(memory)


@pytest.mark.parametrize("most", [1, 511, 512, 513, 1024, 1600])
def test_no_prompt_is_longer_than_the_positions_allow(most):
    assert module._last(Peak(), 1600, most) == most
    assert module._last(Peak(), most, most) == most
    assert module._last(Peak(), most - 1, most) == most - 1


def test_a_peak_of_exactly_the_memory_fits():
    steps = {tokens: float(-(-tokens // 100)) for tokens in range(1, 1601)}
    assert module._last(steps.__getitem__, 3, 1600) == 300


def test_it_looks_at_few_lengths():
    tried = []

    def peak(tokens: int) -> float:
        tried.append(tokens)
        return float(tokens)

    assert module._last(peak, 700, 100_000) == 700
    assert tried[:2] == [512, 1024]
    assert len(tried) <= 2 + 9  # 512 lengths, halved


def peak_of(tokens: int, **options) -> float:
    return predict(TINY, workload(tokens, "cat", **options), 2)["peak_mib"]


def test_the_ends_allow_for_the_replays_error_of_2_9_percent():
    memory = peak_of(600)
    found = longest(TINY, "cat", 2, memory)
    assert found.tokens >= 600
    assert found.peak_mib == peak_of(found.tokens) <= memory < peak_of(found.tokens + 1)
    assert found.low == longest(TINY, "cat", 2, memory / 1.029).tokens < found.tokens
    assert found.high == longest(TINY, "cat", 2, memory * 1.029).tokens > found.tokens
    assert not found.all_positions


def test_where_everything_fits_all_positions_but_those_of_the_generation_are_the_prompt_s():
    for options, generated in (({}, 128), ({"generate": 300}, 300)):
        found = longest(TINY, "cat", 2, 1e6, **options)
        assert found.tokens == found.low == found.high == 1300 - generated
        assert found.all_positions
        assert found.peak_mib == peak_of(1300 - generated, generate=generated)


def test_where_nothing_fits_there_is_no_prompt_and_no_peak():
    found = longest(TINY, "cat", 2, 0.001)
    assert (found.tokens, found.low, found.high, found.peak_mib) == (0, 0, 0, 0.0)
    assert not found.all_positions


def test_the_options_are_the_workloads():
    memory = peak_of(600)
    chunked = longest(TINY, "cat", 2, memory, prefill_chunk=64)
    assert chunked.tokens > longest(TINY, "cat", 2, memory).tokens
    assert chunked.peak_mib == peak_of(chunked.tokens, prefill_chunk=64)
