"""Greedy generation, timed: the loop that every run of the MLX engine goes through."""

from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter

import mlx.core as mx

from kvpeak.live.allocator import Peaks


@dataclass(frozen=True)
class Sampling:
    """How many tokens to generate, and how: greedily, after the penalty on the last `repeat_window` tokens.

    `repeat_penalty` 1 and `repeat_window` 0 are none. A token of `stop` ends the generation and is its last.
    """

    generate: int
    repeat_penalty: float = 1.0
    repeat_window: int = 64
    stop: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Generation:
    """The generated ids, and seconds as docs/protocol.md defines them."""

    tokens: list[int]
    prefill_s: float
    ttft_s: float
    decode_s: float


def generate(
    model,
    caches: list,
    prompt: mx.array,
    sampling: Sampling,
    peaks: Peaks,
    chunk: int | None = None,
    on_first_token: Callable[[], None] = lambda: None,
) -> Generation:
    """Generate from `prompt`, a vector of token ids, with caches that are empty.

    While the host waits for one token's id, the step after it is already being computed.
    """
    mx.synchronize()  # a stopped generation leaves a step behind
    start = perf_counter()
    logits = prefill(model, caches, prompt, chunk)
    mx.eval(logits)
    prefilled = perf_counter()
    pick = Picker(prompt, sampling)
    token = pick(logits)
    token.item()
    first = perf_counter()
    del logits
    peaks.sample()
    on_first_token()
    ids = []
    for remaining in reversed(range(sampling.generate)):
        if remaining:
            upcoming = pick(model(token[None], cache=caches)[:, -1], token)
            mx.async_eval(upcoming)
        ids.append(token.item())
        peaks.sample()
        if not remaining or ids[-1] in sampling.stop:
            break
        token = upcoming
    last = perf_counter()
    return Generation(ids, prefilled - start, first - start, last - first)


def prefill(model, caches: list, prompt: mx.array, chunk: int | None) -> mx.array:
    """The logits after the whole prompt, [1, vocabulary].

    All tokens but the last go through the model in one pass, or `chunk` at a time; the last one goes alone.
    So, whatever the model, its head sees a single position, and of the other tokens only what fills the
    caches is computed.
    """
    rest = prompt.size - 1
    for begin in range(0, rest, chunk or prompt.size):
        if begin:  # free one chunk's scratch memory before the next
            mx.eval([cache.state for cache in caches])
        model(prompt[None, begin : min(begin + (chunk or rest), rest)], cache=caches)
    return model(prompt[None, rest:], cache=caches)[:, -1]


class Picker:
    """Picks the likeliest token after the repeat penalty, within the graph: no id comes to the host."""

    def __init__(self, prompt: mx.array, sampling: Sampling):
        self._window = sampling.repeat_window
        self._penalty = sampling.repeat_penalty if self._window else 1
        self._recent = prompt[-self._window :]

    def __call__(self, logits: mx.array, token: mx.array | None = None) -> mx.array:
        """The token [1] for logits [1, vocabulary], which follow `token`, or the prompt if it is None."""
        if self._penalty != 1:
            if token is not None:
                self._recent = mx.concatenate([self._recent, token])[-self._window :]
            logits = penalised(logits, self._recent, self._penalty)
        return mx.argmax(logits, axis=-1)


def penalised(logits: mx.array, recent: mx.array, penalty: float) -> mx.array:
    """The logits [1, vocabulary], those of the `recent` ids made less likely, each once however often it is there.

    Divided by the penalty if positive, else multiplied (Keskar et al. 2019, arXiv:1909.05858, section 4.1).
    """
    chosen = logits[:, recent]
    chosen = mx.where(chosen < 0, chosen * penalty, chosen / penalty)
    return mx.put_along_axis(logits, recent[None], chosen, axis=-1)
