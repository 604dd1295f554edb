"""Does it leak? A planted leak is found with its size; a pool that stands still is none."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from kvpeak.analysis import workloads
from kvpeak.analysis.workloads import MARGIN_KIB, Trend, leaks, mean_series, rows_of, trend
from kvpeak.base.columns import SPEEDS

ENGINE = Path(__file__).parent / "leaky_engine.py"


def held(leak_kib: int, seed: int, requests: int = 200) -> list[float]:
    """Resident MiB of a process of its own after each request."""
    command = [sys.executable, ENGINE, *map(str, (requests, leak_kib, seed))]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return [float(line) for line in done.stdout.split()]


@pytest.mark.parametrize("seed", range(3))
def test_a_leak_of_64_kib_a_request_is_found_with_its_slope(seed):
    found = trend(held(64, seed))
    assert leaks(found, MARGIN_KIB)
    assert found.slope_kib == pytest.approx(64, rel=0.05)


@pytest.mark.slow
def test_at_most_one_in_twenty_processes_without_a_leak_is_called_one():
    called = [leaks(trend(held(0, seed)), MARGIN_KIB) for seed in range(50)]
    assert called.count(True) <= 2


def test_a_pool_that_fills_and_then_stands_is_no_leak():
    random = np.random.default_rng(0)
    filling = 500 + np.minimum(np.arange(200) * 3.0, 150) + random.normal(0, 0.01, 200)
    assert leaks(trend(filling), MARGIN_KIB) is False


def test_noise_that_lasts_for_some_requests_is_no_leak():
    """An autoregressive series of 0.8 over 200 requests, 400 times."""
    random = np.random.default_rng(1)
    called = 0
    for _ in range(400):
        noise = [0.0]
        for _ in range(199):
            noise.append(0.8 * noise[-1] + random.normal(0, 0.05))
        called += leaks(trend(noise), MARGIN_KIB) is True
    assert called <= 0.05 * 400


@pytest.mark.parametrize(
    ("low", "high", "verdict"), [(2, 3, True), (-1, 0.9, False), (0.5, 1.5, None), (-5, 9, None)]
)
def test_the_margin_decides_only_where_the_whole_interval_is_on_one_side(low, high, verdict):
    assert leaks(Trend((low + high) / 2, low, high, 200), 1.0) is verdict


def test_a_series_that_stands_still_exactly_has_an_interval_of_nothing():
    found = trend([61 + 1 / 3] * 200)
    assert abs(found.high_kib) < 1e-9 and abs(found.low_kib) < 1e-9
    assert workloads.spell_trend(found).startswith("slope 0.00 KiB a request (95 % 0.00 to 0.00)")


def test_few_requests_have_no_trend():
    assert trend([1.0] * (workloads.FEWEST - 1)) is None
    assert trend([1.0] * workloads.FEWEST).slope_kib == 0


PART = {
    "turn": 1,
    "sequence": None,
    "prompt_tokens": 100,
    "generated_tokens": 11,
    "prefill_s": 0.5,
    "ttft_s": 0.6,
    "decode_s": 2.0,
    "tokens_sha256": "0" * 64,
    "peak_active_mib": 1.0,
    "peak_pool_mib": 2.0,
    "held_pool_mib": 3.0,
    "held_rss_mib": 4.0,
}


def test_a_row_has_the_speeds_of_its_turn():
    plain = {"event": "run", "run": 0, "warmup": True}
    rows = rows_of([plain, {"event": "run", "run": 1, "warmup": False, "parts": [PART]}])
    assert len(rows) == 1
    found = {key: rows[0][key] for key in ("prefill_tok_s", "ttft_ms", "decode_tok_s", "warmup")}
    assert found == {
        "prefill_tok_s": 200.0,
        "ttft_ms": 600.0,
        "decode_tok_s": 5.0,
        "warmup": "false",
    }


def test_a_batch_names_the_first_difference_of_each_sequence():
    parts = [PART | {"turn": None, "sequence": n, "prefill_s": None} for n in (1, 2)]
    event = {"event": "run", "run": 0, "warmup": False, "parts": parts}
    rows = rows_of([event | {"first_differences": [None, 7]}])
    assert [(row["sequence"], row["first_difference"]) for row in rows] == [(1, None), (2, 7)]
    assert rows[0]["prefill_tok_s"] is None


def test_a_batch_that_is_compared_in_the_end_has_that_in_its_last_run():
    parts = [PART | {"turn": None, "sequence": n} for n in (1, 2)]
    runs = [{"event": "run", "run": n, "warmup": False, "parts": parts} for n in (0, 1)]
    rows = rows_of([*runs, {"event": "done", "first_differences": [None, 3]}])
    assert [row["first_difference"] for row in rows] == [None, None, None, 3]


def test_the_series_is_the_mean_of_recorded_runs_in_the_order_of_turns():
    rows = [
        {"turn": turn, "warmup": warmup, "held_rss_mib": value}
        for turn, warmup, value in [(2, False, 4), (1, False, 1), (2, False, 6), (1, True, 99)]
    ]
    assert mean_series(rows, "held_rss_mib") == [1, 5]


def test_the_claim_is_judged_from_the_turns(tmp_path):
    from kvpeak.analysis import claims, judging
    from kvpeak.analysis.results import Results

    cell = ("mlx", "tiny", "requests", "cat", "none", "stock")
    expected = tmp_path / "expected.yaml"
    expected.write_text(
        "claims:\n  - {claim: it does not leak, kind: no-growth, source: here, of: {kv_cache: "
        "cat}}\n"
    )
    for grows, verdict in ((0, "holds"), (64, "fails")):
        turns = [
            {"turn": n, "warmup": False, "held_rss_mib": 300 + n * grows / 1024}
            for n in range(1, 201)
        ]
        summary = {cell: {"outcome": "ok", "tokens_sha256": "0", "outputs": 1}}
        results = Results({cell: ""}, summary, {}, turns={cell: turns})
        results.processes.update({key: {} for key in SPEEDS})
        (claim,) = claims.load_claims(expected, results.plan)
        (check,) = judging.evaluate(claim, results)
        assert check.verdict == verdict
        assert "KiB a request" in check.detail
