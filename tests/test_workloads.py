"""Sessions, repeated requests and batches: every token as in a single run, every part measured."""

from pathlib import Path

import mlx.core as mx
import pytest
from test_model_types import TYPES
from test_models import SMALL

from kvpeak.base.errors import Unsupported
from kvpeak.base.numbers import MIB
from kvpeak.experiment import workloads as planned
from kvpeak.experiment.config_file import ConfigError
from kvpeak.live import batch, generation, loading, running, shared_prefix, stock, workloads
from kvpeak.live.allocator import Peaks
from kvpeak.live.generation import Sampling, Watch
from kvpeak.live.kv_caches import make_caches
from kvpeak.live.running import Marks, Session
from kvpeak.live.workloads import Turn
from kvpeak.protocol.parts import digest

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


QUIET = Marks()


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize(
    ("kv_cache", "chunk"), [("cat", None), ("prealloc", None), ("mlx-lm", None), ("cat", 5)]
)
@pytest.mark.parametrize("keep", ["all", "none", "trim"])
def test_every_turn_answers_as_a_single_run_over_the_same_text(model, kv_cache, chunk, keep, loop):
    parts = workloads.turns(session(model, kv_cache, loop, chunk), PROMPT, TURNS, keep, QUIET)
    assert [part.tokens for part in parts] == expected(model, with_answers=keep != "trim")


@pytest.mark.parametrize("loop", LOOPS)
def test_a_kept_cache_computes_the_new_tokens_alone(model, loop):
    parts = list(workloads.turns(session(model, loop=loop), PROMPT, TURNS, "all", QUIET))
    last = 0 if loop == "stock" else 1  # our loop has not fed the answer's last token
    assert [part.prompt_tokens for part in parts] == [23, 11 + last, 1 + last, 25 + last]
    again = list(workloads.turns(session(model, loop=loop), PROMPT, TURNS, "none", QUIET))
    assert [part.prompt_tokens for part in again] == [23, 41, 47, 78]


def test_a_cache_that_cannot_be_trimmed_is_named():
    model = loading.random_model(TYPES["granitemoehybrid"], 0, None)
    with pytest.raises(Unsupported, match=r"^a cache cannot be trimmed: .*ArraysCache"):
        list(workloads.turns(session(model), PROMPT, TURNS, "trim", QUIET))


def test_requests_are_all_the_same_and_the_pool_does_not_grow_with_them(model):
    mx.clear_cache()
    mx.set_cache_limit(1 << 40)
    parts = list(workloads.requests(session(model, "cat"), PROMPT, 12, QUIET))
    assert [part.turn for part in parts] == list(range(1, 13))
    assert len({part.tokens_sha256 for part in parts}) == 1
    assert parts[-1].held_pool_mib <= 1.05 * parts[3].held_pool_mib
    assert all(part.peak_active_mib <= part.peak_pool_mib for part in parts)


def test_the_run_of_a_session_sums_up_its_turns(model):
    workload = {"turns": [[turn.tokens, turn.generate] for turn in TURNS], "keep": "all"}
    told = []
    marks = Marks(told.append, lambda: told.append("first"))
    found, peaks, _ = workloads.run(session(model), workload, PROMPT, Path(), marks)
    assert found["generated_tokens"] == 22
    assert found["decode_steps"] == 22 - 4
    assert found["prefill_s"] == sum(part["prefill_s"] for part in found["parts"])
    assert peaks["peak_pool_mib"] == max(part["peak_pool_mib"] for part in found["parts"])
    assert told == [1, "first", 2, "first", 3, "first", 4, "first"]


@pytest.mark.parametrize("size", [1, 2, 4])
def test_each_sequence_of_a_batch_answers_as_it_does_alone(model, size):
    prompts = PROMPT[: 15 * size].reshape(size, -1).tolist()
    parts, whole, _ = batch.batch(session(model), prompts, nothing)
    assert [part.sequence for part in parts] == list(range(1, size + 1))
    assert [part.tokens for part in parts] == [said(model, prompt, 6) for prompt in prompts]
    assert batch.differences(session(model), prompts, parts) == [None] * size
    assert whole["ttft_s"] > 0 and whole["decode_s"] > 0


