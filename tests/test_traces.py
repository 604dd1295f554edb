"""Traces: balanced, complete, and of the sizes that the models' code asks for."""

from collections import Counter
from dataclasses import replace

import pytest
from mlx_pools import mlx_decode_trace

from kvpeak.inputs.shapes import find_shapes
from kvpeak.replay.pools import PRIVATE, CandlePool
from kvpeak.replay.replay import Replay
from kvpeak.replay.script import REQUESTS
from kvpeak.replay.trace import candle_trace, host_mask_bytes, requests, scores_bytes
from kvpeak.replay.workload import ATTENTIONS, KV_CACHES, WAITS, Workload

MODELS = (
    *("qwen2-tiny", "qwen2.5-0.5b-instruct", "qwen2.5-7b-instruct-q4_k_m"),
    *("llama-3.2-1b-instruct", "smollm2-135m-instruct"),
)
KEPT = {"sin", "cos", "minus_infinity"}  # for the model's life, as the masks of two models


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
    """The chunk of 512 that starts at 4,096: 28 · 512 · 4,608 · 4 bytes; 2,048 bytes a token and
    layer.
    """
    shapes = find_shapes("qwen2.5-7b-instruct-q4_k_m")
    work = Workload(5831, "cat-contiguous", 1, runs=1, prefill_chunk=512)
    sizes = {
        (request.role, request.nbytes)
        for request in requests(candle_trace(shapes, work))
        if request.layer == 0
    }
    assert ("scores", 264_241_152) in sizes
    assert ("k_cat", 4608 * 2048) in sizes


def requested(model: str, work: Workload, layer: int | None) -> set[tuple[str, int]]:
    """(tensor, bytes) of everything that is requested in one layer, or outside the layers."""
    return {
        (request.role, request.nbytes)
        for request in requests(candle_trace(find_shapes(model), work))
        if request.layer == layer and request.kind in REQUESTS
    }


def test_every_size_of_llama_s_prefill():
    """Llama-3.2-1B: hidden 2,048, 32 heads and 8 KV heads of 64, intermediate 8,192; bfloat16."""
    tokens, float32 = 1025, 4
    found = requested("llama-3.2-1b-instruct", Workload(tokens, "cat", 1, runs=1), layer=3)
    hidden, kv, scores = tokens * 2048 * 2, tokens * 512 * 2, 32 * tokens * tokens * float32
    wide = ("q_proj", "q_copy", "q_rope", "attention", "attention_rows", "o_proj", "sum")
    assert found == (
        {(name, hidden) for name in ("norm", "norm2", "down", "x_next", *wide)}
        | {(name, kv) for name in ("k_proj", "v_proj", "k_copy", "k_rope")}
        | {(name, hidden) for name in ("k_repeated", "v_joined", "v_repeated")}
        | {(name, 2 * hidden) for name in ("q_f32", "k_f32", "v_f32", "attention_f32")}
        | {(name, scores) for name in ("scores", "scaled", "masked", "probabilities")}
        | {("minus_infinity", 4)}
        | {(name, tokens * 8192 * 2) for name in ("gate", "up", "silu", "product")}
    )


def test_llama_in_float32_casts_nothing():
    work, shapes = Workload(65, "cat", 2, runs=1), find_shapes(MODELS[3], "float32")
    found = [r for r in requests(candle_trace(shapes, work)) if r.kind == "alloc"]
    assert not [
        request.role for request in found if request.role.endswith("_f32") and request.layer == 0
    ]
    attention = {r.nbytes for r in found if (r.role, r.layer) == ("attention", 0)}
    assert attention == {65 * 2048 * 4, 2048 * 4}
    assert {r.nbytes for r in found if r.role.startswith("logits")} == {128256 * 4}


