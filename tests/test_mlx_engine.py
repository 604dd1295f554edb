"""The MLX engine as the runner starts it: a process of its own that answers a request with
events.
"""

import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from kvpeak.base.errors import Unsupported
from kvpeak.base.numbers import MIB
from kvpeak.live import allocator, session
from kvpeak.protocol.events import Conversation, parse_event
from kvpeak.system import host

ROOT = Path(__file__).parents[1]
ENGINE = ROOT / "workflow/scripts/mlx_engine.py"
TINY = json.loads((ROOT / "config/models/qwen2-tiny.json").read_text())
PROMPT, GENERATE = 193, 48
ON_CPU = host.accelerator() == "cpu"
same_rounding = pytest.mark.skipif(not ON_CPU, reason="a GPU's kernels round by shape")


class Engine:
    """Runs the engine in a folder with the tiny model, whose untied random weights do not repeat
    themselves.
    """

    def __init__(self, folder: Path):
        self.folder = folder
        self.write("model/config.json", TINY)
        self.write("prompt.json", {"tokens": [(11 * i * i + 7) % 4096 for i in range(PROMPT)]})

    def write(self, name: str, value: dict) -> None:
        path = self.folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(value))

    def start(
        self, protocol=None, options=None, model=None, **request
    ) -> subprocess.CompletedProcess:
        whole = {
            "engine": "mlx",
            "model": {"folder": "model", "weights": "random", "dtype": "float32"} | (model or {}),
            "prompt": {"name": "squares", "tokens": PROMPT, "path": "prompt.json"},
            "kv_cache": "cat",
            "cap": "none",
            "options": {"attention": "naive", "prefill_chunk": "whole"} | (options or {}),
            "protocol": {
                "warmup": 0,
                "recorded": 1,
                "generate": GENERATE,
                "ignore_eos": True,
                "repeat_penalty": 1.1,
                "repeat_window": 64,
                "seed": 0,
            }
            | (protocol or {}),
        } | request
        self.write("request.json", whole)
        return subprocess.run(
            [sys.executable, ENGINE, "request.json"],
            cwd=self.folder,
            env={"OPENBLAS_NUM_THREADS": "1"} | os.environ,  # other tests have the other cores
            capture_output=True,
            text=True,
            preexec_fn=limit_memory,
        )

    def events(self, **request) -> dict[str, dict]:
        """The events by name, of each name the last."""
        done = self.start(**request)
        assert done.returncode == 0, done.stderr
        return {event["event"]: event for event in map(json.loads, done.stdout.splitlines())}


def limit_memory() -> None:
    """On a CPU an allocation that is too large fails here, whatever the system would promise."""
    if ON_CPU and sys.platform == "linux":
        resource.setrlimit(resource.RLIMIT_AS, (64 * 2**30, 64 * 2**30))


@pytest.fixture(scope="module")
def engine(tmp_path_factory) -> Engine:
    return Engine(tmp_path_factory.mktemp("engine"))


@pytest.fixture(scope="module")
def cells(engine) -> dict[tuple[str, str], dict[str, dict]]:
    """Three caches without a cap and with one, and mlx-lm's own: their events."""
    names = [
        (cache, cap) for cache in ("cat", "cat-contiguous", "prealloc") for cap in ("none", "2MiB")
    ]
    return {
        (cache, cap): engine.events(kv_cache=cache, cap=cap)
        for cache, cap in [("mlx-lm", "none"), *names]
    }


def test_every_cache_gives_the_tokens_of_mlx_lms_own_with_and_without_a_cap(cells):
    tokens = {name: events["run"]["tokens"] for name, events in cells.items()}
    expected = tokens["mlx-lm", "none"]
    assert len(set(expected)) > 0.9 * GENERATE  # a model that repeats itself would prove nothing
    assert tokens == dict.fromkeys(tokens, expected)
    assert len({events["run"]["tokens_sha256"] for events in cells.values()}) == 1


def test_without_a_cap_the_pool_grows_with_cat_as_predicted(cells):
    """Each step frees keys and values of all tokens so far, and no later request is small enough
    for them.
    """
    token_bytes = 2 * TINY["num_hidden_layers"] * TINY["hidden_size"] * 4
    predicted = sum(token_bytes * (PROMPT + step) for step in range(GENERATE)) / MIB
    pool = {name: events["done"]["peak_pool_mib"] for name, events in cells.items()}
    grown = pool["cat", "none"] - pool["prealloc", "none"]
    assert grown == pytest.approx(predicted, rel=0.1)


def test_with_a_cap_the_caches_keep_the_same_pool(cells):
    pools = [events["done"]["peak_pool_mib"] for (_, cap), events in cells.items() if cap == "2MiB"]
    assert max(pools) < 1.1 * min(pools)


def test_the_cap_is_read_back(cells, engine):
    assert cells["cat", "2MiB"]["started"]["cap_bytes"] == 2 * MIB
    assert cells["cat", "none"]["started"]["cap_bytes"] == allocator.NO_LIMIT
    empty = engine.events(cap="0")
    assert empty["started"]["cap_bytes"] == 0
    assert empty["done"]["peak_pool_mib"] == empty["done"]["peak_active_mib"]