def test_the_first_difference_of_a_sequence_is_found(model):
    prompts = PROMPT[:30].reshape(2, -1).tolist()
    parts, _, _ = batch.batch(session(model), prompts, nothing)
    parts[1].tokens[3] += 1
    assert batch.differences(session(model), prompts, parts) == [None, 3]


def test_sequences_of_given_lengths_answer_as_they_do_alone(model):
    workload = {"batch": [31, 5, 17]}
    asked = session(model)
    found, _, answers = workloads.run(asked, workload, PROMPT[:53], Path(), QUIET)
    assert [part["prompt_tokens"] for part in found["parts"]] == [31, 5, 17]
    compared = workloads.compare(asked, workload, PROMPT[:53], answers)
    assert compared == {"first_differences": [None] * 3}
    ids = PROMPT.tolist()
    alone = [said(model, text, 6) for text in (ids[:31], ids[31:36], ids[36:53])]
    assert [part["tokens_sha256"] for part in found["parts"]] == [*map(digest, alone)]


SHARED, OWN = 20, 9


def reusing(model, folder, loop, kv_cache="mlx-lm", chunk=None):
    asked = session(model, kv_cache, loop, chunk)
    prompt = PROMPT[: SHARED + 2 * OWN]
    return shared_prefix.shared_prefix(asked, prompt, SHARED, folder, QUIET)


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("chunk", [None, 7])
def test_a_second_prompt_on_the_firsts_cache_answers_as_it_does_alone(model, tmp_path, loop, chunk):
    found, differences = reusing(model, tmp_path, loop, chunk=chunk)
    ids = PROMPT.tolist()
    first = said(model, ids[: SHARED + OWN], 6)
    second = said(model, ids[:SHARED] + ids[SHARED + OWN : SHARED + 2 * OWN], 6)
    assert [part.tokens for part in found] == [first, second, second, second]
    assert first != second
    assert differences == [None] * 4
    assert [part.prompt_tokens for part in found] == [SHARED + OWN, OWN, OWN, SHARED + OWN]
    assert [part.reuse.reused_tokens for part in found] == [0, SHARED, SHARED, 0]
    assert not list(tmp_path.iterdir())


def test_a_saved_cache_has_its_bytes_in_a_file_and_in_memory(model, tmp_path):
    found, _ = reusing(model, tmp_path, "stock")
    kept, loaded = (part.reuse for part in found[1:3])
    config = model.args
    head = config.hidden_size // config.num_attention_heads
    token = 2 * 4 * config.num_hidden_layers * config.num_key_value_heads * head
    least = SHARED * token / MIB  # of float32 keys and values
    assert kept.cache_mib >= least and loaded.cache_mib >= least
    assert loaded.cache_file_mib >= least
    assert loaded.cache_load_peak_mib >= least
    assert loaded.cache_load_s > 0
    assert (kept.cache_file_mib, found[3].reuse.cache_mib) == (None, None)


def test_an_answer_on_a_wrong_cache_is_found(model, tmp_path, monkeypatch):
    """The loaded cache is one token short of what it says."""
    load = shared_prefix.load

    def short(file, shared):
        caches, found = load(file, shared)
        running.trim(caches, 1)
        return caches, found

    monkeypatch.setattr(shared_prefix, "load", short)
    found, differences = reusing(model, tmp_path, "own")
    assert differences[:2] == [None, None]
    place = differences[2]
    assert found[2].tokens[:place] == found[3].tokens[:place]
    assert found[2].tokens[place] != found[3].tokens[place]


def test_a_window_that_is_full_cannot_be_shared(model, tmp_path):
    with pytest.raises(Unsupported, match=r"cannot be trimmed: .*RotatingKVCache"):
        reusing(model, tmp_path, "own", kv_cache="rotating-16")