def test_llama_copies_a_strided_v_once_when_the_first_token_joins_the_prompt_s():
    """The join of the first decode step is a transposed view; from its copy on v is contiguous."""
    tokens, kv = 65, 512 * 2
    found = [
        (request.role, request.nbytes)
        for request in requests(
            candle_trace(find_shapes(MODELS[3]), Workload(tokens, "cat", 4, runs=1))
        )
        if request.layer == 5 and request.kind == "alloc" and request.role in ("v_joined", "v_cat")
    ]
    prefill, *decode = found
    assert prefill == ("v_joined", tokens * 2048 * 2)  # of the repeated heads
    assert decode == [
        ("v_joined", (tokens + 1) * kv),
        ("v_cat", (tokens + 1) * kv),
        ("v_cat", (tokens + 2) * kv),
        ("v_cat", (tokens + 3) * kv),
    ]


@pytest.mark.parametrize("kv_cache", ["cat-contiguous", "prealloc"])
def test_llama_joins_no_view_where_v_was_copied(kv_cache):
    work = Workload(65, kv_cache, 4, runs=1, capacity=80)
    roles = {request.role for request in requests(candle_trace(find_shapes(MODELS[3]), work))}
    assert "v_joined" not in roles


def test_a_prompt_of_one_token_leaves_no_view_in_the_cache():
    work = Workload(1, "cat", 4, runs=1)
    for model in (MODELS[1], MODELS[3]):
        roles = {request.role for request in requests(candle_trace(find_shapes(model), work))}
        assert "v_joined" not in roles


def test_qwen2_joins_the_view_of_v_at_every_step():
    """Its cache stays a transposed view, so that repeat_kv joins it each time before it is
    copied.
    """
    work = Workload(65, "cat", 3, runs=1)
    joined = [
        request.nbytes
        for request in requests(candle_trace(find_shapes(MODELS[1]), work))
        if (request.kind, request.role, request.layer) == ("alloc", "v_joined", 0)
    ]
    assert joined == [tokens * 14 * 64 * 2 for tokens in (65, 66, 67)]


def test_every_size_of_a_quantised_model_s_prefill():
    """Qwen2.5-7B Q4_K_M: hidden 3,584, 28 heads and 4 KV heads of 128; activations in float32."""
    tokens = 300
    work = Workload(tokens, "cat", 1, runs=1)
    found = requested("qwen2.5-7b-instruct-q4_k_m", work, layer=27)
    hidden, kv, scores = tokens * 3584 * 4, tokens * 512 * 4, 28 * tokens * tokens * 4
    wide = ("q_matmul", "q_proj", "q_copy", "q_rope", "attention", "attention_rows", "o_proj")
    narrow = [f"{tensor}_{made}" for tensor in "kv" for made in ("matmul", "proj", "copy")]
    assert found == (
        {(name, hidden) for name in ("norm", "norm2", "sum", "down", "x_next", *wide)}
        | {(name, kv) for name in ("k_rope", *narrow)}
        | {(name, hidden) for name in ("k_repeated", "v_repeated")}
        | {(name, scores) for name in ("scores", "scaled", "masked", "probabilities")}
        | {(name, tokens * 18944 * 4) for name in ("gate", "up", "silu", "product")}
    )


def test_a_quantised_model_does_not_copy_the_projections_of_one_token():
    work = Workload(1, "cat", 1, runs=1)
    roles = {role for role, _ in requested("qwen2.5-7b-instruct-q4_k_m", work, layer=0)}
    assert {"q_matmul", "q_proj"} <= roles
    assert not roles & {"q_copy", "k_copy", "v_copy", "attention_rows", "masked"}


@pytest.mark.parametrize(
    ("model", "angles", "table", "constants"),
    [  # bytes: positions · head_dim / 2 · 2 or 4
        ("qwen2.5-0.5b-instruct", 32768 * 32 * 2, 32768 * 32 * 2, set()),
        ("llama-3.2-1b-instruct", 131072 * 32 * 4, 131072 * 32 * 2, set()),
        ("qwen2.5-7b-instruct-q4_k_m", 32768 * 64 * 4, 32768 * 64 * 4, {"minus_infinity"}),
    ],
)
def test_the_rope_tables_stay_for_the_model_s_life(model, angles, table, constants):
    replay = Replay(CandlePool(0))
    load = next(candle_trace(find_shapes(model), Workload(2, "cat", 1)))
    replay.step(load)
    assert set(replay.buffers) == {"sin", "cos"} | constants
    assert replay.buffers["sin"] == replay.buffers["cos"] == (PRIVATE, table)
    sizes = {e.tensor: load.sizes[e.size] for e in load.script.events if e.kind in REQUESTS}
    assert sizes["angles"] == angles
    assert sizes["sin"] == sizes["cos"] == table
    assert {sizes[name] for name in sizes.keys() & {"sin_f32", "cos_f32"}} <= {angles}


