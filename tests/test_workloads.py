"""Sessions, repeated requests and batches: every token as in a single run, every part measured."""

import mlx.core as mx
import pytest
from test_model_types import TYPES
from test_models import SMALL

from kvpeak.base.errors import Unsupported
from kvpeak.experiment import workloads as planned
from kvpeak.experiment.config_file import ConfigError
from kvpeak.live import generation, loading, stock, workloads
from kvpeak.live.allocator import Peaks
from kvpeak.live.generation import Sampling, Watch
from kvpeak.live.kv_caches import make_caches
from kvpeak.live.workloads import Session, Turn

PROMPT = mx.array([(5 * i * i + 1) % 300 for i in range(60)], mx.uint32)
TURNS = [Turn(23, 7), Turn(11, 5), Turn(1, 6), Turn(25, 4)]
LOOPS = {"own": generation.generate, "stock": stock.generate}


@pytest.fixture(scope="module")
def model():
    return loading.random_model(SMALL, 0, None)


def session(model, kv_cache="mlx-lm", loop="own", chunk=None) -> Session:
    return Session(
        model,
        LOOPS[loop],
        lambda: make_caches(kv_cache, model, 100),
        Sampling(6),
        chunk,
        feeds_last=loop == "stock",
    )


def said(model, text: list[int], generate: int) -> list[int]:
    """The answer of one fresh run over a whole text."""
    prompt, caches = mx.array(text, mx.uint32), make_caches("mlx-lm", model, 0)
    return generation.generate(model, caches, prompt, Sampling(generate), Watch(Peaks())).tokens


def expected(model, with_answers: bool) -> list[list[int]]:
    """Each turn's answer, from a single run over all that was said before it."""
    text, answers, at = [], [], 0
    for turn in TURNS:
        text += PROMPT[at : at + turn.tokens].tolist()
        at += turn.tokens
        answers.append(said(model, text, turn.generate))
        text += answers[-1] if with_answers else []
    return answers


def nothing() -> None:
    pass


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize(
    ("kv_cache", "chunk"), [("cat", None), ("prealloc", None), ("mlx-lm", None), ("cat", 5)]
)
@pytest.mark.parametrize("keep", ["all", "none", "trim"])
def test_every_turn_answers_as_a_single_run_over_the_same_text(model, kv_cache, chunk, keep, loop):
    parts = workloads.turns(session(model, kv_cache, loop, chunk), PROMPT, TURNS, keep, nothing)
    assert [part.tokens for part in parts] == expected(model, with_answers=keep != "trim")


@pytest.mark.parametrize("loop", LOOPS)
def test_a_kept_cache_computes_the_new_tokens_alone(model, loop):
    parts = list(workloads.turns(session(model, loop=loop), PROMPT, TURNS, "all", nothing))
    last = 0 if loop == "stock" else 1  # our loop has not fed the answer's last token
    assert [part.prompt_tokens for part in parts] == [23, 11 + last, 1 + last, 25 + last]
    again = list(workloads.turns(session(model, loop=loop), PROMPT, TURNS, "none", nothing))
    assert [part.prompt_tokens for part in again] == [23, 41, 47, 78]


def test_a_cache_that_cannot_be_trimmed_is_named():
    model = loading.random_model(TYPES["granitemoehybrid"], 0, None)
    with pytest.raises(Unsupported, match=r"keep trim: a cache cannot be trimmed: .*ArraysCache"):
        list(workloads.turns(session(model), PROMPT, TURNS, "trim", nothing))


def test_requests_are_all_the_same_and_the_pool_does_not_grow_with_them(model):
    mx.clear_cache()
    mx.set_cache_limit(1 << 40)
    parts = list(workloads.requests(session(model, "cat"), PROMPT, 12, nothing))
    assert [part.turn for part in parts] == list(range(1, 13))
    assert len({part.tokens_sha256 for part in parts}) == 1
    assert parts[-1].held_pool_mib <= 1.05 * parts[3].held_pool_mib
    assert all(part.peak_active_mib <= part.peak_pool_mib for part in parts)