@pytest.mark.parametrize(
    ("workload", "kv_cache", "penalty", "message"),
    [
        ({"batch": 2}, "cat", 1, "kv_cache cat: a batch is mlx-lm's own"),
        ({"batch": 2}, "mlx-lm", 1.1, "are measured without a penalty"),
        ({"turns": [[3, 3]], "keep": "all"}, "cat", 1.1, "are measured without a penalty"),
        ({"shared_prefix": 3}, "mlx-lm", 1.1, "are measured without a penalty"),
        ({"shared_prefix": 3}, "prealloc", 1, "kv_cache prealloc: mlx-lm saves and loads its own"),
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
    lengths = planned.prompt_entry("m.yaml", "b", {"batch": [513, 257, 129]})
    assert (lengths["tokens"], planned.longest(lengths, 16)) == (899, 513 + 16)
    assert planned.asked(lengths, 16) == {"workload": {"batch": [513, 257, 129]}}
    shared = planned.prompt_entry("m.yaml", "s", {"tokens": 1025, "shared_prefix": 512})
    assert (shared["tokens"], planned.longest(shared, 16)) == (512 + 2 * 513, 1025 + 16)
    assert planned.asked(shared, 16) == {"workload": {"shared_prefix": 512}}


def entry_of(**given) -> dict:
    return planned.prompt_entry("m.yaml", "p", {"corpus": "x"} | given)


@pytest.mark.parametrize(
    ("given", "name", "words"),
    [
        ({"tokens": 129}, "", ""),
        ({"turns": [{"tokens": 9, "times": 40}]}, "turns 40", "a session of 40 turns"),
        ({"turns": [{"tokens": 9}]}, "turns 1", "a session of 1 turn"),
        ({"tokens": 65, "repeat": 2000}, "repeat 2000", "2,000 requests"),
        ({"tokens": 65, "batch": 8}, "batch 8", "a batch of 8 sequences"),
        ({"batch": [513, 257]}, "batch 2", "a batch of 2 sequences"),
        ({"tokens": 65, "batch": 1}, "batch 1", "a batch of 1 sequence"),
        (
            {"tokens": 1025, "shared_prefix": 512},
            "shared_prefix 512",
            "two prompts that share 512 tokens",
        ),
    ],
)
def test_a_prompt_has_a_name_and_words_for_what_it_is(given, name, words):
    entry = entry_of(**given)
    assert planned.name_of(entry) == name
    assert planned.spell(name) == words
    assert planned.name_of(planned.asked(entry, 16).get("workload", {})) == name


def test_repeated_requests_say_how_long_each_is():
    assert planned.spell("repeat 200", 13_000) == "200 requests of 65 tokens"


def test_what_is_no_name_is_left_as_it_is():
    for name in ("", "batch", "batch 0", "batch ²", "dance 3", "repeat 9999999999"):
        assert planned.spell(name, 9) == name


def test_only_a_prompt_of_the_same_kind_is_shorter():
    batch, more = entry_of(tokens=65, batch=8), entry_of(tokens=65, batch=16)
    assert planned.is_shorter(batch, more)
    assert not planned.is_shorter(more, batch)
    assert not planned.is_shorter(batch, entry_of(tokens=2049))
    assert not planned.is_shorter(entry_of(tokens=513), more)
    assert not planned.is_shorter(entry_of(tokens=513, batch=1), more)  # its sequence is longer
    assert planned.is_shorter(entry_of(tokens=9), entry_of(tokens=10))


def test_a_trimmed_session_holds_no_answers_but_the_last():
    turns = [{"tokens": 100, "generate": 50}, {"tokens": 10, "generate": 20, "times": 2}]
    assert planned.longest(entry_of(turns=turns), 16) == 210
    assert planned.longest(entry_of(turns=turns, keep="none"), 16) == 210
    assert planned.longest(entry_of(turns=turns, keep="trim"), 16) == 150


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"tokens": 9, "repeat": 3, "batch": 2}, "prompts.p: repeat and batch: expected one"),
        ({"tokens": 9, "keep": "all"}, "prompts.p.keep: is for turns"),
        ({"tokens": 9, "turns": [{"tokens": 3}]}, "prompts.p.tokens: a session's turns say it"),
        ({"repeat": 3}, "prompts.p: key tokens is missing"),
        ({"batch": 3}, "prompts.p: key tokens is missing"),
        ({"tokens": 9, "batch": [3, 4]}, "prompts.p.tokens: a batch's lengths say it; leave it"),
        ({"tokens": 9, "shared_prefix": 9}, "prompts.p.shared_prefix: 9: expected fewer than the"),
    ],
)
def test_a_mistake_in_a_workload_is_one_line(entry, message):
    with pytest.raises(ConfigError, match=message):
        planned.prompt_entry("m.yaml", "p", entry)
