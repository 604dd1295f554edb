"""Greedy generation, timed: the laboratory's loop, which never clears the pool."""

from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter

import mlx.core as mx

from kvpeak.live.allocator import Peaks


@dataclass(frozen=True)
class Sampling:
    """How many tokens to generate, greedily, after the penalty on the last `repeat_window` tokens.

    `repeat_penalty` 1 and `repeat_window` 0 are none. A token of `stop` ends the generation and is
    its last.
    """

    generate: int
    repeat_penalty: float = 1.0
    repeat_window: int = 64
    stop: frozenset[int] = frozenset()

    @property
    def penalises(self) -> bool:
        return self.repeat_window > 0 and self.repeat_penalty != 1


@dataclass(frozen=True)
class Generation:
    """The generated ids, and seconds as docs/protocol.md defines them.

    None stands for a point that the loop does not let anybody observe.
    """

    tokens: list[int]
    prefill_s: float | None
    ttft_s: float
    decode_s: float


@dataclass(frozen=True)
class Watch:
    """What looks at a generation from outside: the peaks, the clock, who hears of the first token.

    `clock` gives seconds.
    """

    peaks: Peaks
    on_first_token: Callable[[], None] = lambda: None
    clock: Callable[[], float] = perf_counter


def generate(
    model,
    caches: list,
    prompt: mx.array,
    sampling: Sampling,
    watch: Watch,
    chunk: int | None = None,
) -> Generation:
    """Generate from `prompt`, a vector of token ids, and add to what the caches hold.

    While the host waits for one token's id, the step after it is already being computed.
    """
    mx.synchronize()  # a stopped generation leaves a step behind
    start = watch.clock()
    logits = prefill(model, caches, prompt, chunk)
    mx.eval(logits)
    prefilled = watch.clock()
    pick = Picker(prompt, sampling)
    token = pick(logits)
    token.item()
    first = watch.clock()
    del logits
    watch.peaks.sample()
    watch.on_first_token()
    ids = []
    for remaining in reversed(range(sampling.generate)):
        if remaining:
            upcoming = pick(model(token[None], cache=caches)[:, -1], token)
            mx.async_eval(upcoming)
        ids.append(token.item())
        watch.peaks.sample()
        if not remaining or ids[-1] in sampling.stop:
            break
        token = upcoming
    last = watch.clock()
    return Generation(ids, prefilled - start, first - start, last - first)


def prefill(model, caches: list, prompt: mx.array, chunk: int | None) -> mx.array:
    """The logits after the whole prompt, [1, vocabulary].

    All tokens but the last go through the model in one pass, or `chunk` at a time; the last one
    goes alone. So, whatever the model, its head sees a single position, and of the other tokens
    only what fills the caches is computed.
    """
    rest = prompt.size - 1
    for begin in range(0, rest, chunk or prompt.size):
        if begin:  # free one chunk's scratch memory before the next
            mx.eval([cache.state for cache in caches])
        model(prompt[None, begin : min(begin + (chunk or rest), rest)], cache=caches)
    return model(prompt[None, rest:], cache=caches)[:, -1]


class Picker:
    """Picks the likeliest token after the repeat penalty, in the graph: no id comes to the host."""

    def __init__(self, prompt: mx.array, sampling: Sampling):
        self._window = sampling.repeat_window
        self._penalty = sampling.repeat_penalty if sampling.penalises else 1
        self._recent = prompt[-self._window :]

    def __call__(self, logits: mx.array, token: mx.array | None = None) -> mx.array:
        """The token [1] for logits [1, vocabulary], which follow `token`, None: the prompt."""
        if self._penalty != 1:
            if token is not None:
                self._recent = mx.concatenate([self._recent, token])[-self._window :]
            logits = penalised(logits, self._recent, self._penalty)
        return mx.argmax(logits, axis=-1)


def penalised(logits: mx.array, recent: mx.array, penalty: float) -> mx.array:
    """The logits [1, vocabulary], those of the `recent` ids made less likely.

    Each counts once, however often it is there. It is divided by the penalty if positive, else
    multiplied (Keskar et al. 2019, arXiv:1909.05858, section 4.1).
    """
    chosen = logits[:, recent]
    chosen = mx.where(chosen < 0, chosen * penalty, chosen / penalty)
    return mx.put_along_axis(logits, recent[None], chosen, axis=-1)