def test_the_mask_on_the_host_has_float32_for_new_tokens_or_a_byte_for_all():
    qwen, quantised = find_shapes("qwen2.5-0.5b-instruct"), find_shapes(MODELS[2])
    whole = Workload(4097, "cat")
    chunks = Workload(4097, "cat", prefill_chunk=1024)
    assert host_mask_bytes(qwen, whole) == 4 * 4097 * 4097
    assert host_mask_bytes(qwen, chunks) == 4 * 1024 * 1024
    assert host_mask_bytes(quantised, whole) == 4097 * 4097
    assert host_mask_bytes(quantised, chunks) == 1024 * 4096
    assert host_mask_bytes(qwen, Workload(2, "cat")) == 4 * 2 * 2
    assert host_mask_bytes(quantised, Workload(2, "cat")) == 2 * 2
    for shapes in (qwen, quantised):
        assert host_mask_bytes(shapes, Workload(4097, "cat", attention="fused")) == 0
        assert host_mask_bytes(shapes, Workload(1, "cat")) == 0
        assert host_mask_bytes(shapes, Workload(3, "cat", prefill_chunk=1)) == 0


def test_the_largest_scores_are_those_of_the_last_full_chunk_and_in_float32_for_llama():
    assert scores_bytes(find_shapes(MODELS[1]), Workload(4097, "cat")) == 14 * 4097 * 4097 * 2
    assert scores_bytes(find_shapes(MODELS[3]), Workload(4097, "cat")) == 32 * 4097 * 4097 * 4
    chunked = Workload(1100, "cat", prefill_chunk=512)
    assert scores_bytes(find_shapes(MODELS[1]), chunked) == 14 * 512 * 1024 * 2


def test_fused_attention_asks_for_no_scores():
    work = Workload(513, "cat", 2, runs=1, attention="fused")
    for model in MODELS:
        roles = {request.role for request in requests(candle_trace(find_shapes(model), work))}
        assert not roles & {"scores", "scaled", "masked", "probabilities", "k_repeated"}


def alive(model: str, work: Workload, phase: str, at: str, nth: int = 0) -> set[str]:
    """What a layer of the nth pass of a phase has requested and not dropped when it asks for the
    tensor `at`.
    """
    passes = [
        block
        for block in candle_trace(find_shapes(model), work)
        if block.phase == phase and len(block.layers) > 1
    ]
    live: set[str] = set()
    for event in passes[nth].script.events:
        if event.kind in REQUESTS:
            if event.tensor == at:
                return live
            live.add(event.tensor)
        elif event.kind in ("free", "rename"):
            live.discard(event.tensor)
    raise AssertionError(f"{at} is not asked for")


HEADS = {"norm", "q_rope", "q_proj", "k_proj", "attention"}  # of qwen2, after its attention
REPEATED = {"k_repeated", "v_repeated"}


@pytest.mark.parametrize(
    ("kv_cache", "phase", "held"),
    [
        ("cat", "prefill", set()),  # k and v became the cache
        ("cat", "decode", {"k_rope", "v_proj"}),  # joined to it, and held by the caller
        ("cat-contiguous", "prefill", set()),
        ("cat-contiguous", "decode", {"k_rope", "v_proj"}),
        ("prealloc", "prefill", {"k_cache", "v_cache"}),  # made in the first pass
        ("prealloc", "decode", set()),
    ],
)
def test_what_qwen2_holds_until_the_output_projection(kv_cache, phase, held):
    """v is dropped when it was copied, and k and v when a prealloc cache took them in."""
    work = Workload(65, kv_cache, 3, runs=1, capacity=80)
    rows = {"attention_rows"} if phase == "prefill" else set()
    assert alive(MODELS[1], work, phase, "o_proj") == HEADS | REPEATED | rows | held
    before_scores = HEADS - {"attention"} | REPEATED | held
    assert alive(MODELS[1], work, phase, "scores") == before_scores


