"""Traces: which buffers a process asks Candle's pools for, in which order, and when it drops them.

They follow Candle 0.11.0: candle-transformers/src/models/{qwen2,quantized_qwen2,llama}.rs, one
module here for each, and the requests of its Metal operations (candle-core/src/metal_backend). A
tensor is dropped where Rust drops it: temporaries at the end of their statement, locals, shadowed
ones too, at the end of their function. Sizes are bytes.
"""

from collections.abc import Iterator
from typing import NamedTuple

from kvpeak.inputs.shapes import Shapes
from kvpeak.replay.family import Family
from kvpeak.replay.llama import Llama
from kvpeak.replay.quantized_qwen2 import QuantizedQwen2
from kvpeak.replay.qwen2 import Qwen2
from kvpeak.replay.script import Block
from kvpeak.replay.workload import Workload

FAMILIES = {"qwen2": Qwen2, "quantized-qwen2": QuantizedQwen2, "llama": Llama}


class Request(NamedTuple):
    """One event of the flat stream: in which layer, for which tensor, of how many bytes."""

    kind: str
    layer: int | None
    role: str
    nbytes: int


def candle_trace(
    shapes: Shapes, work: Workload, family: type[Family] | None = None
) -> Iterator[Block]:
    """Everything that one process asks Candle's pools for, weights aside.

    `family` None takes the one of the shapes.
    """
    model = (family or FAMILIES[shapes.family])(shapes, work)
    yield model.load()
    for _ in range(work.runs):
        for tokens, total in work.chunks():
            yield from model.forward("prefill", tokens, total)
            if total < work.prompt_tokens:
                yield model.drop_logits()
        for total in range(work.prompt_tokens + 1, work.prompt_tokens + work.generate):
            yield model.sample()
            yield from model.forward("decode", 1, total)
        yield model.sample()
        yield model.reset()


def requests(trace: Iterator[Block]) -> Iterator[Request]:
    """The trace as a flat stream. A rename asks for nothing and is left out."""
    for block in trace:
        for layer in block.layers:
            for event in block.script.events:
                if event.kind != "rename":
                    nbytes = block.sizes.get(event.size, 0)
                    yield Request(event.kind, layer, event.tensor, nbytes)


def scores_bytes(shapes: Shapes, work: Workload) -> int:
    """The largest attention scores of the prefill (naive attention makes them, fused does not)."""
    itemsize = 4 if shapes.family == "llama" else shapes.itemsize
    return max(shapes.heads * tokens * total * itemsize for tokens, total in work.chunks())


def host_mask_bytes(shapes: Shapes, work: Workload) -> int:
    """The largest attention mask that the model builds on the host before it uploads it.

    qwen2.rs collects float32 values for the new tokens, the others u8 for new and old ones.
    """
    steps = [(tokens, total) for tokens, total in work.chunks() if tokens > 1]
    if work.attention == "fused" or not steps:
        return 0
    if shapes.family == "qwen2":
        return max(4 * tokens * tokens for tokens, _ in steps)
    return max(tokens * total for tokens, total in steps)
