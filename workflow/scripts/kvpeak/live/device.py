"""The device that MLX computes on. What only Metal has is here; it has not run on that hardware
yet.
"""

import mlx.core as mx

from kvpeak.live import releases
from kvpeak.live.cuda_pool import pool_peaks
from kvpeak.system.host import wheel_tags

BACKENDS = ("mlx-metal", "mlx-cuda-12", "mlx-cuda-13", "mlx-cpu", "mlx")


def accelerator() -> str:
    """`metal`, `cuda` or `cpu`: where this process computes."""
    if mx.default_device() != mx.Device(mx.gpu):
        return "cpu"
    return "metal" if mx.metal.is_available() else "cuda"


def describe() -> dict:
    """The accelerator, and what MLX says of it: name, architecture, on a GPU its memory sizes in
    bytes.
    """
    return {"accelerator": accelerator(), **releases.device_info()}


def wheel() -> str | None:
    """The tag of the wheel that MLX's kernels come in, such as py3-none-macosx_15_0_arm64."""
    return wheel_tags(*BACKENDS)


def reserve() -> dict[str, float]:
    """Under CUDA what the driver's own pool kept at most; {} elsewhere."""
    return pool_peaks() if accelerator() == "cuda" else {}


def keep_resident() -> None:
    """On Metal, keep live arrays wired, up to the recommended working set, as mlx-lm does when it
    generates.

    Without it macOS may page a model's weights out between two steps. Nothing to do elsewhere.
    """
    if accelerator() == "metal":
        mx.set_wired_limit(releases.device_info()["max_recommended_working_set_size"])