def test_a_later_chunk_of_qwen2_holds_what_it_joined():
    work = Workload(65, "cat-contiguous", 1, runs=1, prefill_chunk=32)
    held = {"k_rope", "v_copy", "attention_rows"}
    assert alive(MODELS[1], work, "prefill", "o_proj", nth=1) == HEADS | REPEATED | held


@pytest.mark.parametrize(
    ("kv_cache", "phase", "held"),
    [
        ("cat", "prefill", {"q_copy", "k_copy"}),
        ("cat", "decode", {"v_proj"}),  # the joined k takes the place of the new one
        ("cat-contiguous", "prefill", {"q_copy", "k_copy", "v_proj"}),
        ("cat-contiguous", "decode", {"k_rope", "v_proj"}),
        (
            "prealloc",
            "prefill",
            {"q_copy", "k_copy", "v_proj", "v_copy", "k_rope", "k_cache", "v_cache"},
        ),
        ("prealloc", "decode", {"k_rope", "v_proj"}),
    ],
)
def test_what_llama_holds_until_the_output_projection(kv_cache, phase, held):
    work = Workload(65, kv_cache, 3, runs=1, capacity=80)
    rows = {"attention_rows"} if phase == "prefill" else set()
    assert alive(MODELS[3], work, phase, "o_proj") == HEADS | REPEATED | rows | held


@pytest.mark.parametrize(
    ("kv_cache", "phase", "less", "more"),
    [
        ("cat", "prefill", {"k_rope", "v_copy"}, set()),
        ("cat", "decode", {"q_copy", "k_copy", "v_copy", "masked", "attention_rows"}, set()),
        ("prealloc", "prefill", set(), {"k_cache", "v_cache"}),
        ("prealloc", "decode", {"q_copy", "k_copy", "v_copy", "masked", "attention_rows"}, set()),
    ],
)
def test_a_quantised_model_holds_everything_until_the_output_projection(
    kv_cache, phase, less, more
):
    work = Workload(65, kv_cache, 3, runs=1, capacity=80)
    every = {f"{name}_{made}" for name in "qkv" for made in ("matmul", "proj", "copy")}
    every |= {"norm", "q_rope", "k_rope", "scaled", "masked", "probabilities", "attention"}
    every |= REPEATED | {"attention_rows"}
    assert alive(MODELS[2], work, phase, "o_proj") == every - less | more


def test_a_long_prompt_in_one_piece_has_no_old_tokens_to_mask():
    roles = {
        request.role
        for request in requests(candle_trace(find_shapes(MODELS[1]), Workload(300, "cat", 1)))
    }
    assert "mask_new" in roles
    assert not roles & {"mask_old", "mask_joined"}


def joined(model: str, work: Workload, **shape) -> list[int]:
    """The bytes of every v that is joined in the first layer."""
    trace = candle_trace(replace(find_shapes(model), **shape), work)
    return [
        request.nbytes
        for request in requests(trace)
        if (request.kind, request.role, request.layer) == ("alloc", "v_joined", 0)
    ]


def test_one_head_s_transposed_view_is_contiguous():
    work = Workload(65, "cat", 3, runs=1)
    for model in (MODELS[1], MODELS[3]):
        assert joined(model, work, kv_heads=1) == []
        assert joined(model, work, kv_heads=2)


