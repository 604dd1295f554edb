"""More than one prompt in a run: a session of turns, requests one after another, a batch.

Each turn, request or sequence gives a Part; the Parts of a run are in its event `run`.
"""

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from time import perf_counter

import mlx.core as mx

from kvpeak.base.errors import Unsupported
from kvpeak.base.numbers import MIB
from kvpeak.live import allocator
from kvpeak.live.generation import Generation, Sampling, Watch
from kvpeak.live.kv_caches import layers_text
from kvpeak.live.loading import mlx_lm_module, mlx_lm_program
from kvpeak.system.process_memory import own_memory


@dataclass(frozen=True)
class Part:
    """One turn, request (`turn`, from 1) or sequence of a batch (`sequence`, from 1) of a run.

    prompt_tokens: those that were computed. held_pool_mib: live and kept bytes when it had ended,
    its cache included; held_rss_mib: the process's resident memory then. None: not known alone.
    """

    turn: int | None
    sequence: int | None
    prompt_tokens: int
    generated_tokens: int
    prefill_s: float | None
    ttft_s: float | None
    decode_s: float | None
    tokens_sha256: str
    tokens: list[int]
    peak_active_mib: float | None
    peak_pool_mib: float | None
    held_pool_mib: float
    held_rss_mib: float | None


@dataclass(frozen=True)
class Turn:
    """What a session asks next: `tokens` new ones of the prompt, then so many generated."""

    tokens: int
    generate: int


@dataclass(frozen=True)
class Session:
    """The model and how it is run; `caches` makes fresh ones, `loop` is stock's or our own."""

    model: object
    loop: Callable[..., Generation]
    caches: Callable[[], list]
    sampling: Sampling
    chunk: int | None
    feeds_last: bool  # whether the loop puts the last generated token into the caches


def check(workload: dict | None, kv_cache: str, protocol: dict) -> None:
    """Raise Unsupported for what the engine does not measure."""
    if not workload or "repeat" in workload:
        return
    if protocol["repeat_penalty"] != 1 and protocol["repeat_window"]:
        raise Unsupported(
            "workload: turns and batches are measured without a penalty; "
            "set repeat_penalty: 1 in the variant"
        )
    if "batch" in workload and kv_cache != "mlx-lm":
        raise Unsupported(
            f"kv_cache {kv_cache}: a batch is mlx-lm's own, with its own batched caches; use mlx-lm"
        )


def length(workload: dict | None, tokens: int, generate: int) -> int:
    """Tokens that one cache comes to hold. tokens: of the prompt's file, all turns together."""
    answers = (answer for _, answer in (workload or {}).get("turns", []))
    return tokens + max(generate, sum(answers))


def run(
    session: Session, workload: dict, prompt: mx.array, first: Callable, compare: bool
) -> tuple[dict, dict]:
    """One run of a workload: the keys of its event, its parts among them, and its peaks in MiB."""
    if "batch" in workload:
        prompts = prompt.reshape(workload["batch"], -1).tolist()
        parts, whole, peaks = batch(session, prompts, first)
        found = whole_run(parts) | whole | {"parts": as_event(parts)}
        if compare:
            found["first_differences"] = differences(session, prompts, parts)
        return found, peaks
    if "turns" in workload:
        asked = [Turn(*each) for each in workload["turns"]]
        parts = list(turns(session, prompt, asked, workload["keep"], first))
    else:
        parts = list(requests(session, prompt, workload["repeat"], first))
    names = ("peak_active_mib", "peak_pool_mib")
    peaks = {name: max(getattr(each, name) for each in parts) for name in names}
    return whole_run(parts) | {"parts": as_event(parts)}, peaks


def requests(session: Session, prompt: mx.array, times: int, first: Callable) -> Iterator[Part]:
    """The same request `times` times, each with fresh caches."""
    for number in range(1, times + 1):
        result, peaks = run_one(session, session.caches(), prompt, session.sampling, first)
        yield part(number, prompt.size, result, peaks)


