"""Predictions: the peak that a model, a prompt and a pool make a process's memory reach."""

from collections import Counter
from functools import cache
from itertools import takewhile

from kvpeak.base.numbers import MIB
from kvpeak.inputs.shapes import Shapes
from kvpeak.replay.family import Family
from kvpeak.replay.pools import CandlePool, size_class
from kvpeak.replay.replay import FastReplay, Replay, place_of
from kvpeak.replay.script import REQUESTS, SOFTMAX, Event
from kvpeak.replay.trace import candle_trace, host_mask_bytes, scores_bytes
from kvpeak.replay.weights import load_weights, weights_bytes
from kvpeak.replay.workload import Workload

HEAPS = ("private", "shared")

PROCESS_MIB = 190.7  # the process and Metal's runtime: fitted to the finding's 18 peaks (fit.py)


@cache
def run_peaks(
    shapes: Shapes,
    work: Workload,
    slack: int | None,
    family: type[Family] | None = None,
    wait_after_loading: bool = False,
) -> tuple[int, ...]:
    """The most bytes in Candle's pools during each run of the process, weights aside.

    The first run is the warm-up. `family` is that of candle_trace. Where the weights are converted,
    their uploads are in the pool until the host waits: after the prefill, or, with
    `wait_after_loading`, before it.
    """
    pool = CandlePool(slack)
    load_weights(pool, shapes)
    if wait_after_loading:
        pool.wait()
    weights, pool.peak = pool.held, pool.total
    replay, peaks, before = FastReplay(pool), [], None
    for block in candle_trace(shapes, work, family):
        replay.step(block)
        if block.phase == "reset":
            peaks.append(pool.peak - weights)
            if replay.state == before:  # every later run does the same
                break
            before, pool.peak = replay.state, pool.total
    return (*peaks, *peaks[-1:] * (work.runs - len(peaks)))


def predict(
    shapes: Shapes, work: Workload, slack: int | None, wait_after_loading: bool = False
) -> dict:
    """The predicted peak in MiB and its parts.

    peak_mib = pool_peak_mib + weights_mib + host_mask_mib + process_mib, where the host mask is
    what the model builds in ordinary memory before it uploads it.
    """
    peaks = run_peaks(shapes, work, slack, wait_after_loading=wait_after_loading)
    pool = max(peaks) / MIB
    weights = weights_bytes(shapes) / MIB
    host = host_mask_bytes(shapes, work) / MIB
    return {
        "peak_mib": pool + weights + host + PROCESS_MIB,
        "pool_peak_mib": pool,
        "weights_mib": weights,
        "host_mask_mib": host,
        "process_mib": PROCESS_MIB,
    }


def prefill_details(
    shapes: Shapes, work: Workload, slack: int | None, family: type[Family] | None = None
) -> dict:
    """Who holds which buffer at the end of the first prefill, and how it came to that.

    - buffers: {heap, bytes, held, free}, the largest first
    - layers: {layer, new, held}: buffers of the scores' class that were made in the layer, and
      those held when its softmax asks for its output (None where there is no softmax). With a
      prefill in chunks, the class is that of the largest scores, `new` is of all chunks, `held` of
      the last one
    - captures: {role, layer, requested_bytes, buffer_bytes} of each tensor that holds a buffer of a
      larger class than its own
    """
    watch = PrefillWatch(slack, size_class(scores_bytes(shapes, work)))
    trace = candle_trace(shapes, work, family)
    watch.run(takewhile(lambda block: block.phase != "sample", trace))
    held = Counter(watch.buffers.values())
    free = watch.pool.free_buffers()
    return {
        "buffers": [
            {
                "heap": HEAPS[heap],
                "bytes": size,
                "held": held[heap, size],
                "free": free.get((heap, size), 0),
            }
            for heap, size in sorted(held.keys() | free, key=lambda b: (-b[1], b[0]))
        ],
        "layers": [
            {"layer": layer, "new": watch.new[layer], "held": watch.held_at_softmax.get(layer)}
            for layer in range(shapes.layers)
        ],
        "captures": [
            {
                "role": place[0] if isinstance(place, tuple) else place,
                "layer": place[1] if isinstance(place, tuple) else None,
                "requested_bytes": watch.requested[place],
                "buffer_bytes": size,
            }
            for place, (_, size) in watch.buffers.items()
            if size > size_class(watch.requested[place])
        ],
    }


class PrefillWatch(Replay):
    """A replay that notes what was asked for, and what became of buffers of the scores' class."""

    def __init__(self, slack: int | None, scores_class: int):
        super().__init__(CandlePool(slack, memory=self))
        self.requested: dict = {}  # place → bytes
        self.new: Counter[int | None] = Counter()  # layer → buffers of the class made in it
        self.held_at_softmax: dict[int, int] = {}
        self._scores_class = scores_class
        self._layer: int | None = None

    def apply(self, event: Event, layer: int | None, sizes: dict[str, int]) -> None:
        self._layer = layer
        place = place_of(event.tensor, layer)
        if event.kind == "rename":
            self.requested[place_of(event.name, layer)] = self.requested.pop(place)
        elif event.kind in REQUESTS:
            self.requested[place] = sizes[event.size]
            if event.tensor == SOFTMAX:
                sizes_held = [size for _, size in self.buffers.values()]
                self.held_at_softmax[layer] = sizes_held.count(self._scores_class)
        super().apply(event, layer, sizes)

    def make(self, heap: int, size: int) -> None:
        """The pool made a buffer."""
        self.new[self._layer] += size == self._scores_class

    def drop(self, heap: int, size: int) -> None:
        """The pool gave a buffer back."""