@pytest.mark.parametrize("kv_cache", KV_CACHES)
@pytest.mark.parametrize("tokens", [1, 2, 65])
def test_v_is_copied_for_a_cache_of_its_own_where_it_is_a_view(kv_cache, tokens):
    """A transposed v of several tokens is a view; cat takes it as it is, the others copy it."""
    work = Workload(tokens, kv_cache, 3, runs=1, capacity=80)
    for model, kv in ((MODELS[1], 2 * 64 * 2), (MODELS[3], 8 * 64 * 2)):
        copies = [
            request.nbytes
            for request in requests(candle_trace(find_shapes(model), work))
            if (request.kind, request.role, request.layer) == ("alloc", "v_copy", 0)
        ]
        assert copies == ([] if kv_cache == "cat" or tokens == 1 else [tokens * kv])


@pytest.mark.parametrize("tokens", [2, 300])
def test_a_view_is_joined_however_long_the_prompt(tokens):
    """qwen2 joins the repeated heads at each step; llama once in the prefill, and the cache once
    when the first generated token comes to it.
    """
    work = Workload(tokens, "cat", 3, runs=1)
    repeated, llama_repeated, llama_cache = 14 * 64 * 2, 32 * 64 * 2, 8 * 64 * 2
    assert joined(MODELS[1], work) == [(tokens + step) * repeated for step in range(3)]
    assert joined(MODELS[3], work) == [tokens * llama_repeated, (tokens + 1) * llama_cache]


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (
            "qwen2.5-0.5b-instruct",  # 64 values a head, 32,768 positions, two bytes
            {
                "frequencies_f32": 32 * 4,
                "frequencies": 32 * 2,
                "positions_u32": 32_768 * 4,
                "positions": 32_768 * 2,
                **dict.fromkeys(("angles", "sin", "cos"), 32_768 * 32 * 2),
            },
        ),
        (
            "llama-3.2-1b-instruct",  # 131,072 positions
            {
                "frequencies": 32 * 4,
                "positions_u32": 131_072 * 4,
                "positions": 131_072 * 4,
                **dict.fromkeys(("angles", "sin_f32", "cos_f32"), 131_072 * 32 * 4),
                **dict.fromkeys(("sin", "cos"), 131_072 * 32 * 2),
            },
        ),
        (
            "qwen2.5-7b-instruct-q4_k_m",  # 128 values a head, 32,768 positions, four bytes
            {
                "minus_infinity": 4,
                "frequencies": 64 * 4,
                "positions_u32": 32_768 * 4,
                "positions": 32_768 * 4,
                **dict.fromkeys(("angles", "sin", "cos"), 32_768 * 64 * 4),
            },
        ),
    ],
)
def test_every_size_of_loading(model, expected):
    load = next(candle_trace(find_shapes(model), Workload(2, "cat", 1)))
    found = [(e.tensor, load.sizes[e.size]) for e in load.script.events if e.kind in REQUESTS]
    assert dict(found) == expected
    assert len(found) == len(expected)


def test_a_model_in_float32_casts_no_table():
    load = next(candle_trace(find_shapes(MODELS[1], "float32"), Workload(2, "cat", 1)))
    found = [(e.tensor, load.sizes[e.size]) for e in load.script.events if e.kind in REQUESTS]
    assert found[0] == ("frequencies_f32", 32 * 4)
    assert found[1] == ("positions_u32", 32_768 * 4)
    assert [name for name, _ in found] == [
        *("frequencies_f32", "positions_u32", "positions", "angles", "sin", "cos")
    ]


