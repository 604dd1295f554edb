"""Replay a trace against a pool: the memory that an allocator would hold, exactly and at once."""

from collections.abc import Iterable
from typing import NamedTuple

from kvpeak.pools import PRIVATE, SHARED, CandlePool, Pool, size_class
from kvpeak.traces import LAYER_TENSORS, Block, Event, Script


class Replay:
    """A pool and the buffers that tensors hold in it, moved on event by event."""

    def __init__(self, pool: Pool):
        self.pool = pool
        self.buffers: dict = {}  # tensor, or (tensor, layer) → (heap, size)

    def run(self, trace: Iterable[Block]) -> None:
        for block in trace:
            self.step(block)

    def step(self, block: Block) -> None:
        for event in block.script.events:
            self.apply(event, block)

    def apply(self, event: Event, block: Block) -> None:
        kind, tensor, size = event
        place = key(tensor, block.layer)
        if kind == "alloc":
            self.buffers[place] = PRIVATE, self.pool.take(block.sizes[size])
        elif kind == "free":
            heap, size = self.buffers.pop(place)
            self.pool.give(size, heap)
        elif kind == "rename":
            self.buffers[key(size, block.layer)] = self.buffers.pop(place)
        elif kind == "shared":
            self.buffers[place] = SHARED, self.pool.take(block.sizes[size], SHARED)
        elif kind == "upload":
            self.buffers[place] = SHARED, self.pool.upload(block.sizes[size])
        else:
            self.pool.wait()


def key(tensor: str, layer: int | None):
    """Where a tensor's buffer is filed: the caches exist once for each layer."""
    return (tensor, layer) if tensor in LAYER_TENSORS else tensor


class Effect(NamedTuple):
    """What a block did to the pool and to the tensors; totals are relative to those before it."""

    state: int  # of the pool, afterwards
    outputs: tuple[tuple[int, int], ...]  # the buffers of the script's outputs
    held: int
    free: int
    peak: int
    peak_held: int


class FastReplay(Replay):
    """The same result without repeating work: what a block does is looked up once it was seen.

    What a block does follows from its script, the free buffers, the buffers of the tensors that it
    drops, and its sizes, of which only the classes matter in the private heap, where every buffer
    is a power of two. The layers of a pass and the passes of a decode soon repeat all four.
    """

    def __init__(self, pool: CandlePool):
        super().__init__(pool)
        self._effects: dict[tuple, Effect] = {}
        self._numbers: dict[tuple, int] = {}  # pool.state() → its number
        self._states: list[tuple] = []
        self._state = self._number(pool.state())
        self._stale = False  # whether the pool's free buffers are not yet those of _state
        self._sizes: dict | None = None
        self._classes: dict[Script, tuple[int, ...]] = {}  # of the sizes in _sizes

    def step(self, block: Block) -> None:
        script, layer, buffers, pool = block.script, block.layer, self.buffers, self.pool
        inputs = tuple([buffers[key(tensor, layer)] for tensor in script.inputs])
        seen = script, self._size_classes(block), self._state, inputs
        effect = self._effects.get(seen)
        if effect is None:
            self._effects[seen] = self._observe(block)
            return
        pool.peak = max(pool.peak, pool.total + effect.peak)
        pool.peak_held = max(pool.peak_held, pool.held + effect.peak_held)
        pool.held += effect.held
        pool.free += effect.free
        for tensor in script.inputs:
            del buffers[key(tensor, layer)]
        for tensor, buffer in zip(script.outputs, effect.outputs, strict=True):
            buffers[key(tensor, layer)] = buffer
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
        """Replay the block event by event, and say what it did."""
        pool = self.pool
        if self._stale:
            pool.restore(self._states[self._state])
        held, total, peak, peak_held = pool.held, pool.total, pool.peak, pool.peak_held
        pool.peak, pool.peak_held = total, held
        super().step(block)
        self._state, self._stale = self._number(pool.state()), False
        effect = Effect(
            state=self._state,
            outputs=tuple(self.buffers[key(t, block.layer)] for t in block.script.outputs),
            held=pool.held - held,
            free=pool.total - total - (pool.held - held),
            peak=pool.peak - total,
            peak_held=pool.peak_held - held,
        )
        pool.peak, pool.peak_held = max(peak, pool.peak), max(peak_held, pool.peak_held)
        return effect

    def _number(self, state: tuple) -> int:
        if state not in self._numbers:
            self._numbers[state] = len(self._states)
            self._states.append(state)
        return self._numbers[state]
