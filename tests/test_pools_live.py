"""MLX with another pool in its allocator's place: the same tokens, and the memory that the replay
predicts.
"""

import functools
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from test_mlx_engine import ON_CPU, Engine

from kvpeak.base.numbers import MIB
from kvpeak.pools import trace
from kvpeak.pools.replay import Setting, policies, replay

ROOT = Path(__file__).parents[1]
pytestmark = pytest.mark.skipif(not ON_CPU, reason="a GPU's figures are other ones")

SETTINGS = ["torch,expandable_segments:True", *policies()]
FAST = ("candle", "mlx")
every_policy = pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name in FAST else pytest.mark.slow) for name in SETTINGS],
)


@pytest.fixture(scope="module")
def engine(tmp_path_factory) -> Engine:
    return Engine(tmp_path_factory.mktemp("engine"))


@pytest.fixture(scope="module")
def as_it_is(engine) -> dict[str, dict]:
    return engine.events()


@pytest.fixture(scope="module")
def plain(engine) -> dict[str, dict]:
    """MLX with its own allocator, its requests recorded, each waiting for the work before it."""
    return engine.events(options={"record": True, "wait": True})


@pytest.fixture(scope="module")
def recording(engine, plain) -> trace.Trace:
    """What MLX's own allocator was asked for."""
    return trace.read(engine.folder / "trace.kvtrace")


@pytest.fixture(scope="module")
def pooled(engine, recording):
    """A function: the events under a policy, and what MLX asked of it."""

    @functools.cache
    def pooled(name: str) -> tuple[dict[str, dict], trace.Trace]:
        events = engine.events(options={"pool": name, "record": True, "wait": True})
        return events, trace.read(engine.folder / "trace.kvtrace")

    return pooled


@every_policy
def test_every_policy_gives_the_tokens_of_mlx_as_it_is(as_it_is, pooled, name):
    events, _ = pooled(name)
    assert events["run"]["tokens"] == as_it_is["run"]["tokens"]


@every_policy
def test_the_replay_of_the_same_requests_has_the_live_peaks(pooled, name):
    events, own = pooled(name)
    outcome = replay(own, Setting.parse(events["started"]["pool"]["setting"]))
    done = events["done"]
    assert outcome.reserved_peak / MIB == pytest.approx(done["peak_pool_mib"], rel=1e-3)
    assert outcome.active_peak / MIB == pytest.approx(done["peak_active_mib"], rel=1e-3)


@every_policy
def test_the_recording_of_mlx_predicts_the_live_peak_of_every_policy(recording, pooled, name):
    events, _ = pooled(name)
    predicted = replay(recording, Setting.parse(events["started"]["pool"]["setting"]))
    live = events["done"]["peak_pool_mib"]
    assert predicted.reserved_peak / MIB == pytest.approx(live, rel=0.01)


def test_mlxs_own_rule_gives_mlxs_own_counters_to_the_byte(plain, pooled):
    events, _ = pooled("mlx")
    for key in ("peak_active_mib", "peak_pool_mib"):
        assert events["done"][key] == plain["done"][key]
        assert events["run"][key] == plain["run"][key]


def test_the_recording_says_in_which_phase_a_buffer_was_asked_for(recording):
    assert recording.phases == ["load", "prefill", "decode", "between"]
    assert recording.source == "mlx" and len(recording) > 1000
    assert set(recording.phase) >= {0, 1, 2}


def test_the_cells_cap_is_the_policys(engine):
    capped = engine.events(cap="4x", options={"pool": "candle"})
    assert capped["started"]["pool"]["setting"] == "candle,cap:4x"
    assert capped["done"]["peak_pool_mib"] > 0


@pytest.mark.parametrize(
    ("options", "cap", "said"),
    [
        ({"pool": "jemalloc"}, "none", "not a policy; there are bucket"),
        ({"pool": "torch"}, "64MiB", "cap: not a setting of this policy"),
        ({"pool": "candle"}, "64MiB", "expected none or a power of two"),
    ],
)
def test_a_pool_that_mlx_cannot_have_is_unsupported_with_the_reason(engine, options, cap, said):
    events = engine.events(cap=cap, options=options)
    assert events["outcome"]["outcome"] == "unsupported"
    assert said in events["outcome"]["detail"]


def test_without_a_compiler_the_pool_is_unavailable(engine, monkeypatch, tmp_path):
    monkeypatch.setenv("KVPEAK_CACHE", str(tmp_path))
    monkeypatch.setenv("CXX", "no-such-compiler")
    events = engine.events(options={"pool": "candle"})
    assert events["outcome"]["outcome"] == "unsupported"
    assert "unavailable: no C++ compiler: no-such-compiler not found" in events["outcome"]["detail"]


STEPS = """
import json, sys
from kvpeak.live import allocator
from kvpeak.live.pool import Pool
import mlx.core as mx

cap, replaced = sys.argv[1], sys.argv[2] == "pool"
if replaced:
    pool = Pool("mlx", cap)
    look = lambda: [pool.counters().active, pool.counters().reserved, pool.counters().active_peak]
else:
    allocator.limit_pool(allocator.cap_bytes(cap))
    look = lambda: [
        mx.get_active_memory(),
        mx.get_active_memory() + mx.get_cache_memory(),
        mx.get_peak_memory(),
    ]
base, seen = look(), []
w = mx.random.normal((256, 256), key=mx.random.key(0)) * 0.06
kept, x = mx.zeros((0, 256)), mx.ones((97, 256))
for step in range(60):
    for compute in (
        lambda: mx.tanh(x @ w),
        lambda: mx.concatenate([kept, x]),
        lambda: mx.softmax(x @ kept.T, axis=-1) @ kept,
    ):
        made = compute()
        mx.eval(made)
        mx.synchronize()
        if compute.__code__.co_names.count("concatenate"):
            kept = made
        else:
            x = made
        del made
        seen.append(look())
    x = x[-3:] if step % 7 else mx.ones((step + 5, 256))
print(json.dumps([base, seen]))
"""


@pytest.mark.parametrize("cap", ["none", "default", "1MiB"])
def test_step_by_step_mlxs_rule_counts_what_mlx_counts_to_the_byte(cap):
    """Each operation is waited for. A scalar of 4 bytes may be freed a moment later, in one
    process, so that up to three pairs of processes are compared.
    """
    for _ in range(3):
        own, pool = looks(cap, "own"), looks(cap, "pool")
        if own == pool:
            break
    assert own == pool
    assert max(reserved for _, reserved, _ in own) > 2**20


def looks(cap: str, kind: str) -> list[list[int]]:
    """Active and reserved bytes and the peak after each step, less what was there before."""
    environment = os.environ | {"PYTHONPATH": str(ROOT / "workflow/scripts")}
    command = [sys.executable, "-c", STEPS, cap, kind]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    base, seen = json.loads(done.stdout)
    return [[value - base[0] for value in each] for each in seen]
