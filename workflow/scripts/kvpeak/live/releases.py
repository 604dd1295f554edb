"""What older releases of MLX and mlx-lm call otherwise, or do not have. Nothing else asks for a
version.
"""

import platform

import mlx.core as mx


def device_info() -> dict:
    """What MLX says of its device.

    mx.device_info came with 0.30.4. Before, only Metal was asked, by a function of its own; of a
    CPU the operating system is asked.
    """
    if hasattr(mx, "device_info"):
        return mx.device_info()
    if mx.metal.is_available():
        return mx.metal.device_info()
    return {"device_name": platform.processor() or platform.machine()}
