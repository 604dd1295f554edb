"""mistral.rs itself, two releases with different Candles, on the real GGUF and on a small
safetensors model.
"""

import json
import shutil
import subprocess
from pathlib import Path

import mlx.core as mx
import pytest
from mlx.utils import tree_flatten
from test_models import SMALL
from test_smollm2 import folder  # noqa: F401  (the fixture)

from kvpeak.environments.build import build
from kvpeak.environments.resolve import resolve
from kvpeak.inputs.model_folder import describe_files
from kvpeak.live import loading
from kvpeak.live.allocator import Peaks
from kvpeak.live.generation import Sampling, Watch, generate
from kvpeak.live.kv_caches import make_caches
from kvpeak.mistral.versions import candle_inside
from kvpeak.protocol.events import Conversation, parse_event

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[1]
PROGRAM = ROOT / "workflow/scripts/mistralrs_engine.py"
TOKENS, GENERATE = 24, 6


@pytest.fixture(scope="module", params=["0.8.9", "0.9.2"])
def release(request, tmp_path_factory) -> tuple[str, Path]:
    """A release, and the interpreter of an environment that holds it."""
    made = tmp_path_factory.mktemp("envs") / f"mistralrs-{request.param}"
    return request.param, build(made, resolve({"mistralrs": request.param}))


def run(python: Path, model: Path, at: Path, **changes) -> Conversation:
    """Run the engine on the corpus's first tokens; returns its events, checked against the
    protocol.
    """
    from kvpeak.inputs.prompts import corpus_tokens

    ids = corpus_tokens(ROOT / "prompts/alice.txt", model / "tokenizer.json", 0)[:TOKENS]
    (at / "prompt.json").write_text(json.dumps({"tokens": ids}))
    request = {
        "model": {"folder": str(model), "weights": "real", "dtype": "float32"},
        "prompt": {"tokens": TOKENS, "path": str(at / "prompt.json")},
        "kv_cache": "own",
        "cap": "none",
        "options": {"attention": "fused", "prefill_chunk": "whole"},
        "protocol": {
            **{"warmup": 1, "recorded": 1, "generate": GENERATE, "ignore_eos": True},
            **{"repeat_penalty": 1.0, "repeat_window": 64},
        },
    } | changes
    (at / "request.json").write_text(json.dumps(request))
    done = subprocess.run(
        [python, PROGRAM, at / "request.json"], capture_output=True, text=True, timeout=540
    )
    assert done.returncode == 0, done.stderr[-2000:]
    conversation = Conversation(warmup=1, recorded=1)
    for line in done.stdout.splitlines():
        conversation.accept(parse_event(line.encode()))
    return conversation


def test_the_real_gguf_answers_in_the_protocols_events(release, folder, tmp_path):  # noqa: F811
    version, python = release
    conversation = run(python, folder, tmp_path)
    assert conversation.complete
    assert conversation.first("started")["candle"]["revision"] == candle_inside(version).revision
    first, second = conversation.runs
    assert (first["prompt_tokens"], first["generated_tokens"]) == (TOKENS, GENERATE)
    assert (first["tokens_from"], second["tokens_from"]) == ("engine", "text")
    assert first["tokens"] == second["tokens"]
    assert len(first["tokens"]) == GENERATE
    for each in (first, second):
        assert each["usage"]["total_prompt_time_sec"] == each["prefill_s"] > 0
        assert each["stream"]["last_s"] - each["stream"]["first_s"] == each["decode_s"] > 0
    # the weights are 94 MiB, and they are in the process
    assert conversation.first("done")["peak_rss_mib"] > 100


def test_float32_weights_give_the_tokens_of_mlx(release, folder, tmp_path):  # noqa: F811
    """The same small model in two engines: nothing is quantised, so the answers are the same."""
    _, python = release
    config = SMALL | {
        **{"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_act": "silu"},
        **{"vocab_size": 49152, "tie_word_embeddings": False, "eos_token_id": 2},
    }
    model = loading.random_model(config, 0, None)
    made = tmp_path / "model"
    made.mkdir()
    weights = dict(tree_flatten(model.parameters()))
    mx.save_safetensors(str(made / "model.safetensors"), weights, metadata={"format": "pt"})
    (made / "config.json").write_text(json.dumps(config))
    shutil.copy(folder / "tokenizer.json", made)
    names = [file.name for file in made.iterdir()]
    (made / "model.json").write_text(json.dumps({"files": describe_files(made, names)}))
    tokens = run(python, made, tmp_path).runs[-1]["tokens"]
    prompt = mx.array(json.loads((tmp_path / "prompt.json").read_text())["tokens"], mx.uint32)
    ours = generate(
        model, make_caches("mlx-lm", model, 0), prompt, Sampling(GENERATE), Watch(Peaks())
    )
    assert tokens == ours.tokens
    assert len(set(tokens)) > 1


def session(python: Path, model: Path, at: Path, keep: str) -> list[dict]:
    """The turns of one session: 12, 6 and 6 tokens of the prompt, four generated after each."""
    at.mkdir()
    workload = {"turns": [[12, 4], [6, 4], [6, 4]], "keep": keep}
    prompt = {"tokens": TOKENS, "path": str(at / "prompt.json"), "workload": workload}
    protocol = {"warmup": 1, "recorded": 1, "generate": 4, "ignore_eos": True}
    protocol |= {"repeat_penalty": 1.0, "repeat_window": 64}
    conversation = run(python, model, at, prompt=prompt, protocol=protocol)
    started = [event for event in conversation.events if event["event"] == "turn_started"]
    assert [event["turn"] for event in started] == 2 * [1, 2, 3]
    return conversation.runs[0]["parts"]


def test_a_kept_session_answers_the_same_and_holds_what_it_keeps(release, folder, tmp_path):  # noqa: F811
    _, python = release
    kept, thrown = (session(python, folder, tmp_path / keep, keep) for keep in ("all", "none"))
    assert [part["tokens_sha256"] for part in kept] == [part["tokens_sha256"] for part in thrown]
    assert None not in [part["tokens_sha256"] for part in kept]
    counts = [part["prompt_tokens"] for part in kept]
    assert counts == [part["prompt_tokens"] for part in thrown]
    assert counts[0] == 12 and counts == sorted(set(counts))
    grown = [parts[-1]["held_rss_mib"] - parts[0]["held_rss_mib"] for parts in (kept, thrown)]
    assert grown[0] > grown[1] + 8  # MiB; each kept sequence has a cache of 512 tokens


def test_the_wheel_was_built_with_the_candle_of_the_table(release):
    version, python = release
    (library,) = (python.parents[1] / "lib").glob("python*/site-packages/mistralrs/*.so")
    assert f"/{candle_inside(version).revision}/".encode() in library.read_bytes()


def test_a_penalty_over_a_moving_window_is_unsupported(release, folder, tmp_path):  # noqa: F811
    _, python = release
    protocol = {
        **{"warmup": 1, "recorded": 1, "generate": GENERATE, "ignore_eos": True},
        **{"repeat_penalty": 1.1, "repeat_window": 4},
    }
    conversation = run(python, folder, tmp_path, protocol=protocol)
    assert conversation.answer()[0] == "unsupported"
    assert "whole text" in conversation.answer()[1]
