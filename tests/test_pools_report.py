"""Several buffer pools in one finding: what each is held against, and PyTorch beside them."""

from types import SimpleNamespace

import pytest

from kvpeak.pools.replay import Outcome, Setting
from kvpeak.report.pools import Measured, advised, front, growing, pooled, pools_of
from kvpeak.report.pools_text import pools_section, sentence
from kvpeak.report.pytorch import pytorch_section

SHORT, LONG = ("mlx", "tiny", "alice-512", "cat"), ("mlx", "tiny", "alice-2048", "cat")
FIXED = ("mlx", "tiny", "alice-512", "prealloc")


def cell(place, name, peak, *, setting="", cap="default", decode=(100.0,), made=None) -> Measured:
    speeds = {"prefill_tok_s": [1000.0], "decode_tok_s": list(decode)}
    numbers = {"reserved_peak": int(peak * 2**20), "made": made}
    outcome = Outcome(Setting("x"), numbers) if made is not None else None
    return Measured(place, name, setting, cap, peak, peak / 2, speeds, outcome)


OWN = [
    cell(SHORT, "MLX's own, cap none", 300.0, cap="none"),
    cell(SHORT, "MLX's own, cap default", 100.0),
]


def test_pools_are_held_against_mlxs_own_under_its_own_limit():
    found = [*OWN, cell(SHORT, "torch", 80.0, setting="torch", decode=[90.0])]
    assert {pool.name: pool.peak for pool in pooled(found)} == {
        "torch": pytest.approx(0.8),
        "MLX's own, cap none": pytest.approx(3.0),
    }
    assert pooled(found)[0].decode.value == pytest.approx(0.9)


def test_without_a_cell_under_its_own_limit_the_one_that_is_there_is_the_measure():
    found = [OWN[0], cell(SHORT, "torch", 150.0, setting="torch")]
    assert [(pool.name, pool.peak) for pool in pooled(found)] == [("torch", pytest.approx(0.5))]


def test_pools_are_ranked_by_the_places_where_all_were_measured():
    found = [
        *OWN,
        cell(LONG, "MLX's own, cap default", 100.0),
        cell(LONG, "MLX's own, cap none", 400.0, cap="none"),
        cell(SHORT, "torch", 80.0, setting="torch"),
        cell(SHORT, "candle", 90.0, setting="candle"),
        cell(LONG, "candle", 10.0, setting="candle"),  # where torch was not measured
    ]
    assert [(pool.name, pool.places) for pool in pooled(found)] == [
        ("torch", 1),
        ("candle", 1),
        ("MLX's own, cap none", 1),
    ]


def test_without_a_common_place_each_pool_has_its_own():
    found = [
        *OWN[1:],
        cell(LONG, "MLX's own, cap default", 100.0),
        cell(SHORT, "torch", 80.0, setting="torch"),
        cell(LONG, "candle", 50.0, setting="candle"),
    ]
    assert [(pool.name, pool.places) for pool in pooled(found)] == [("candle", 1), ("torch", 1)]


def test_the_rule_to_use_does_not_ask_the_system_oftener_than_mlx_does():
    pools = pooled(
        [
            cell(SHORT, "MLX's own, cap default", 100.0, made=50),
            cell(SHORT, "none", 70.0, setting="none", made=9000),
            cell(SHORT, "torch", 80.0, setting="torch", made=7),
            cell(SHORT, "bucket", 90.0, setting="bucket", made=40),
        ]
    )
    assert advised(pools).name == "torch"
    assert [pool.name for pool in front(pools)] == ["none", "torch"]
    assert sentence(pools) == (
        "For a cache that grows each step use `torch`: 0.80 times the memory of MLX's own pool in "
        "the one setting with it, at 1.00 times its decode speed, asking the system 7 times for "
        "memory instead of 50; "
        "`none` takes 0.70 times and asks 9,000 times. MLX cannot run it on Metal or under CUDA."
    )


def test_every_setting_of_a_pool_counts_also_one_that_another_pool_does_not_have():
    """In one of three settings it takes less; the third was measured with no other pool."""
    third = ("mlx", "small", "alice-512", "cat")
    found = [
        *(cell(place, "MLX's own, cap default", 100.0) for place in (SHORT, LONG, third)),
        *(cell(place, "none", 90.0, setting="none") for place in (SHORT, LONG)),
        *(
            cell(place, "torch", peak, setting="torch")
            for place, peak in ((SHORT, 78.0), (LONG, 103.0), (third, 116.0))
        ),
    ]
    (torch,) = (pool for pool in pooled(found, alike=False) if pool.name == "torch")
    assert (torch.places, torch.helps) == (3, 1)
    said = sentence([torch])
    assert "over its 3 settings, less in 1 (0.78 to 1.16)" in said
    assert said.startswith(
        "With a cache that grows each step the smallest pool has `torch`: 0.98 times"
    )


