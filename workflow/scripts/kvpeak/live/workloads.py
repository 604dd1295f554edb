"""More than one prompt in a run: a session of turns, requests one after another, a batch, or two
prompts that begin alike.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import mlx.core as mx

from kvpeak.base.errors import Unsupported
from kvpeak.live.batch import batch, cut, differences, lengths_of
from kvpeak.live.running import Marks, Session, check_trimming, run_part, trim
from kvpeak.live.shared_prefix import shared_prefix
from kvpeak.protocol.parts import Part, as_event, largest, whole_run

OURS = ("cat", "cat-contiguous", "prealloc")  # caches that mlx-lm does not know by name


@dataclass(frozen=True)
class Turn:
    """What a session asks next: `tokens` new ones of the prompt, then so many generated."""

    tokens: int
    generate: int


def check(workload: dict | None, kv_cache: str, protocol: dict) -> None:
    """Raise Unsupported for what the engine does not measure."""
    if not workload or "repeat" in workload:
        return
    if protocol["repeat_penalty"] != 1 and protocol["repeat_window"]:
        raise Unsupported(
            "workload: turns, batches and shared prefixes are measured without a penalty; "
            "set repeat_penalty: 1 in the variant"
        )
    if "batch" in workload and kv_cache != "mlx-lm":
        raise Unsupported(
            f"kv_cache {kv_cache}: a batch is mlx-lm's own, with its own batched caches; use mlx-lm"
        )
    if "shared_prefix" in workload and kv_cache in OURS:
        raise Unsupported(
            f"kv_cache {kv_cache}: mlx-lm saves and loads its own caches only; "
            "use mlx-lm, quantized-4 or quantized-8"
        )


def length(workload: dict | None, tokens: int, generate: int) -> int:
    """Tokens that one cache comes to hold. tokens: of the prompt's file, all turns together."""
    answers = (answer for _, answer in (workload or {}).get("turns", []))
    return tokens + max(generate, sum(answers))


def run(
    session: Session,
    workload: dict,
    prompt: mx.array,
    folder: Path,
    marks: Marks,
) -> tuple[dict, dict, list[Part]]:
    """One run of a workload: the keys of its event, its peaks in MiB, and its parts.

    `folder` may hold files meanwhile.
    """
    compared = {}
    if "batch" in workload:
        prompts = cut(prompt, lengths_of(workload["batch"], prompt.size))
        parts, whole, peaks = batch(session, prompts, marks.first)
        return whole_run(parts) | whole | {"parts": as_event(parts)}, peaks, parts
    if "shared_prefix" in workload:
        shared = workload["shared_prefix"]
        parts, where = shared_prefix(session, prompt, shared, folder, marks)
        compared["first_differences"] = where
    elif "turns" in workload:
        asked = [Turn(*each) for each in workload["turns"]]
        parts = list(turns(session, prompt, asked, workload["keep"], marks))
    else:
        parts = list(requests(session, prompt, workload["repeat"], marks))
    return whole_run(parts) | {"parts": as_event(parts)} | compared, largest(parts), parts


def compare(session: Session, workload: dict, prompt: mx.array, parts: list[Part]) -> dict:
    """The key of the event `done` that holds a batch's sequences against their own single runs;
    {} for other workloads.
    """
    if "batch" not in workload:
        return {}
    prompts = cut(prompt, lengths_of(workload["batch"], prompt.size))
    return {"first_differences": differences(session, prompts, parts)}


def requests(session: Session, prompt: mx.array, times: int, marks: Marks) -> Iterator[Part]:
    """The same request `times` times, each with fresh caches."""
    for number in range(1, times + 1):
        yield run_part(session, number, session.caches(), prompt, marks)


def turns(
    session: Session, prompt: mx.array, asked: list[Turn], keep: str, marks: Marks
) -> Iterator[Part]:
    """One conversation over the tokens of `prompt`, cut into the turns.

    keep: `all` keeps the cache of all that was said; `trim` takes the answer out of it again, so
    that the next turn follows the prompts alone; `none` throws it away and computes all again.
    Raises Unsupported where a cache cannot be trimmed.
    """
    caches, said, missing, at = session.caches(), mx.array([], mx.uint32), None, 0
    if keep == "trim":
        check_trimming(caches)
    for number, turn in enumerate(asked, 1):
        new, at = prompt[at : at + turn.tokens], at + turn.tokens
        said = mx.concatenate([said, new])
        fed = new if missing is None else mx.concatenate([missing, new])
        if keep == "none":
            caches, fed = session.caches(), said
        sampling = replace(session.sampling, generate=turn.generate)
        part = run_part(session, number, caches, fed, marks, sampling=sampling)
        answer = mx.array(part.tokens, mx.uint32)
        missing = None
        if keep == "trim":
            trim(caches, len(part.tokens) - (not session.feeds_last))
        else:
            said = mx.concatenate([said, answer])
            missing = None if session.feeds_last else answer[-1:]
        yield part