CHUNKS = Workload(300, "cat", 1, runs=1, prefill_chunk=128)  # passes of 128, 128 and 44 tokens


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (
            "qwen2.5-0.5b-instruct",  # zeros for the old tokens in two bytes, the mask in four
            [
                *[("ids", 512), ("mask_new", 128 * 128 * 4), ("mask", 128 * 128 * 2)],
                *[("x", 128 * 896 * 2), ("ids", 512), ("mask_new", 128 * 128 * 4)],
                *[("mask_old", 128 * 128 * 2), ("mask_joined", 128 * 256 * 4)],
                *[("mask", 128 * 256 * 2), ("x", 128 * 896 * 2), ("ids", 176)],
                *[("mask_new", 44 * 44 * 4), ("mask_old", 44 * 256 * 2)],
                *[("mask_joined", 44 * 300 * 4), ("mask", 44 * 300 * 2), ("x", 44 * 896 * 2)],
            ],
        ),
        (
            "llama-3.2-1b-instruct",  # one byte for each pair of tokens
            [
                *[("ids", 512), ("mask_128x128", 128 * 128), ("x", 128 * 2048 * 2)],
                *[("ids", 512), ("mask_128x256", 128 * 256), ("x", 128 * 2048 * 2)],
                *[("ids", 176), ("mask_44x300", 44 * 300), ("x", 44 * 2048 * 2)],
            ],
        ),
    ],
)
def test_every_size_before_the_first_layer(model, expected):
    found = [
        (request.role, request.nbytes)
        for block in candle_trace(find_shapes(model), CHUNKS)
        if block.phase == "prefill" and len(block.layers) == 1 and "x" in block.script.outputs
        for request in requests(iter([block]))
        if request.kind in REQUESTS
    ]
    assert found == expected


@pytest.mark.parametrize(("chunk", "dropped"), [(None, 0), (300, 0), (299, 1), (128, 2)])
def test_the_logits_of_every_chunk_but_the_last_are_dropped(chunk, dropped):
    for model in (MODELS[1], MODELS[2], MODELS[3]):
        work = replace(CHUNKS, prefill_chunk=chunk)
        scripts = [block.script.events for block in candle_trace(find_shapes(model), work)]
        drops = [[e.tensor for e in events] == ["logits", "ids"] for events in scripts]
        assert sum(drops) == dropped


def test_a_mask_that_is_there_already_is_not_made_again():
    work = replace(CHUNKS, generate=3, runs=2)
    for model in (MODELS[2], MODELS[3]):
        masks = [
            request.role
            for request in requests(candle_trace(find_shapes(model), work))
            if request.role.startswith("mask") and request.kind == "upload"
        ]
        assert masks == ["mask_128x128", "mask_128x256", "mask_44x300"]


@pytest.mark.parametrize(
    ("model", "dtype", "cast"),
    [
        ("qwen2.5-0.5b-instruct", None, True),
        ("qwen2.5-0.5b-instruct", "float32", False),
        ("llama-3.2-1b-instruct", None, False),  # its head has cast them already
        ("qwen2.5-7b-instruct-q4_k_m", None, False),
    ],
)
def test_choosing_a_token_reads_the_logits_and_the_choice(model, dtype, cast):
    shapes = find_shapes(model, dtype)
    block = next(b for b in candle_trace(shapes, Workload(2, "cat", 1)) if b.phase == "sample")
    vocabulary = 4 * shapes.vocab
    found = [(r.kind, r.role, r.nbytes) for r in requests(iter([block]))]
    to_host = [("shared", "read_back", vocabulary), ("wait", "", 0), ("free", "read_back", 0)]
    if cast:
        to_host = [("alloc", "logits_f32", vocabulary), *to_host, ("free", "logits_f32", 0)]
    assert found == [
        *to_host,
        ("upload", "penalised", vocabulary),
        ("alloc", "argmax", 4),
        ("shared", "read_back", 4),
        ("wait", "", 0),
        *(("free", name, 0) for name in ("read_back", "argmax", "penalised", "logits", "ids")),
    ]


@pytest.mark.parametrize("model", [MODELS[1], MODELS[2], MODELS[3]])
def test_a_prealloc_cache_is_made_once_at_its_capacity_where_the_host_reads(model):
    shapes = find_shapes(model)
    work = Workload(65, "prealloc", 3, runs=1, capacity=80)
    caches = [
        (request.kind, request.role, request.nbytes)
        for request in requests(candle_trace(shapes, work))
        if request.role in ("k_cache", "v_cache") and request.layer == 1
    ]
    nbytes = 80 * shapes.kv_heads * shapes.head_dim * shapes.itemsize
    made = [("shared", name, nbytes) for name in ("k_cache", "v_cache")]
    assert caches == [*made, *(("free", name, 0) for name in ("k_cache", "v_cache"))]


