"""The generation loop against mlx-lm's own, in every kind of mlx-lm model."""

import itertools

import mlx.core as mx
import pytest
from test_models import MODEL_TYPES, SMALL

from kvpeak.live import loading
from kvpeak.live.allocator import Peaks
from kvpeak.live.generation import Picker, Sampling, Watch, generate, penalised
from kvpeak.live.kv_caches import make_caches

PROMPT = mx.array([(5 * i * i + 1) % 300 for i in range(23)], mx.uint32)
GENERATE = 16


@pytest.fixture(scope="module")
def model():
    return loading.random_model(SMALL, 0, None)


def run(model, sampling: Sampling, chunk: int | None = None):
    return generate(model, make_caches("mlx-lm", model, 0), PROMPT, sampling, Watch(Peaks()), chunk)


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_tokens_are_those_of_mlx_lm_in_any_model(model_type):
    """With the repeat penalty over a window that holds prompt and generation both."""
    from mlx_lm.generate import generate_step
    from mlx_lm.sample_utils import make_logits_processors

    config = SMALL | {"model_type": model_type} | MODEL_TYPES[model_type]
    model = loading.random_model(config, 0, None)
    processors = make_logits_processors(repetition_penalty=1.1, repetition_context_size=20)
    theirs = generate_step(PROMPT, model, max_tokens=GENERATE, logits_processors=processors)
    expected = [token for token, _ in itertools.islice(theirs, GENERATE)]
    assert run(model, Sampling(GENERATE, 1.1, 20)).tokens == expected


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_prefill_in_chunks_gives_the_tokens_of_one_pass(model_type):
    config = SMALL | {"model_type": model_type} | MODEL_TYPES[model_type]
    model = loading.random_model(config, 0, None)
    whole = run(model, Sampling(GENERATE)).tokens
    assert [run(model, Sampling(GENERATE), chunk).tokens for chunk in (5, 11, 22, 64)] == [
        whole
    ] * 4


def test_the_penalty_covers_prompt_and_generation(model):
    """A penalty as large as this one forbids what the window holds, so no token comes twice."""
    result = run(model, Sampling(60, 1e9, 200)).tokens
    assert len(set(result)) == 60
    assert not set(result) & set(PROMPT.tolist())


def test_the_window_forgets_what_is_older(model):
    result = run(model, Sampling(60, 1e9, 1)).tokens
    assert all(one != other for one, other in itertools.pairwise(result))
    assert len(set(result)) < 60


@pytest.mark.parametrize("none", [{"repeat_penalty": 1.0}, {"repeat_window": 0}])
def test_no_penalty_is_plain_greedy(model, none):
    free = run(model, Sampling(GENERATE, 1.0)).tokens
    assert run(model, Sampling(GENERATE, **{"repeat_penalty": 1.3} | none)).tokens == free


def test_each_recent_id_is_penalised_once():
    logits = mx.array([[2.0, -2.0, 1.0, 0.0]])
    expected = mx.array([[1.0, -4.0, 1.0, 0.0]])
    assert mx.array_equal(penalised(logits, mx.array([0, 1, 0, 0, 3], mx.uint32), 2.0), expected)


@pytest.mark.parametrize(
    ("logit", "expected"), [(0.5, 0.25), (-0.5, -1.0), (1e-3, 5e-4), (-1e-3, -2e-3), (0.0, 0.0)]
)
def test_the_penalty_divides_what_is_above_zero_and_multiplies_what_is_below(logit, expected):
    result = penalised(mx.array([[logit]]), mx.array([0], mx.uint32), 2.0)
    assert result.item() == pytest.approx(expected)


@pytest.mark.parametrize(
    ("window", "penalty", "penalises"),
    [(64, 1.1, True), (64, 0.9, True), (1, 1.1, True), (0, 1.1, False), (64, 1, False)],
)
def test_a_penalty_needs_a_window_and_a_factor(window, penalty, penalises):
    assert Sampling(4, penalty, window).penalises is penalises


def test_the_last_64_tokens_are_penalised_where_nothing_else_is_said():
    assert Sampling(4) == Sampling(4, repeat_penalty=1.0, repeat_window=64, stop=frozenset())


