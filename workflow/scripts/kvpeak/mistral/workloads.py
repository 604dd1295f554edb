"""A session of turns, or one request after another, in mistral.rs.

A session is sent as its whole text each time, as a server gets it; mistral.rs finds by itself what
its prefix cache has of it.
"""

from collections.abc import Callable, Iterator

from kvpeak.mistral.text import prompt_text
from kvpeak.protocol.parts import Part, as_event, digest, whole_run
from kvpeak.system.process_memory import own_memory


def run(engine, workload: dict, begun: Callable[[int], None], first: Callable[[], None]) -> dict:
    """One run of a workload: the keys of its event, its parts among them.

    `engine` is session.Engine. begun hears when a turn begins, first of its first token.
    """
    if "repeat" in workload:
        parts = requests(engine, workload["repeat"], begun, first)
    else:
        parts = turns(engine, workload["turns"], begun, first)
    found = list(parts)
    unknown = dict.fromkeys(("peak_active_mib", "peak_pool_mib"))
    return whole_run(found) | {"parts": as_event(found)} | unknown


def requests(engine, times: int, begun: Callable, first: Callable) -> Iterator[Part]:
    """The same request `times` times, without a prefix cache."""
    for number in range(1, times + 1):
        begun(number)
        yield part(number, engine.measured(engine.generate(first)))


def turns(engine, asked: list[list[int]], begun: Callable, first: Callable) -> Iterator[Part]:
    """One conversation over the prompt's ids, cut into turns of [tokens, generate]."""
    text, at = "", 0
    for number, (tokens, generate) in enumerate(asked, 1):
        ids, at = engine.prompt[at : at + tokens], at + tokens
        added = engine.added if number == 1 else 0
        text += prompt_text(ids, added, engine.decode, engine.encode)
        begun(number)
        stream = engine.ask(text, generate, first)
        measured = engine.measured(stream)
        text += engine.decode(measured["tokens"]) if stream.text is None else stream.text
        yield part(number, measured)


def part(number: int, measured: dict) -> Part:
    """prompt_tokens are those of the whole text: how many were in its cache mistral.rs does not
    say.
    """
    tokens = measured["tokens"]
    return Part(
        turn=number,
        sequence=None,
        **{name: measured[name] for name in ("prompt_tokens", "generated_tokens")},
        **{name: measured[name] for name in ("prefill_s", "ttft_s", "decode_s")},
        tokens_sha256=digest(tokens) if tokens else None,
        tokens=tokens,
        peak_active_mib=None,
        peak_pool_mib=None,
        held_pool_mib=None,
        held_rss_mib=own_memory().rss_mib,
    )
