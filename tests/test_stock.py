"""mlx-lm's own loop inside the engine: its tokens, its defaults, its clearing, its marks."""

import inspect
import itertools

import mlx.core as mx
import pytest
from test_generation import Clock
from test_models import MODEL_TYPES, SMALL

from kvpeak.experiment.engines import STOCK_CHUNK
from kvpeak.live import generation, loading, stock
from kvpeak.live.allocator import Peaks
from kvpeak.live.generation import Sampling, Watch
from kvpeak.live.kv_caches import make_caches

PROMPT = mx.array([(5 * i * i + 1) % 300 for i in range(45)], mx.uint32)
GENERATE = 16


@pytest.fixture(scope="module")
def model():
    return loading.random_model(SMALL, 0, None)


def run(model, sampling: Sampling, chunk: int | None = 2048, watch: Watch | None = None):
    caches = make_caches("mlx-lm", model, 0)
    return stock.generate(model, caches, PROMPT, sampling, watch or Watch(Peaks()), chunk)


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_the_laboratorys_loop_gives_the_tokens_of_the_stock_loop(model_type):
    config = SMALL | {"model_type": model_type} | MODEL_TYPES[model_type]
    model = loading.random_model(config, 0, None)
    ours = generation.generate(
        model, make_caches("mlx-lm", model, 0), PROMPT, Sampling(GENERATE, 1.1), Watch(Peaks())
    )
    assert run(model, Sampling(GENERATE, 1.1)).tokens == ours.tokens


def test_the_chunk_is_mlx_lms_default():
    from mlx_lm.generate import generate_step

    default = inspect.signature(generate_step).parameters["prefill_step_size"].default
    assert default == STOCK_CHUNK


def test_the_pool_is_cleared_after_each_chunk_and_at_every_256th_token(model, monkeypatch):
    cleared = []
    monkeypatch.setattr(mx, "clear_cache", lambda: cleared.append(1))
    run(model, Sampling(2), chunk=10)
    # 44 tokens before the last one are five chunks; the first token is the 0th
    assert len(cleared) == 6
    run(model, Sampling(300), chunk=2048)
    assert len(cleared) == 6 + 1 + 2


def test_the_logits_are_never_seen_and_the_other_marks_are(model):
    watch = Watch(Peaks(), clock=Clock(10.0, 12.5, 20.0))
    result = run(model, Sampling(4), watch=watch)
    assert (result.prefill_s, result.ttft_s, result.decode_s) == (None, 2.5, 7.5)


def test_the_first_token_is_on_the_host_when_it_is_told(model):
    """Whoever hears of it finds the prompt in the caches."""
    caches, held = make_caches("mlx-lm", model, 0), []
    watch = Watch(Peaks(), lambda: held.append(caches[0].offset))
    stock.generate(model, caches, PROMPT, Sampling(4), watch, 2048)
    assert len(held) == 1
    assert held[0] >= PROMPT.size


def test_a_stop_token_ends_it(model):
    free = run(model, Sampling(GENERATE, 1.3)).tokens
    first = free.index(free[6])
    stopped = run(model, Sampling(GENERATE, 1.3, stop=frozenset({free[6]}))).tokens
    assert stopped == free[: first + 1]


def test_the_pool_is_looked_at_before_each_clearing():
    """The most that a chunk left behind is gone from the pool when the next one starts."""
    model = loading.random_model(SMALL, 0, None)
    prompt = mx.array(list(itertools.islice(itertools.cycle(range(300)), 1500)), mx.uint32)
    peaks = Peaks()
    stock.generate(
        model, make_caches("cat", model, 0), prompt, Sampling(2), Watch(peaks), chunk=500
    )
    seen = peaks.mib()["peak_pool_mib"] * 2**20
    assert seen > mx.get_active_memory() + mx.get_cache_memory()
