"""The device that MLX computes on. What only Metal has is here; it has not run on that hardware yet."""

import mlx.core as mx


def accelerator() -> str:
    """`metal`, `cuda` or `cpu`: where this process computes."""
    if mx.default_device() != mx.Device(mx.gpu):
        return "cpu"
    return "metal" if mx.metal.is_available() else "cuda"


def describe() -> dict:
    """The accelerator, and what MLX says of it: name, architecture, on a GPU its memory sizes in bytes."""
    return {"accelerator": accelerator(), **mx.device_info()}


def keep_resident() -> None:
    """On Metal, keep live arrays wired, up to the recommended working set, as mlx-lm does when it generates.

    Without it macOS may page a model's weights out between two steps. Nothing to do elsewhere.
    """
    if accelerator() == "metal":
        mx.set_wired_limit(mx.device_info()["max_recommended_working_set_size"])
