"""The benchmark of the stock loop runs, and what does not depend on the machine holds."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from test_models import SMALL

BENCH = Path(__file__).parent / "bench/stock_speed.py"


@pytest.mark.slow
def test_stock_gives_the_tokens_and_peaks_of_stream_generate(tmp_path):
    """Two chunks, and a clearing of the pool between tokens; speeds are for a quiet machine."""
    config = tmp_path / "config.json"
    config.write_text(json.dumps(SMALL))
    given = ["--config", config, "--rounds", "4"]
    done = subprocess.run([sys.executable, BENCH, *given], capture_output=True, text=True)
    assert "Traceback" not in done.stderr, done.stderr
    tokens, active, pool, *speeds = done.stdout.splitlines()
    assert tokens == "tokens: equal in every round"
    assert active.startswith("peak_active_mib: ") and pool.startswith("peak_pool_mib: ")
    assert [line.split()[0] for line in speeds] == ["prompt_tok_s:", "decode_tok_s:"]