def turns(
    session: Session, prompt: mx.array, asked: list[Turn], keep: str, first: Callable
) -> Iterator[Part]:
    """One conversation over the tokens of `prompt`, cut into the turns.

    keep: `all` keeps the cache of all that was said; `trim` takes the answer out of it again, so
    that the next turn follows the prompts alone; `none` throws it away and computes all again.
    Raises Unsupported where a cache cannot be trimmed.
    """
    caches, said, missing, at = session.caches(), mx.array([], mx.uint32), None, 0
    if keep == "trim" and not mlx_lm_module("cache").can_trim_prompt_cache(caches):
        raise Unsupported(f"keep trim: a cache cannot be trimmed: {layers_text(caches)}")
    for number, turn in enumerate(asked, 1):
        new, at = prompt[at : at + turn.tokens], at + turn.tokens
        said = mx.concatenate([said, new])
        fed = new if missing is None else mx.concatenate([missing, new])
        if keep == "none":
            caches, fed = session.caches(), said
        sampling = replace(session.sampling, generate=turn.generate)
        result, peaks = run_one(session, caches, fed, sampling, first)
        answer = mx.array(result.tokens, mx.uint32)
        missing = None
        if keep == "trim":
            held = len(result.tokens) - (not session.feeds_last)
            mlx_lm_module("cache").trim_prompt_cache(caches, held)
        else:
            said = mx.concatenate([said, answer])
            missing = None if session.feeds_last else answer[-1:]
        yield part(number, fed.size, result, peaks)


def run_one(
    session: Session, caches: list, prompt: mx.array, sampling: Sampling, first: Callable
) -> tuple[Generation, dict]:
    """One generation of the loop, and its peaks."""
    peaks = allocator.Peaks()
    result = session.loop(
        session.model, caches, prompt, sampling, Watch(peaks, first), session.chunk
    )
    return result, peaks.mib()


def part(number: int, fed: int, result: Generation, peaks: dict) -> Part:
    mx.synchronize()
    return Part(
        turn=number,
        sequence=None,
        prompt_tokens=fed,
        generated_tokens=len(result.tokens),
        prefill_s=result.prefill_s,
        ttft_s=result.ttft_s,
        decode_s=result.decode_s,
        tokens_sha256=digest(result.tokens),
        tokens=result.tokens,
        **peaks,
        held_pool_mib=held_pool_mib(),
        held_rss_mib=own_memory().rss_mib,
    )


def batch(
    session: Session, prompts: list[list[int]], first: Callable
) -> tuple[list[Part], dict, dict]:
    """mlx-lm's own batched generation of all prompts at once, with its own batched caches.

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
        pairs = enumerate(zip(alone.tokens, batched.tokens, strict=True))
        found.append(next((index for index, (one, other) in pairs if one != other), None))
    return found


def held_pool_mib() -> float:
    """Live and kept bytes now, MiB."""
    return allocator.counting.reserved() / MIB


def digest(tokens: list[int]) -> str:
    """SHA-256 of the ids as ASCII decimals joined by commas."""
    return hashlib.sha256(",".join(map(str, tokens)).encode()).hexdigest()


def whole_run(parts: list[Part]) -> dict:
    """The keys of the event `run` for turns or requests one after another: sums over them."""
    seconds = {}
    for name in ("prefill_s", "decode_s"):
        values = [getattr(each, name) for each in parts]
        seconds[name] = None if None in values else sum(values)
    tokens = [token for each in parts for token in each.tokens]
    return {
        **seconds,
        "ttft_s": parts[0].ttft_s,
        "prompt_tokens": sum(each.prompt_tokens for each in parts),
        "generated_tokens": len(tokens),
        "decode_steps": sum(each.generated_tokens - 1 for each in parts),
        "tokens_sha256": digest(tokens),
    }


def as_event(parts: list[Part]) -> list[dict]:
    """The parts as the event `run` carries them, without the ids, which have a hash."""
    return [
        {key: value for key, value in asdict(each).items() if key != "tokens"} for each in parts
    ]