def test_without_a_recording_the_lowest_peak_is_the_rule_to_use():
    found = [
        *OWN[1:],
        cell(SHORT, "torch", 80.0, setting="torch"),
        cell(SHORT, "x", 70, setting="x"),
    ]
    assert advised(pooled(found)).name == "x"


def test_a_speed_has_an_interval_over_its_processes():
    own, slower = [100.0, 101.0, 99.0, 100.5, 99.5, 100.0], [90.0, 91.0, 89.0, 90.5, 89.5, 90.0]
    found = [
        cell(SHORT, "MLX's own, cap default", 100.0, decode=own),
        cell(SHORT, "torch", 80.0, setting="torch", decode=slower),
    ]
    decode = pooled(found)[0].decode
    assert 0.88 < decode.low < decode.value < decode.high < 0.92
    assert decode.value == pytest.approx(0.9)
    assert f"{decode.low:.2f} to {decode.high:.2f}" in sentence(pooled(found))


def test_a_cache_that_has_its_full_length_is_not_a_growing_one():
    found = [*OWN, cell(FIXED, "MLX's own, cap default", 50.0)]
    assert growing(found) == OWN


def process(workload, setting, counted, end="ran", replayed=None):
    return {
        "workload": workload,
        "setting": setting,
        "counted_bytes": str(counted * 2**20),
        "replayed_bytes": str((replayed or counted) * 2**20),
        "counted_end": end,
        "replayed_end": end,
        "engine": "PyTorch 2.11.0",
        "device": "a GPU",
    }


PROCESSES = [
    process("training", "default", 1000),
    process("training", "expandable_segments:True", 500),
    process("training", "max_split_size_mb:64", 900),
    process("small_runs", "default", 100),
    process("small_runs", "expandable_segments:True", 90),
    process("small_runs", "max_split_size_mb:64", 100),
    process("limited", "default", 60, end="out of memory"),
    process("limited", "expandable_segments:True", 10),
    process("limited", "max_split_size_mb:64", 60, end="out of memory"),
]


def test_the_setting_that_would_have_saved_most_is_named_with_what_it_saves():
    assert pytorch_section(PROCESSES)["sentence"] == (
        "In PyTorch (a GPU) `expandable_segments:True` would have saved up to 50 % of what was "
        "reserved (training), at least 10 % (small runs)."
    )
    worse = [process("training", "default", 100), process("training", "x:1", 120)]
    assert "no setting would have saved" in pytorch_section(worse)["sentence"]


def test_the_table_says_what_each_setting_changed_and_where_memory_ran_out():
    section = pytorch_section(PROCESSES)
    lines = section["table"].splitlines()
    assert (
        lines[0] == "| workload | `default` | `expandable_segments:True` | `max_split_size_mb:64` |"
    )
    assert lines[2] == "| training | 1,000 | 500 (−50 %) | 900 (−10 %) |"
    assert lines[4] == "| limited | 60, out of memory | 10 (−83 %) | 60 (0 %), out of memory |"
    assert (section["processes"], section["equal"], section["ends"]) == (9, 9, 9)


def test_a_replay_that_is_off_is_counted_as_such():
    section = pytorch_section([*PROCESSES[:2], process("training", "x:1", 100, replayed=101)])
    assert (section["equal"], section["off"]) == (2, "1.0 %")


def test_the_answer_names_the_rule_and_pytorchs_setting():
    found = [*OWN, cell(SHORT, "torch", 80.0, setting="torch")]
    said = pools_section(found, PROCESSES)["sentence"]
    assert "`torch`" in said and "In PyTorch (a GPU)" in said
    assert pools_section(found, [])["pytorch"] is None
    assert pools_section([], PROCESSES) is None


def test_a_cell_that_recorded_is_named_so(tmp_path):
    row = dict.fromkeys(("peak_pool_mib", "peak_active_mib"), 100.0) | {"flags": ""}
    row |= {"outcome": "ok", "commit": "mlx", "model": "tiny", "prompt": "p", "kv_cache": "cat"}
    row |= {"cap": "none", "rounds": 1}
    variants = {"recorded": {"record": True}, "own": {}, "torch": {"pool": "torch"}}
    rows = {name: row | {"variant": name} for name in variants}
    results = SimpleNamespace(summary=rows, speeds=lambda names, column: [1.0])
    names = [each.name for each in pools_of(results, variants, tmp_path)]
    assert names[:2] == ["MLX's own, cap none, recorded", "MLX's own, cap none"]
