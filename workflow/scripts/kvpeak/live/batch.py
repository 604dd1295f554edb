"""Several prompts at once: mlx-lm's own batched generation, with its own batched caches."""

from collections.abc import Callable
from time import perf_counter

import mlx.core as mx

from kvpeak.live import allocator
from kvpeak.live.generation import Watch
from kvpeak.live.loading import mlx_lm_program
from kvpeak.live.running import Session, first_difference, held_pool_mib
from kvpeak.protocol.parts import Part, digest
from kvpeak.system.process_memory import own_memory


def lengths_of(batch: int | list[int], tokens: int) -> list[int]:
    """The length of each sequence. batch: their lengths, or how many equal ones share `tokens`."""
    return [tokens // batch] * batch if isinstance(batch, int) else batch


def cut(prompt: mx.array, lengths: list[int]) -> list[list[int]]:
    """The sequences, one after another out of the prompt's ids."""
    ids = iter(prompt.tolist())
    return [[next(ids) for _ in range(length)] for length in lengths]


def batch(
    session: Session, prompts: list[list[int]], first: Callable[[], None]
) -> tuple[list[Part], dict, dict]:
    """Generate from all prompts at once.

    Returns the Parts, the durations of the whole (`ttft_s` to the last sequence's first token), and
    the peaks.
    """
    generate = mlx_lm_program("generate")
    size, peaks = len(prompts), allocator.Peaks()
    mx.synchronize()
    start = perf_counter()
    generator = generate.BatchGenerator(
        session.model,
        max_tokens=session.sampling.generate,
        stop_tokens=[[stop] for stop in session.sampling.stop] or None,
        completion_batch_size=size,
        prefill_batch_size=size,
        prefill_step_size=session.chunk or max(map(len, prompts)),
    )
    uids = generator.insert(prompts)
    answers: dict[int, list[int]] = {uid: [] for uid in uids}
    began = None
    while responses := generator.next_generated():
        for response in responses:
            answers[response.uid].append(response.token)
        peaks.sample()
        if began is None and all(answers.values()):
            began = perf_counter()
            first()
    last = perf_counter()
    generator.close()
    whole = {"prefill_s": None, "ttft_s": began - start, "decode_s": last - began}
    parts = [
        sequence(number, len(prompt), answers[uid])
        for number, (uid, prompt) in enumerate(zip(uids, prompts, strict=True), 1)
    ]
    return parts, whole, peaks.mib()


def sequence(number: int, tokens: int, answer: list[int]) -> Part:
    """One sequence of a batch, whose time and memory are those of all together."""
    alone = dict.fromkeys(("prefill_s", "ttft_s", "decode_s", "peak_active_mib", "peak_pool_mib"))
    return Part(
        turn=None,
        sequence=number,
        prompt_tokens=tokens,
        generated_tokens=len(answer),
        tokens_sha256=digest(answer),
        tokens=answer,
        held_pool_mib=held_pool_mib(),
        held_rss_mib=own_memory().rss_mib,
        **alone,
    )


def differences(session: Session, prompts: list[list[int]], parts: list[Part]) -> list[int | None]:
    """Where each sequence first differs from its own single run, None where nowhere."""
    found = []
    for prompt, batched in zip(prompts, parts, strict=True):
        watch = Watch(allocator.Peaks())
        ids = mx.array(prompt, mx.uint32)
        alone = session.loop(
            session.model, session.caches(), ids, session.sampling, watch, session.chunk
        )
        found.append(first_difference(alone.tokens, batched.tokens))
    return found