def test_the_run_of_a_session_sums_up_its_turns(model):
    workload = {"turns": [[turn.tokens, turn.generate] for turn in TURNS], "keep": "all"}
    told = []
    found, peaks = workloads.run(
        session(model), workload, PROMPT, lambda: told.append(1), compare=False
    )
    assert found["generated_tokens"] == 22
    assert found["decode_steps"] == 22 - 4
    assert found["prefill_s"] == sum(part["prefill_s"] for part in found["parts"])
    assert peaks["peak_pool_mib"] == max(part["peak_pool_mib"] for part in found["parts"])
    assert len(told) == 4


@pytest.mark.parametrize("size", [1, 2, 4])
def test_each_sequence_of_a_batch_answers_as_it_does_alone(model, size):
    prompts = PROMPT[: 15 * size].reshape(size, -1).tolist()
    parts, whole, _ = workloads.batch(session(model), prompts, nothing)
    assert [part.sequence for part in parts] == list(range(1, size + 1))
    assert [part.tokens for part in parts] == [said(model, prompt, 6) for prompt in prompts]
    assert workloads.differences(session(model), prompts, parts) == [None] * size
    assert whole["ttft_s"] > 0 and whole["decode_s"] > 0


def test_the_first_difference_of_a_sequence_is_found(model):
    prompts = PROMPT[:30].reshape(2, -1).tolist()
    parts, _, _ = workloads.batch(session(model), prompts, nothing)
    parts[1].tokens[3] += 1
    assert workloads.differences(session(model), prompts, parts) == [None, 3]


@pytest.mark.parametrize(
    ("workload", "kv_cache", "penalty", "message"),
    [
        ({"batch": 2}, "cat", 1, "kv_cache cat: a batch is mlx-lm's own"),
        ({"batch": 2}, "mlx-lm", 1.1, "are measured without a penalty"),
        ({"turns": [[3, 3]], "keep": "all"}, "cat", 1.1, "are measured without a penalty"),
    ],
)
def test_what_is_not_measured_says_why(workload, kv_cache, penalty, message):
    protocol = {"repeat_penalty": penalty, "repeat_window": 64}
    with pytest.raises(Unsupported, match=message):
        workloads.check(workload, kv_cache, protocol)
    workloads.check({"repeat": 5}, "cat", {"repeat_penalty": 1.1, "repeat_window": 64})


def test_an_entrys_tokens_are_all_that_is_cut():
    entry = {"corpus": "x", "turns": [{"tokens": 513, "generate": 64}, {"tokens": 128, "times": 3}]}
    found = planned.prompt_entry("m.yaml", "s", entry)
    assert (found["tokens"], found["keep"]) == (513 + 3 * 128, "all")
    assert planned.asked(found, 32) == {
        "workload": {"turns": [[513, 64], [128, 32], [128, 32], [128, 32]], "keep": "all"}
    }
    assert planned.longest(found, 32) == 513 + 64 + 3 * (128 + 32)
    batch = planned.prompt_entry("m.yaml", "b", {"tokens": 129, "batch": 8})
    assert (batch["tokens"], planned.longest(batch, 16)) == (8 * 129, 129 + 16)
    assert planned.asked({"tokens": 129}, 16) == {}


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"tokens": 9, "repeat": 3, "batch": 2}, "prompts.p: repeat and batch: expected one"),
        ({"tokens": 9, "keep": "all"}, "prompts.p.keep: is for turns"),
        ({"tokens": 9, "turns": [{"tokens": 3}]}, "prompts.p.tokens: a session's turns say"),
        ({"repeat": 3}, "prompts.p: key tokens is missing"),
    ],
)
def test_a_mistake_in_a_workload_is_one_line(entry, message):
    with pytest.raises(ConfigError, match=message):
        planned.prompt_entry("m.yaml", "p", entry)