@pytest.mark.parametrize("wait", WAITS)
def test_a_wait_around_every_operation_changes_no_other_event(wait):
    work = Workload(9, "cat", 3, runs=1)
    every = requests(candle_trace(find_shapes(MODELS[1]), replace(work, wait=wait)))
    found = [request for request in every if request.kind != "wait"]
    plain = requests(candle_trace(find_shapes(MODELS[1]), work))
    assert found == [request for request in plain if request.kind != "wait"]


def repeated(model: str, work: Workload, **shape) -> list[str]:
    """What repeat_kv makes in the first layer of the prefill."""
    trace = candle_trace(replace(find_shapes(model), **shape), work)
    prefill = next(block for block in trace if block.phase == "prefill" and len(block.layers) > 1)
    made = ("k_repeated", "v_joined", "v_repeated")
    return [e.tensor for e in prefill.script.events if e.kind == "alloc" and e.tensor in made]


def test_heads_that_are_not_shared_are_copied_only_where_they_are_views():
    """repeat_kv gives back what it got where each head has its own k and v."""
    whole, own = Workload(65, "cat-contiguous", 1, runs=1, capacity=80), {"kv_heads": 14}
    assert repeated(MODELS[1], whole) == ["k_repeated", "v_repeated"]
    assert repeated(MODELS[1], whole, **own) == []
    assert repeated(MODELS[1], replace(whole, kv_cache="cat"), **own) == ["v_repeated"]
    narrowed = replace(whole, kv_cache="prealloc")
    assert repeated(MODELS[1], narrowed, **own) == ["k_repeated", "v_repeated"]
    assert repeated(MODELS[1], narrowed) == ["k_repeated", "v_repeated"]


def test_mlx_decodes_into_caches_one_token_longer():
    shapes = find_shapes("qwen2-tiny")
    sizes = [
        request.nbytes
        for request in requests(mlx_decode_trace(shapes, Workload(10, "cat", 4, runs=1)))
        if request.kind == "alloc" and request.layer == 0
    ]
    assert sizes == [tokens * 4 * 64 * 4 for tokens in (10, 11, 12, 13) for _ in range(2)]


def test_the_fused_kernel_takes_two_passes_from_1024_keys_on():
    work = Workload(1022, "cat", 5, runs=1, attention="fused")
    scratch = [
        (request.role, request.nbytes)
        for request in requests(candle_trace(find_shapes(MODELS[1]), work))
        if request.role.startswith("sdpa") and (request.kind, request.layer) == ("alloc", 0)
    ]
    sums = 14 * 32 * 4  # heads · blocks · float32; the partial results have head_dim 64 of them
    step = [("sdpa_partial", 64 * sums), ("sdpa_sum", sums), ("sdpa_max", sums)]
    assert scratch == 3 * step  # over 1,024, 1,025 and 1,026 keys


def test_the_fused_kernel_needs_no_second_pass_for_many_tokens():
    work = Workload(1100, "cat", 1, runs=1, attention="fused")
    roles = {request.role for request in requests(candle_trace(find_shapes(MODELS[1]), work))}
    assert not [role for role in roles if role.startswith("sdpa")]


def test_qwen2_joins_zeros_for_the_old_tokens_to_a_later_chunk_s_mask():
    work = Workload(300, "cat", 1, runs=1, prefill_chunk=128)
    old = [
        (request.kind, request.nbytes)
        for request in requests(candle_trace(find_shapes(MODELS[1]), work))
        if request.role == "mask_old" and request.kind != "free"
    ]
    assert old == [("shared", 128 * 128 * 2), ("shared", 44 * 256 * 2)]


def test_a_prealloc_cache_that_took_k_and_v_in_leaves_none_to_the_attention():
    blocks = list(candle_trace(find_shapes(MODELS[1]), Workload(65, "prealloc", 1, capacity=80)))
    layer = next(block for block in blocks if block.phase == "prefill" and len(block.layers) > 1)
    order = [(event.kind, event.tensor) for event in layer.script.events]
    scores = order.index(("alloc", "scores"))
    assert order.index(("free", "k_rope")) < scores
    assert order.index(("free", "v_copy")) < scores


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
