"""Growth while decoding: its rate, where it stops, and whether that is the pool's limit."""

import json
from pathlib import Path

import numpy as np
import pytest

from kvpeak.analysis.plateaus import fit_growth_and_stop, growth_of, spell_growth
from kvpeak.base.columns import MEMORY

ROW = {
    "method": "live",
    "accelerator": "cpu",
    "prompt_tokens": 129,
    "generated_tokens": 129,
    "cap_bytes": str(32 << 20),
    "loaded_mib": 20.0,
    "kv_bytes_per_token": 8192,
    "peak_pool_mib": 20 + 8192 * 258 / 2**20 + 32,
}


def samples(rate: float, stop: float, steps: int = 128, noise: float = 0.2):
    """A sample each fiftieth of a second over ten seconds: the memory grows up to the token
    `stop`.
    """
    rng = np.random.default_rng(0)
    times = np.arange(0, 10, 0.02)
    tokens = times / 10 * steps
    mib = 80 + rate * np.minimum(tokens, stop) + rng.normal(0, noise, times.size)
    return list(zip(times.tolist(), mib.tolist(), strict=True))


@pytest.mark.parametrize("stop", [20, 60, 97])
def test_the_token_from_which_on_it_stands_is_found(stop):
    rate, found = fit_growth_and_stop(samples(1.1, stop), 0, 10, 128)
    assert rate == pytest.approx(1.1, rel=0.05)
    assert found == pytest.approx(stop, abs=3)


def test_growth_to_the_end_has_no_stop():
    rate, found = fit_growth_and_stop(samples(4.6, 1000), 0, 10, 128)
    assert rate == pytest.approx(4.6, rel=0.02)
    assert found is None


def test_what_stands_or_only_trembles_does_not_grow():
    assert fit_growth_and_stop(samples(0, 1000), 0, 10, 128) is None
    assert fit_growth_and_stop(samples(0, 1000, noise=5), 0, 10, 128) is None
    assert fit_growth_and_stop(samples(1.1, 97)[:5], 0, 10, 128) is None


def write(folder: Path, points) -> None:
    phases = [{"phase": "decode-0", "start_s": 0, "end_s": 10}]
    (folder / "cell.json").write_text(json.dumps({"phases": phases}))
    lines = [f"{t},decode-0,{mib},{mib}," for t, mib in points]
    (folder / "memory.csv").write_text("\n".join([",".join(MEMORY.names), *lines]) + "\n")


def test_a_plateau_at_the_pool_s_limit_is_named(tmp_path):
    write(tmp_path, samples(1.1, 30))
    found = growth_of(tmp_path, ROW)
    assert (found.limit_mib, found.at_limit) == (32, True)
    said = spell_growth(found)
    assert said.startswith("grows by 1.1 MiB a token and stands from token ")
    assert said.endswith("on: the pool is at its cap of 32 MiB")


def test_a_plateau_elsewhere_is_not_called_the_limit(tmp_path):
    write(tmp_path, samples(1.1, 30))
    found = growth_of(tmp_path, ROW | {"peak_pool_mib": 30.0})
    assert not found.at_limit
    assert "limit" not in spell_growth(found)


def test_windows_and_states_are_no_part_of_the_limit(tmp_path):
    write(tmp_path, samples(1.1, 30))
    more = {"peak_pool_mib": ROW["peak_pool_mib"] + 10}
    held = {"kv_window_bytes": 8 << 20, "kv_state_bytes": 2 << 20}
    assert growth_of(tmp_path, ROW | more | held).at_limit
    assert not growth_of(tmp_path, ROW | more).at_limit


def test_growth_without_a_limit_is_named(tmp_path):
    write(tmp_path, samples(4.6, 1000))
    found = growth_of(tmp_path, ROW | {"cap_bytes": str(1 << 62)})
    assert spell_growth(found) == ("grows by 4.6 MiB a token to the end of the 129 tokens")


@pytest.mark.parametrize("text", ["", "garbage", "{}", '{"phases": [{"phase": 1}]}'])
def test_a_damaged_record_has_no_growth(tmp_path, text):
    write(tmp_path, samples(1.1, 30))
    (tmp_path / "cell.json").write_text(text)
    assert growth_of(tmp_path, ROW) is None


def test_a_workload_has_no_one_rate(tmp_path):
    write(tmp_path, samples(1.1, 30))
    assert growth_of(tmp_path, ROW | {"workload": "batch 4"}) is None
