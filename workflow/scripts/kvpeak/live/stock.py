"""The loop that people run: mlx-lm's own generate_step, timed where it lets us look.

It prefills in chunks of 2,048 tokens, clears the pool after each of them and again at every 256th
token, and asks for one step more than it gives. Its arguments keep their defaults, but for the
length, the penalty that the protocol asks for, and the caches.
"""

import mlx.core as mx

from kvpeak.live.generation import Generation, Sampling, Watch
from kvpeak.live.loading import mlx_lm_program

_generate_step = mlx_lm_program("generate").generate_step
_sample_utils = mlx_lm_program("sample_utils")


def generate(
    model,
    caches: list,
    prompt: mx.array,
    sampling: Sampling,
    watch: Watch,
    chunk: int | None = None,
) -> Generation:
    """As generation.generate, with the same marks but one.

    The logits of the prompt never leave generate_step, so that `prefill_s` is None. The pool is
    looked at where it is largest: before each clearing, which the progress callback precedes, and
    at every token.
    """
    processors = _sample_utils.make_logits_processors(
        repetition_penalty=sampling.repeat_penalty if sampling.penalises else None,
        repetition_context_size=sampling.repeat_window,
    )
    mx.synchronize()  # a stopped generation leaves a step behind
    start = watch.clock()
    steps = _generate_step(
        prompt,
        model,
        max_tokens=sampling.generate,
        logits_processors=processors,
        prompt_cache=caches,
        prefill_step_size=chunk or max(prompt.size, 1),
        prompt_progress_callback=lambda *_: watch.peaks.sample(),
    )
    ids = [next(steps)[0]]
    first = watch.clock()
    watch.peaks.sample()
    watch.on_first_token()
    while len(ids) < sampling.generate and ids[-1] not in sampling.stop:
        ids.append(next(steps)[0])
        watch.peaks.sample()
    last = watch.clock()
    steps.close()
    return Generation(ids, None, first - start, last - first)