@pytest.mark.parametrize(
    ("window", "penalty", "first", "then"),
    [
        (1, 2.0, 0, 1),  # of the prompt 0, 1 the last: 2.0, 0.95, 1.5; after 0: 1.0, 1.9, 1.5
        (2, 2.0, 2, 2),  # 1.0, 0.95, 1.5, and after another 0 the same
        (1, 0.5, 1, 0),  # 2.0, 3.8, 1.5; after 0: 4.0, 1.9, 1.5
        (1, 1.0, 0, 0),
    ],
)
def test_the_window_moves_with_what_was_generated(window, penalty, first, then):
    pick = Picker(mx.array([0, 1], mx.uint32), Sampling(2, penalty, window))
    logits = mx.array([[2.0, 1.9, 1.5]])
    assert pick(logits).tolist() == [first]
    assert pick(logits, mx.array([0], mx.uint32)).tolist() == [then]


def test_generation_ends_with_a_stop_token(model):
    free = run(model, Sampling(GENERATE, 1.3)).tokens
    first = free.index(free[6])
    stopped = run(model, Sampling(GENERATE, 1.3, stop=frozenset({free[6]}))).tokens
    assert stopped == free[: first + 1]


def test_one_token_is_no_decode(model):
    result = run(model, Sampling(1))
    assert result.tokens == run(model, Sampling(2)).tokens[:1]


def test_a_prompt_of_one_token_needs_no_pass_before_it(model):
    caches = make_caches("cat", model, 0)
    result = generate(model, caches, PROMPT[:1], Sampling(3), Watch(Peaks()))
    assert len(result.tokens) == 3
    assert caches[0].offset == 3


def test_times_follow_each_other(model):
    result = run(model, Sampling(GENERATE))
    assert 0 < result.prefill_s <= result.ttft_s
    assert result.decode_s > 0


class Clock:
    """Gives the seconds it was told, and notes at each look what MLX held and had held since."""

    def __init__(self, *seconds: float):
        self._seconds = iter(seconds)
        self.active, self.peak = [], []

    def __call__(self) -> float:
        self.active.append(mx.get_active_memory())
        self.peak.append(mx.get_peak_memory())
        mx.reset_peak_memory()
        return next(self._seconds)


def test_each_duration_is_the_time_between_its_two_marks(model):
    caches = make_caches("mlx-lm", model, 0)
    watch = Watch(Peaks(), clock=Clock(1.0, 2.0, 4.0, 11.0))
    result = generate(model, caches, PROMPT, Sampling(4), watch)
    assert (result.prefill_s, result.ttft_s, result.decode_s) == (1.0, 3.0, 7.0)


def test_the_prefill_ends_when_its_logits_are_there_and_not_before():
    """MLX computes nothing until it has to: an early mark would time the building of a graph."""
    vocabulary, prompt = 50_000, mx.arange(200, dtype=mx.uint32)
    model = loading.random_model(SMALL | {"vocab_size": vocabulary}, 0, None)
    caches = make_caches("prealloc", model, prompt.size + 4)
    clock = Clock(0, 1, 2, 3)
    mx.eval(prompt)
    mx.clear_cache()
    generate(model, caches, prompt, Sampling(4, 1.1), Watch(Peaks(), clock=clock))
    started, prefilled, first, last = clock.active
    logits = 4 * vocabulary
    kept = sum(cache.nbytes for cache in caches)
    assert started + kept + logits <= prefilled < started + 3 * (kept + logits)
    # between the logits and the first token the penalty copies them, and the token is picked
    assert clock.peak[2] >= prefilled + logits
    # and every later step has made logits of its own
    assert clock.peak[3] >= first
    assert last < prefilled


def test_the_first_token_is_told_before_the_second_is_asked_for(model):
    passes, told = [], []

    def counted(tokens, cache):
        passes.append(tokens.shape[1])
        return model(tokens, cache=cache)

    watch = Watch(Peaks(), lambda: told.append(len(passes)))
    generate(counted, make_caches("mlx-lm", model, 0), PROMPT, Sampling(4), watch)
    assert passes == [PROMPT.size - 1, 1, 1, 1, 1]
    assert told == [2]


def test_the_head_computes_one_position():
    """All logits of the prompt would be more than all that the run takes."""
    model = loading.random_model(SMALL | {"vocab_size": 20_000}, 0, None)
    prompt = mx.arange(400, dtype=mx.uint32)
    mx.eval(prompt)
    before = mx.get_active_memory()
    generate(model, make_caches("mlx-lm", model, 0), prompt, Sampling(2), Watch(Peaks()))
    assert mx.get_peak_memory() - before < 400 * 20_000 * 4 / 2
