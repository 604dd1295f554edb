"""Two prompts that begin alike: what it saves to keep the first one's cache, and what it costs.

Four requests, one after another:
    1 the first prompt, nothing reused
    2 the second prompt, on the first one's cache, trimmed to what both share and kept in memory
    3 the second prompt, on the same cache, saved to a file before and loaded again
    4 the second prompt, nothing reused: what 2 and 3 are held against
"""

import tempfile
from pathlib import Path
from time import perf_counter

import mlx.core as mx

from kvpeak.base.numbers import MIB
from kvpeak.live import allocator
from kvpeak.live.kv_state import arrays_of
from kvpeak.live.loading import mlx_lm_module
from kvpeak.live.running import (
    Marks,
    Session,
    check_trimming,
    first_difference,
    run_part,
    trim,
)
from kvpeak.protocol.parts import Part, Reuse


def two_prompts(prompt: mx.array, shared: int) -> tuple[mx.array, mx.array]:
    """Two prompts of the same length out of the ids: `shared` of both, then of each its own."""
    own = (prompt.size - shared) // 2
    return prompt[: shared + own], mx.concatenate([prompt[:shared], prompt[shared + own :]])


def shared_prefix(
    session: Session, prompt: mx.array, shared: int, folder: Path, marks: Marks
) -> tuple[list[Part], list[int | None]]:
    """The requests, and where each first differs from the second prompt alone, None for nowhere.

    `folder` holds the saved cache meanwhile. Raises Unsupported for caches that cannot be trimmed.
    """
    first, second = two_prompts(prompt, shared)
    rest, caches = second[shared:], session.caches()
    check_trimming(caches)
    parts = [run_part(session, 1, caches, first, marks, reuse=Reuse(0))]
    held = len(parts[0].tokens) - (not session.feeds_last)
    trim(caches, first.size - shared + held)
    with tempfile.NamedTemporaryFile(suffix=".safetensors", dir=folder) as file:
        mlx_lm_module("cache").save_prompt_cache(file.name, caches)
        kept = Reuse(shared, cache_mib(caches))
        parts.append(run_part(session, 2, caches, rest, marks, reuse=kept))
        del caches
        caches, loaded = load(Path(file.name), shared)
    parts.append(run_part(session, 3, caches, rest, marks, reuse=loaded))
    del caches
    parts.append(run_part(session, 4, session.caches(), second, marks, reuse=Reuse(0)))
    alone = parts[3].tokens
    compared = [first_difference(alone, each.tokens) for each in parts[1:3]]
    return parts, [None, *compared, None]


def load(file: Path, shared: int) -> tuple[list, Reuse]:
    """The caches of a file, every array of them read, and what that took."""
    peaks = allocator.Peaks()
    began = perf_counter()
    caches = mlx_lm_module("cache").load_prompt_cache(str(file))
    mx.eval(arrays_of([cache.state for cache in caches]))
    seconds = perf_counter() - began
    found = Reuse(
        shared,
        cache_mib(caches),
        cache_file_mib=file.stat().st_size / MIB,
        cache_load_s=seconds,
        cache_load_peak_mib=peaks.mib()["peak_active_mib"],
    )
    return caches, found


def cache_mib(caches: list) -> float:
    """Bytes of all arrays that the caches keep, those of trimmed tokens included, MiB."""
    return sum(array.nbytes for array in arrays_of([cache.state for cache in caches])) / MIB
