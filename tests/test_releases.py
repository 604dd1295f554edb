"""What older releases of MLX lack is asked for in another way."""

import mlx.core as mx
import pytest

from kvpeak.live import releases


def test_a_release_without_device_info_still_says_what_it_computes_on(monkeypatch):
    if mx.metal.is_available():
        pytest.skip("Metal's own function answers here")
    monkeypatch.delattr(mx, "device_info")
    assert releases.device_info()["device_name"]
