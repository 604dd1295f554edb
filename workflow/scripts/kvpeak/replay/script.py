"""Scripts: the requests and releases of one part of a model, written down as its code makes them.

A trace is a stream of blocks: one for the layers of a forward pass, which all do the same, and one
each for what comes before and after them. A block's events are a script that all blocks of its kind
share, with the sizes by name beside it, so that the stream costs little and its memory nothing.
"""

from functools import cached_property
from typing import NamedTuple

LAYER_TENSORS = ("k_cache", "v_cache")  # one per layer; every other tensor exists once
REQUESTS = ("alloc", "shared", "upload")  # the kinds of event that a pool serves
OUTSIDE = (None,)  # the layers of a block that belongs to none
SOFTMAX = "probabilities"  # the tensor that the softmax writes


class Event(NamedTuple):
    """One request or release.

    kind: `alloc` (private heap), `shared` (the heap that the host reads), `upload` (host data),
    `free`, `rename` (the tensor lives on under `name`), `wait`. `size` names the bytes of a
    request.
    """

    kind: str
    tensor: str = ""
    size: str = ""
    name: str = ""


class Block(NamedTuple):
    """A script that runs once in each of `layers`, or once outside them.

    `sizes` gives the bytes that the script's size names mean.
    """

    phase: str  # load, prefill, decode, sample or reset
    layers: range | tuple[None]
    script: "Script"
    sizes: dict[str, int]


class Script:
    """The events of one kind of block."""

    def __init__(self):
        self.events: list[Event] = []

    def alloc(self, tensor: str, size: str) -> None:
        self.events.append(Event("alloc", tensor, size))

    def shared(self, tensor: str, size: str) -> None:
        self.events.append(Event("shared", tensor, size))

    def upload(self, tensor: str, size: str) -> None:
        self.events.append(Event("upload", tensor, size))

    def free(self, *tensors: str) -> None:
        self.events.extend(Event("free", tensor) for tensor in tensors)

    def rename(self, tensor: str, name: str) -> None:
        self.events.append(Event("rename", tensor, name=name))

    def wait(self) -> None:
        self.events.append(Event("wait"))

    def with_waits(self) -> "Script":
        """The same script with every request between two waits."""
        spaced = Script()
        for event in self.events:
            around = [Event("wait")] if event.kind in REQUESTS else []
            spaced.events += [*around, event, *around]
        return spaced

    # What a replay needs to know of a finished script ------------------------------------------

    @cached_property
    def inputs(self) -> tuple[str, ...]:
        """The tensors from before that the script drops or renames."""
        inputs, own = [], set()
        for event in self.events:
            if event.kind in REQUESTS:
                own.add(event.tensor)
            elif event.kind in ("free", "rename"):
                if event.tensor not in own:
                    inputs.append(event.tensor)
                own.discard(event.tensor)
                if event.kind == "rename":
                    own.add(event.name)
        return tuple(inputs)

    @cached_property
    def outputs(self) -> tuple[str, ...]:
        """The tensors that the script leaves behind."""
        left = {}
        for event in self.events:
            if event.kind in REQUESTS:
                left[event.tensor] = True
            elif event.kind in ("free", "rename"):
                left.pop(event.tensor, None)
                if event.kind == "rename":
                    left[event.name] = True
        return tuple(left)

    @cached_property
    def private_sizes(self) -> tuple[str, ...]:
        """The sizes that are requested of the private heap alone."""
        others = set(self.other_sizes)
        names = dict.fromkeys(event.size for event in self.events if event.kind == "alloc")
        return tuple(name for name in names if name not in others)

    @cached_property
    def other_sizes(self) -> tuple[str, ...]:
        """The sizes that are requested of the shared heap, alone or besides."""
        names = (event.size for event in self.events if event.kind in ("shared", "upload"))
        return tuple(dict.fromkeys(names))
