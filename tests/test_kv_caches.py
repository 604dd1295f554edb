"""The KV caches in every kind of mlx-lm model: the same tokens as mlx-lm's own, and what they
allocate.
"""

import mlx.core as mx
import pytest
from test_models import MODEL_TYPES, SMALL

from kvpeak.base.errors import Unsupported
from kvpeak.live import kv_caches, loading
from kvpeak.live.allocator import Peaks
from kvpeak.live.generation import Sampling, Watch, generate

FULL_LENGTH = ("cat", "cat-contiguous", "prealloc")
PROMPT = mx.array([(7 * i * i + 3) % 300 for i in range(21)], mx.uint32)
GENERATE = 12
KV_MODELS = [name for name in MODEL_TYPES if name not in ("mamba", "lfm2")]


def model_of(model_type: str, **changes):
    config = SMALL | {"model_type": model_type} | MODEL_TYPES.get(model_type, {}) | changes
    return loading.random_model(config, 0, None)


def tokens(model, kv_cache: str, chunk: int | None = None) -> list[int]:
    caches = kv_caches.make_caches(kv_cache, model, PROMPT.size + GENERATE)
    return generate(model, caches, PROMPT, Sampling(GENERATE, 1.1), Watch(Peaks()), chunk).tokens


@pytest.mark.parametrize("model_type", KV_MODELS)
def test_full_length_caches_give_mlx_lms_tokens_in_any_model(model_type):
    """gemma3_text among them, whose own caches keep a window of 8 of these tokens."""
    model = model_of(model_type)
    expected = tokens(model, "mlx-lm")
    assert {name: tokens(model, name) for name in FULL_LENGTH} == dict.fromkeys(
        FULL_LENGTH, expected
    )


@pytest.mark.parametrize("kv_cache", FULL_LENGTH)
def test_a_cache_gives_back_all_that_it_was_given(kv_cache):
    model = model_of("llama")
    cache = kv_caches.make_caches(kv_cache, model, 16)[0]
    steps = [mx.random.normal((1, 2, length, 8)) for length in (5, 1, 3)]
    for step in steps:
        keys, values = cache.update_and_fetch(step, -step)
    assert cache.offset == 9
    assert mx.array_equal(keys, mx.concatenate(steps, axis=2))
    assert mx.array_equal(values, -keys)


def test_prealloc_allocates_its_whole_length_with_the_first_tokens():
    cache = kv_caches.PreallocatedCache(100)
    cache.update_and_fetch(mx.zeros((1, 2, 5, 8)), mx.zeros((1, 2, 5, 16)))
    assert cache.nbytes == 100 * 2 * (8 + 16) * 4


def test_a_rotating_cache_keeps_no_more_than_its_tokens():
    model = model_of("llama")
    caches = kv_caches.make_caches("rotating-8", model, 0)
    generate(model, caches, PROMPT, Sampling(GENERATE), Watch(Peaks()))
    assert caches[0].keys.shape[2] == 8


def test_a_rotating_cache_longer_than_the_text_gives_the_same_tokens():
    model = model_of("llama")
    assert tokens(model, "rotating-64") == tokens(model, "mlx-lm")


@pytest.mark.parametrize(("kv_cache", "bits"), [("quantized-4", 4), ("quantized-8", 8)])
def test_a_quantised_cache_holds_so_many_bits_a_value(kv_cache, bits):
    model = model_of("llama", hidden_size=128, num_attention_heads=2, num_key_value_heads=2)
    caches = kv_caches.make_caches(kv_cache, model, 0)
    generate(model, caches, PROMPT, Sampling(GENERATE), Watch(Peaks()))
    packed, _, _ = caches[0].keys
    assert packed.shape[-1] * 32 == 64 * bits


@pytest.mark.parametrize(
    ("kv_cache", "model_type", "message"),
    [
        ("paged", "llama", "kv_cache paged: expected cat, "),
        ("quantized-3", "llama", "kv_cache quantized-3: expected cat, "),
        ("rotating-4", "llama", r"kv_cache rotating-4: expected .*N above 4"),
        ("cat", "mamba", "and this one has none: layers 0-1: ArraysCache"),
    ],
)
def test_a_cache_that_a_model_cannot_have_is_unsupported_in_one_line(kv_cache, model_type, message):
    with pytest.raises(Unsupported, match=message) as error:
        kv_caches.make_caches(kv_cache, model_of(model_type), 16)
    assert "\n" not in str(error.value)
