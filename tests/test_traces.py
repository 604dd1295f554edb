"""Traces: balanced, complete, and of the sizes that the models' code asks for."""

from collections import Counter

import pytest

from kvpeak.inputs.shapes import find_shapes
from kvpeak.replay.pools import CandlePool
from kvpeak.replay.replay import Replay
from kvpeak.replay.traces import (
    ATTENTIONS,
    KV_CACHES,
    REQUESTS,
    WAITS,
    Workload,
    candle_trace,
    mlx_decode_trace,
    requests,
)

MODELS = (
    *("qwen2-tiny", "qwen2.5-0.5b-instruct", "qwen2.5-7b-instruct-q4_k_m"),
    *("llama-3.2-1b-instruct", "smollm2-135m-instruct"),
)
KEPT = {"sin", "cos", "minus_infinity"}  # for the model's life, as the masks of two models


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("kv_cache", KV_CACHES)
@pytest.mark.parametrize("attention", ATTENTIONS)
@pytest.mark.parametrize("prompt", [(1, None), (2, None), (65, None), (65, 16), (65, 64)])
def test_what_a_trace_takes_it_gives_back(model, kv_cache, attention, prompt):
    tokens, chunk = prompt
    work = Workload(
        tokens, kv_cache, 3, runs=2, prefill_chunk=chunk, attention=attention, capacity=80
    )
    replay = Replay(CandlePool())
    replay.run(candle_trace(find_shapes(model), work))
    left = set(replay.buffers)
    assert {name for name in left if not str(name).startswith("mask_")} <= KEPT
    assert replay.pool.held == sum(size for _, size in replay.buffers.values())


@pytest.mark.parametrize("wait", WAITS)
def test_a_full_run_has_as_many_events_as_the_finding_s_model_makes(wait):
    """24 layers, 4,097 tokens, 128 generated: about 163,000 events a run; waits come on top."""
    work = Workload(4097, "cat-contiguous", 128, runs=1, wait=wait)
    kinds = Counter(
        request.kind for request in requests(candle_trace(find_shapes(MODELS[1]), work))
    )
    served = sum(kinds[kind] for kind in REQUESTS)
    assert served + kinds["free"] == pytest.approx(163_000, rel=0.01)
    assert kinds["wait"] == 2 * 128 + (2 * served if wait == "op" else 0)


def test_requests_name_their_layer_their_role_and_their_bytes():
    shapes = find_shapes("qwen2.5-0.5b-instruct")
    work = Workload(4097, "cat-contiguous", 1, runs=1)
    found = {
        (request.role, request.nbytes)
        for request in requests(candle_trace(shapes, work))
        if request.layer == 7 and request.kind == "alloc"
    }
    scores = 14 * 4097 * 4097 * 2
    assert {("scores", scores), ("scaled", scores), ("masked", scores)} <= found
    assert ("k_rope", 4097 * 2 * 64 * 2) in found
    assert ("gate", 4097 * 4864 * 2) in found
    assert ("k_repeated", 14 * 4097 * 64 * 2) in found


def test_quantised_scores_are_those_of_the_second_published_case():
    """The chunk of 512 that starts at 4,096: 28 · 512 · 4,608 · 4 bytes; 2,048 bytes a token and layer."""
    shapes = find_shapes("qwen2.5-7b-instruct-q4_k_m")
    work = Workload(5831, "cat-contiguous", 1, runs=1, prefill_chunk=512)
    sizes = {
        (request.role, request.nbytes)
        for request in requests(candle_trace(shapes, work))
        if request.layer == 0
    }
    assert ("scores", 264_241_152) in sizes
    assert ("k_cat", 4608 * 2048) in sizes


def test_fused_attention_asks_for_no_scores():
    work = Workload(513, "cat", 2, runs=1, attention="fused")
    for model in MODELS:
        roles = {request.role for request in requests(candle_trace(find_shapes(model), work))}
        assert not roles & {"scores", "scaled", "masked", "probabilities", "k_repeated"}


def test_mlx_decodes_into_caches_one_token_longer():
    shapes = find_shapes("qwen2-tiny")
    sizes = [
        request.nbytes
        for request in requests(mlx_decode_trace(shapes, Workload(10, "cat", 4, runs=1)))
        if request.kind == "alloc" and request.layer == 0
    ]
    assert sizes == [tokens * 4 * 64 * 4 for tokens in (10, 11, 12, 13) for _ in range(2)]
