"""The engine candle-replay, as the runner starts it."""

import json
import subprocess
import sys
from pathlib import Path

import mlx.core as mx
import pytest

from kvpeak.base.numbers import MIB
from kvpeak.inputs.shapes import read_shapes, weight_tensors
from kvpeak.protocol.events import Conversation, parse_event
from kvpeak.replay.memory import DeviceMemory, HostMemory
from kvpeak.replay.weights import weights_bytes

ROOT = Path(__file__).parents[1]
PROGRAM = ROOT / "workflow/scripts/candle_replay.py"
SHAPES = {
    "model_type": "qwen2",
    "hidden_size": 256,
    "intermediate_size": 688,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 4096,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}


def start(folder: Path, cap="none", tokens=700, shapes=SHAPES, limits=None, **options):
    """Run the engine; returns its events, checked against the protocol, and its standard error."""
    (folder / "config.json").write_text(json.dumps(shapes))
    request = {
        "cell": {},
        "engine": "candle-replay",
        "model": {"name": "m", "folder": str(folder), "weights": "random"}
        | options.pop("model", {}),
        "prompt": {"name": "p", "tokens": tokens, "path": "none"},
        "kv_cache": options.pop("kv_cache", "cat"),
        "cap": cap,
        "options": options,
        "protocol": {"warmup": 1, "recorded": 2, "generate": 5},
        "limits": limits or {},
    }
    path = folder / "request.json"
    path.write_text(json.dumps(request))
    done = subprocess.run([sys.executable, PROGRAM, path], capture_output=True, timeout=120)
    conversation = Conversation(warmup=1, recorded=2)
    for line in done.stdout.splitlines():
        conversation.accept(parse_event(line))
    return done, conversation


@pytest.mark.parametrize("kv_cache", ["cat", "prealloc"])
@pytest.mark.parametrize("cap", ["none", "1x"])
def test_real_and_counted_agree_within_two_per_cent(tmp_path, kv_cache, cap):
    _, counted = start(tmp_path, cap, buffers="counted", kv_cache=kv_cache)
    _, real = start(tmp_path, cap, kv_cache=kv_cache)
    assert counted.first("loaded")["method"] == "replayed: counted"
    assert real.first("loaded")["method"] == "replayed: real"
    books, seen = counted.first("done"), real.first("done")
    assert seen["peak_pool_mib"] == books["peak_pool_mib"] > 20
    resident = seen["peak_rss_mib"] - seen["base_rss_mib"]
    assert resident == pytest.approx(books["peak_pool_mib"], rel=0.02)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_weights_that_are_converted_lie_in_rounded_buffers_beside_their_uploads(tmp_path, dtype):
    """Counted and real memory hold both: the sum of the parts, while the first prefill runs."""
    _, counted = start(tmp_path, "1x", buffers="counted", model={"dtype": dtype})
    _, real = start(tmp_path, "1x", model={"dtype": dtype})
    assert real.first("loaded")["dtype"] == dtype
    books, seen = counted.first("done"), real.first("done")
    assert seen["peak_pool_mib"] == books["peak_pool_mib"]
    resident = seen["peak_rss_mib"] - seen["base_rss_mib"]
    assert resident == pytest.approx(books["peak_pool_mib"], rel=0.02)
    shapes = read_shapes(SHAPES, "here", dtype)
    assert counted.first("loaded")["loaded_mib"] > weights_bytes(shapes) / MIB
    assert weights_bytes(shapes) > sum(weight_tensors(shapes))


def test_a_replay_has_runs_but_no_speed_and_says_who_holds_what(tmp_path):
    done, conversation = start(tmp_path, buffers="counted")
    assert (done.returncode, done.stderr) == (0, b"")
    assert conversation.complete
    assert [run["warmup"] for run in conversation.runs] == [True, False, False]
    for run in conversation.runs:
        assert run["prefill_s"] is run["ttft_s"] is run["decode_s"] is run["tokens_sha256"] is None
        assert (run["prompt_tokens"], run["generated_tokens"]) == (700, 5)
    last = conversation.first("done")
    assert last["peak_pool_mib"] == max(run["peak_pool_mib"] for run in conversation.runs)
    assert [layer[0] for layer in last["layers"]] == [0, 1, 2, 3]
    assert {capture[0] for capture in last["captures"]} >= {"k_cache", "v_cache"}
    assert last["predicted_footprint_mib"] > last["peak_pool_mib"]


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_the_type_that_is_recorded_is_the_model_s_own(tmp_path, dtype):
    _, conversation = start(tmp_path, shapes=SHAPES | {"torch_dtype": dtype}, buffers="counted")
    assert conversation.first("loaded")["dtype"] == dtype


def test_a_cap_lowers_the_peak_and_is_a_number_of_classes(tmp_path):
    peaks = {
        cap: start(tmp_path, cap, buffers="counted")[1].first("done")["peak_pool_mib"]
        for cap in ("none", "1024x", "1x")
    }
    assert peaks["1x"] < peaks["none"] == peaks["1024x"]


def test_what_the_guard_would_stop_is_only_counted(tmp_path):
    done, conversation = start(tmp_path, limits={"guard_fraction": 1e-6})
    assert conversation.first("loaded")["method"] == "replayed: counted"
    assert b"only counting: " in done.stderr
    assert conversation.complete


@pytest.mark.parametrize(
    ("keys", "detail"),
    [
        ({"cap": "3x"}, "cap 3x: expected none, 1x, 2x, 4x or another power of two"),
        ({"cap": "64MiB"}, "cap 64MiB: expected none"),
        ({"kv_cache": "rotating-64"}, "kv_cache rotating-64: expected one of cat"),
        ({"attention": "flash"}, "attention flash: expected one of naive, fused"),
        ({"buffers": "some"}, "buffers some: expected one of real, counted"),
    ],
)
def test_what_candle_does_not_have_is_unsupported(tmp_path, keys, detail):
    done, conversation = start(tmp_path, **keys)
    outcome = conversation.first("outcome")
    assert outcome["outcome"] == "unsupported"
    assert outcome["detail"].startswith(detail)
    assert done.returncode == 0


def test_a_model_without_a_trace_is_one_line(tmp_path):
    done, _ = start(tmp_path, shapes=SHAPES | {"model_type": "gpt2"})
    assert done.returncode == 1
    assert done.stderr.decode() == (
        f"candle_replay: {tmp_path}/config.json: model_type: 'gpt2': "
        "expected one of qwen2, llama, which the replay has traces for\n"
    )


def test_device_memory_is_what_the_pool_has_made():
    mx.set_default_device(mx.cpu)
    before = mx.set_cache_limit(0)
    start = mx.get_active_memory()
    memory = DeviceMemory()
    assert memory.available_mib() > 0
    for size in (1 << 20, 1 << 20, 3 << 20):
        memory.make(0, size)
    assert mx.get_active_memory() - start == 5 << 20
    memory.drop(0, 3 << 20)
    memory.make(0, 2 << 20)
    assert mx.get_active_memory() - start == 4 << 20
    assert mx.get_cache_memory() == 0
    del memory
    mx.set_cache_limit(before)


def test_a_spare_mapping_serves_again_and_never_raises_the_most():
    class Counting(HostMemory):
        mapped = 0

        def allocate(self, size):
            self.mapped += 1
            return super().allocate(size)

    memory = Counting()
    for _ in range(3):
        memory.make(0, 8192)
        memory.drop(0, 8192)
    assert memory.mapped == 1
    memory.make(0, 4096)
    memory.make(0, 4096)
    assert memory.mapped == 3
    assert memory._spare_bytes == 0