@pytest.fixture(scope="module")
def stock(engine) -> dict[str, dict]:
    """What people run: mlx-lm's loop and cache, fused attention, the limit as MLX sets it."""
    options = {"loop": "mlx-lm", "attention": "fused", "prefill_chunk": 2048}
    return engine.events(kv_cache="mlx-lm", cap="default", options=options)


def test_the_default_limit_is_read_back_and_left_as_it_was(engine, stock):
    done = engine.events(kv_cache="mlx-lm", cap="default", protocol={"generate": 2})
    for events in (stock, done):
        assert events["started"]["cap_bytes"] == set_cache_limit_of_a_fresh_process()


def set_cache_limit_of_a_fresh_process() -> int:
    program = "import mlx.core as mx; print(mx.set_cache_limit(0))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    return int(done.stdout)


def test_stock_gives_the_laboratorys_tokens_and_leaves_out_what_nobody_sees(stock, cells):
    run = stock["run"]
    assert run["tokens"] == cells["mlx-lm", "none"]["run"]["tokens"]
    assert run["prefill_s"] is None
    assert run["ttft_s"] > 0 and run["decode_s"] > 0
    assert (stock["loaded"]["loop"], cells["cat", "none"]["loaded"]["loop"]) == ("mlx-lm", "own")
    assert stock["loaded"]["loop_mib"] > 0


def test_the_answer_is_one_the_runner_takes(engine):
    conversation = Conversation(warmup=1, recorded=2)
    done = engine.start(protocol={"warmup": 1, "recorded": 2, "generate": 4})
    for line in done.stdout.encode().splitlines():
        conversation.accept(parse_event(line))
    assert conversation.complete
    assert [run["warmup"] for run in conversation.runs] == [True, False, False]
    assert len({run["tokens_sha256"] for run in conversation.runs}) == 1


def test_the_counters_belong_together(cells):
    for events in cells.values():
        run, done = events["run"], events["done"]
        assert events["loaded"]["loaded_mib"] <= run["peak_active_mib"] <= run["peak_pool_mib"]
        assert run["peak_pool_mib"] <= done["peak_pool_mib"] <= done["peak_rss_mib"]
        assert (run["prompt_tokens"], run["generated_tokens"]) == (PROMPT, GENERATE)
        assert run["prefill_s"] <= run["ttft_s"]


def test_started_and_loaded_say_what_served(cells):
    events = cells["cat", "none"]
    assert events["started"]["versions"].keys() == {"mlx", "mlx-lm"}
    assert events["started"]["wheel"].split("-")[-1].startswith(("manylinux", "macosx"))
    assert events["started"]["device"]["accelerator"] in ("cpu", "metal", "cuda")
    if events["started"]["device"]["accelerator"] == "cpu":
        assert "BLAS" in events["started"]["blas"] or events["started"]["blas"] == "Accelerate"
    assert (events["loaded"]["dtype"], events["loaded"]["attention"]) == ("float32", "naive")


@same_rounding
def test_prefill_in_chunks_gives_the_same_tokens(cells, engine):
    chunked = engine.events(options={"prefill_chunk": 50})
    assert chunked["run"]["tokens"] == cells["cat", "none"]["run"]["tokens"]


@same_rounding
def test_fused_attention_gives_the_same_tokens(cells, engine):
    fused = engine.events(options={"attention": "fused"})
    assert fused["loaded"]["attention"] == "fused"
    assert fused["run"]["tokens"] == cells["cat", "none"]["run"]["tokens"]


def test_attention_of_the_models_own_is_reported(engine):
    engine.write(
        "gemma2/config.json",
        TINY
        | {
            "model_type": "gemma2",
            "num_hidden_layers": 2,
            "head_dim": 64,
            "query_pre_attn_scalar": 64,
        },
    )
    events = engine.events(model={"folder": "gemma2"}, protocol={"generate": 2})
    assert events["loaded"]["attention"] == "own"


def test_the_dtype_is_the_caches(engine):
    events = engine.events(
        model={"dtype": "bfloat16"}, protocol={"generate": 2}, kv_cache="quantized-8"
    )
    assert events["loaded"]["dtype"] == "bfloat16"


def test_the_end_of_a_text_stops_unless_it_is_ignored(cells, engine):
    tokens = cells["cat", "none"]["run"]["tokens"]
    engine.write("ends/config.json", TINY | {"eos_token_id": [tokens[9], 1]})
    stopped = engine.events(model={"folder": "ends"}, protocol={"ignore_eos": False})["run"]
    assert stopped["tokens"] == tokens[: tokens.index(tokens[9]) + 1]
    assert stopped["generated_tokens"] == len(stopped["tokens"])


def test_what_cannot_be_allocated_is_the_outcome_oom(engine):
    events = engine.events(kv_cache="prealloc", protocol={"generate": 2 * 10**9})
    assert events["outcome"]["outcome"] == "oom"
    assert list(events)[-1] == "outcome"


