"""MLX with another pool in its allocator's place: the same tokens, and the memory that the replay
predicts.
"""

import pytest
from test_mlx_engine import ON_CPU, Engine

from kvpeak.base.numbers import MIB
from kvpeak.pools import trace
from kvpeak.pools.replay import Setting, policies, replay

pytestmark = pytest.mark.skipif(not ON_CPU, reason="a GPU's figures are other ones")

SETTINGS = ["torch,expandable_segments:True", *policies()]


@pytest.fixture(scope="module")
def engine(tmp_path_factory) -> Engine:
    return Engine(tmp_path_factory.mktemp("engine"))


@pytest.fixture(scope="module")
def plain(engine) -> dict[str, dict]:
    """MLX as it is, its requests recorded."""
    return engine.events(options={"record": True})


@pytest.fixture(scope="module")
def recording(engine, plain) -> trace.Trace:
    return trace.read(engine.folder / "trace.kvtrace")


@pytest.fixture(scope="module")
def pooled(engine) -> dict[str, dict[str, dict]]:
    return {name: engine.events(options={"pool": name}) for name in SETTINGS}


def test_every_policy_gives_the_tokens_of_mlx_as_it_is(plain, pooled):
    assert {name: events["run"]["tokens"] for name, events in pooled.items()} == dict.fromkeys(
        pooled, plain["run"]["tokens"]
    )


def test_the_recording_predicts_the_peak_of_every_policy(recording, pooled):
    """Which of two threads frees first decides about one buffer, which is 2.5 % of so small a
    model.
    """
    for name, events in pooled.items():
        setting = events["started"]["pool"]["setting"]
        predicted = replay(recording, Setting.parse(setting))
        done = events["done"]
        assert predicted.reserved_peak / MIB == pytest.approx(done["peak_pool_mib"], rel=0.03), name
        assert predicted.active_peak / MIB == pytest.approx(done["peak_active_mib"], rel=0.03), name


def test_mlxs_own_rule_gives_mlxs_own_figures(plain, pooled):
    for key in ("peak_active_mib", "peak_pool_mib"):
        assert pooled["mlx"]["done"][key] == pytest.approx(plain["done"][key], rel=0.03)


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
