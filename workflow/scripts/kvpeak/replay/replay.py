"""Replay a trace against a pool: the memory that an allocator would hold, exactly and at once."""

from collections.abc import Iterable
from functools import cache
from typing import NamedTuple

from kvpeak.replay.pools import PRIVATE, SHARED, CandlePool, Pool, size_class
from kvpeak.replay.script import LAYER_TENSORS, Block, Event, Script


class Replay:
    """A pool and the buffers that tensors hold in it, moved on event by event."""

    def __init__(self, pool: Pool):
        self.pool = pool
        self.buffers: dict = {}  # tensor, or (tensor, layer) → (heap, size)

    def run(self, trace: Iterable[Block]) -> None:
        for block in trace:
            self.step(block)

    def step(self, block: Block) -> None:
        for layer in block.layers:
            for event in block.script.events:
                self.apply(event, layer, block.sizes)

    def apply(self, event: Event, layer: int | None, sizes: dict[str, int]) -> None:
        kind, tensor, size, name = event
        place = place_of(tensor, layer)
        if kind == "alloc":
            self.buffers[place] = PRIVATE, self.pool.take(sizes[size])
        elif kind == "free":
            heap, nbytes = self.buffers.pop(place)
            self.pool.give(nbytes, heap)
        elif kind == "rename":
            self.buffers[place_of(name, layer)] = self.buffers.pop(place)
        elif kind == "shared":
            self.buffers[place] = SHARED, self.pool.take(sizes[size], SHARED)
        elif kind == "upload":
            self.buffers[place] = SHARED, self.pool.upload(sizes[size])
        else:
            self.pool.wait()


def place_of(tensor: str, layer: int | None):
    """Where a tensor's buffer is filed: a cache once for each layer, any other tensor once."""
    return (tensor, layer) if tensor in LAYER_TENSORS else tensor


@cache
def places(tensors: tuple[str, ...], layers) -> tuple:
    """Where the tensors of a block that runs in all these layers are filed, each place once."""
    return tuple(dict.fromkeys(place_of(tensor, layer) for layer in layers for tensor in tensors))


class Effect(NamedTuple):
    """What a block did to the pool and to the tensors; totals are relative to those before it."""

    state: int  # of the pool, afterwards
    outputs: tuple[tuple[int, int], ...]  # the buffers of the script's outputs
    held: int
    free: int
    peak: int
    peak_held: int
    # What the pool's memory was told: (make or drop, heap, size).
    memory: tuple[tuple[str, int, int], ...]


class Journal:
    """Stands before a pool's memory and writes down what it is told."""

    def __init__(self, memory):
        self._memory = memory
        self.page: list[tuple[str, int, int]] | None = None  # None: nobody wants to know

    def make(self, heap: int, size: int) -> None:
        self._note("make", heap, size)
        self._memory.make(heap, size)

    def drop(self, heap: int, size: int) -> None:
        self._note("drop", heap, size)
        self._memory.drop(heap, size)

    def new_page(self) -> list | None:
        """Begin to write down, and return the page that was open before."""
        before, self.page = self.page, []
        return before

    def turn_back(self, before: list | None) -> tuple:
        """What was written since new_page(); it becomes part of the page that was open before."""
        written, self.page = tuple(self.page), before
        if before is not None:
            before += written
        return written

    def _note(self, *call) -> None:
        if self.page is not None:
            self.page.append(call)


class FastReplay(Replay):
    """The same result without repeating work: what a block does is looked up once it was seen.

    What a block does follows from its script, the number of its layers, the free buffers, the
    buffers of the tensors that it drops, and its sizes, of which only the classes matter in the
    private heap, where every buffer is a power of two. The passes of a decode, and the layers of
    one, soon repeat them. The pool's memory, if it has one, is told every time.
    """

    def __init__(self, pool: CandlePool):
        super().__init__(pool)
        if pool.memory:
            pool.memory = Journal(pool.memory)
        self._effects: dict[tuple, Effect] = {}
        self._numbers: dict[tuple, int] = {}  # pool.state() → its number
        self._states: list[tuple] = []
        self._state = self._number(pool.state())
        self._stale = False  # whether the pool's free buffers are not yet those of _state
        self._sizes: dict | None = None
        self._classes: dict[Script, tuple[int, ...]] = {}  # of the sizes in _sizes

    @property
    def state(self) -> int:
        """A number that is the same for two moments when the pool's free buffers are."""
        return self._state

    def step(self, block: Block) -> None:
        script, layers, buffers, pool = block.script, block.layers, self.buffers, self.pool
        inputs = places(script.inputs, layers)
        before = tuple([buffers[place] for place in inputs])
        seen = script, len(layers), self._size_classes(block), self._state, before
        effect = self._effects.get(seen)
        if effect is None:
            self._effects[seen] = self._observe(block)
            return
        pool.peak = max(pool.peak, pool.total + effect.peak)
        pool.peak_held = max(pool.peak_held, pool.held + effect.peak_held)
        pool.held += effect.held
        pool.free += effect.free
        for call, heap, size in effect.memory:
            getattr(pool.memory, call)(heap, size)
        for place in inputs:
            del buffers[place]
        buffers.update(zip(places(script.outputs, layers), effect.outputs, strict=True))
        self._state, self._stale = effect.state, True

    def _size_classes(self, block: Block) -> tuple[int, ...]:
        """Two blocks of one script with the same answer ask for the same."""
        script, sizes = block.script, block.sizes
        if sizes is not self._sizes:
            self._sizes, self._classes = sizes, {}
        if script not in self._classes:
            private = [size_class(sizes[name]) for name in script.private_sizes]
            self._classes[script] = (*private, *(sizes[name] for name in script.other_sizes))
        return self._classes[script]

    def _observe(self, block: Block) -> Effect:
        """Take the block apart, into layers and those into events, and say what it did."""
        pool, layers = self.pool, block.layers
        page_before = pool.memory.new_page() if pool.memory else None
        held, free, peak, peak_held = pool.held, pool.free, pool.peak, pool.peak_held
        pool.peak, pool.peak_held = held + free, held
        if len(layers) > 1:
            for layer in layers:
                self.step(block._replace(layers=(layer,)))
        else:
            if self._stale:
                pool.restore(self._states[self._state])
            super().step(block)
            self._state, self._stale = self._number(pool.state()), False
        effect = Effect(
            state=self._state,
            outputs=tuple(self.buffers[place] for place in places(block.script.outputs, layers)),
            held=pool.held - held,
            free=pool.free - free,
            peak=pool.peak - held - free,
            peak_held=pool.peak_held - held,
            memory=pool.memory.turn_back(page_before) if pool.memory else (),
        )
        pool.peak, pool.peak_held = max(peak, pool.peak), max(peak_held, pool.peak_held)
        return effect

    def _number(self, state: tuple) -> int:
        if state not in self._numbers:
            self._numbers[state] = len(self._states)
            self._states.append(state)
        return self._numbers[state]
