"""The benchmark of the generation loop runs and judges; what it measures is for a person to
read.
"""

import subprocess
import sys
from pathlib import Path

from engine_speed import interval

BENCH = Path(__file__).parent / "bench/engine_speed.py"


def test_pairs_that_differ_widen_the_interval_and_more_rounds_of_them_do_not_narrow_it():
    assert interval([[1.1] * 4, [1.1] * 4]) == (1.1, 1.1)
    for rounds in (4, 64):
        assert interval([[0.9] * rounds, [1.0] * rounds, [1.1] * rounds]) == (0.9, 1.1)


def test_the_benchmark_compares_both_loops():
    done = subprocess.run(
        [sys.executable, BENCH, "--rounds", "2", "--prompt-tokens", "9", "--generate", "4"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    rounds, verdicts = done.stdout.splitlines()[:2], done.stdout.splitlines()[2:]
    assert [line[:9] for line in rounds] == ["round  1:", "round  2:"]
    assert [line.split()[0] for line in verdicts] == [
        "prefill_tok_s",
        "decode_tok_s",
        "peak_active_mib",
    ]
    assert all(line.endswith(("met", "missed")) for line in verdicts)