@pytest.mark.parametrize(
    ("request_", "detail"),
    [
        (
            {"cap": "4x"},
            "cap 4x: MLX limits its pool in bytes; expected default, none, 0 or a size",
        ),
        ({"kv_cache": "paged"}, "kv_cache paged: expected cat, cat-contiguous, prealloc, mlx-lm, "),
        ({"options": {"loop": "vllm"}}, "loop vllm: expected own or mlx-lm"),
        ({"options": {"attention": "flash"}}, "attention flash: expected naive or fused"),
        (
            {"kv_cache": "cat", "model": {"folder": "mamba"}},
            "kv_cache cat: takes the place of a model's plain KV caches, and this one has none: "
            "layers",
        ),
        (
            {"kv_cache": "quantized-4", "model": {"folder": "narrow"}},
            "kv_cache quantized-4: layer 0 (QuantizedKVCache): the model cannot",
        ),
    ],
)
def test_what_the_engine_does_not_have_is_the_outcome_unsupported(engine, request_, detail):
    engine.write(
        "mamba/config.json",
        TINY
        | {
            "model_type": "mamba",
            "state_size": 8,
            "conv_kernel": 4,
            "use_bias": False,
            "use_conv_bias": True,
            "time_step_rank": 4,
        },
    )
    engine.write("narrow/config.json", TINY | {"num_attention_heads": 8, "num_key_value_heads": 8})
    done = engine.start(**request_)
    outcome = json.loads(done.stdout.splitlines()[-1])
    assert (done.returncode, outcome["event"], outcome["outcome"]) == (0, "outcome", "unsupported")
    assert outcome["detail"].startswith(detail)
    assert "\n" not in outcome["detail"]


def test_a_cap_that_mlx_ignores_is_unsupported(monkeypatch):
    """As with MLX 0.31.2 on the CPU, which has no pool: without a cap there is nothing to
    honour.
    """
    monkeypatch.setattr(allocator.mx, "set_cache_limit", lambda _: 0)
    events = []
    session.start("none", "", lambda name, **keys: events.append(keys))
    with pytest.raises(Unsupported, match="cap 2MiB: this MLX keeps no pool"):
        session.start("2MiB", "", lambda name, **keys: events.append(keys))
    assert [event["cap_bytes"] for event in events] == [None, None]


def test_nothing_but_events_reaches_standard_output():
    program = """
import os
from kvpeak.protocol.emit import take_stdout
emit = take_stdout()
print("from a library")
os.system("echo from a child")
os.write(1, b"from C")
emit("prefilled", run=0)
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | {"PYTHONPATH": str(ENGINE.parent)},
        capture_output=True,
        text=True,
    )
    assert done.stdout == '{"event": "prefilled", "run": 0}\n'
    assert all(f"from {who}" in done.stderr for who in ("a library", "a child", "C"))


def test_the_engine_imports_nothing_that_a_cell_does_not_need(engine):
    engine.start(protocol={"generate": 2})
    program = """
import sys, mlx_engine
sys.argv = ["mlx_engine", "request.json"]
mlx_engine.main()
unwanted = {"pandas", "snakemake", "transformers", "numpy", "yaml"} & set(sys.modules)
sys.exit(", ".join(unwanted) or 0)
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=engine.folder,
        env=os.environ | {"PYTHONPATH": str(ENGINE.parent)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        ({"model": {"folder": "nowhere"}}, "nowhere/config.json: not found"),
        ({"prompt": {"path": "nowhere.json"}}, "nowhere.json"),
    ],
)
def test_a_users_mistake_is_one_line(engine, request_, message):
    done = engine.start(**request_)
    assert done.returncode == 1
    assert message in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_missing_request_is_one_line(engine):
    done = subprocess.run(
        [sys.executable, ENGINE, "no.json"], cwd=engine.folder, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)


STOCK = {"loop": "mlx-lm", "attention": "fused", "prefill_chunk": 2048}


@pytest.mark.parametrize(
    ("workload", "turns"), [({"shared_prefix": 65}, 4), ({"batch": [100, 40, 53]}, 0)]
)
def test_a_workload_is_told_in_the_protocols_events_and_leaves_no_file(engine, workload, turns):
    done = engine.start(
        prompt={"name": "squares", "tokens": PROMPT, "path": "prompt.json", "workload": workload},
        kv_cache="mlx-lm",
        options=STOCK,
        protocol={"generate": 6, "repeat_penalty": 1},
    )
    assert done.returncode == 0, done.stderr
    conversation = Conversation(warmup=0, recorded=1)
    for line in done.stdout.splitlines():
        conversation.accept(parse_event(line.encode()))
    assert conversation.complete
    names = [event["event"] for event in conversation.events]
    assert names.count("turn_started") == turns
    assert names.count("prefilled") == max(1, turns)
    (run,) = conversation.runs
    where = run.get("first_differences") or conversation.events[-1]["first_differences"]
    assert where == [None] * len(run["parts"])
    assert not list(engine.folder.glob("*.safetensors"))
