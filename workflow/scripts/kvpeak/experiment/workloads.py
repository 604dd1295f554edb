"""Prompts that are more than one text: turns of a session, repeated requests, a batch, two prompts
that begin alike.
"""

import re

from kvpeak.experiment.config_file import ConfigError

KINDS = ("turns", "repeat", "batch", "shared_prefix")
OF = {"mlx": KINDS, "mistralrs": ("turns", "repeat")}  # engine → the kinds that it has
NAMED = re.compile(rf"({'|'.join(KINDS)}) [1-9]\d{{0,8}}", re.ASCII)  # what name_of says
SHARED_PARTS = 4  # of two prompts that begin alike: docs/protocol.md
MOST_TURNS = 100_000  # of a session
WHY = {
    ("mistralrs", "batch"): "mistral.rs decides itself which requests it puts together",
    ("mistralrs", "shared_prefix"): "its prefix cache can be neither saved nor emptied",
    "candle-replay": "it replays one prompt",
    "command": "a program is told one prompt",
}


def prompt_entry(file, name: str, entry: dict) -> dict:
    """A prompt's entry, complete: `tokens` is how many are cut from the corpus in all.

    Raises ConfigError for a workload that lacks what it needs, or is two at once.
    """
    key = f"prompts.{name}"
    kinds = [kind for kind in KINDS if kind in entry]
    if len(kinds) > 1:
        raise ConfigError(file, key, f"{' and '.join(kinds)}: expected one of them")
    if "keep" in entry and kinds != ["turns"]:
        raise ConfigError(file, f"{key}.keep", "is for turns")
    if parts := "a session's turns" if kinds == ["turns"] else _given_lengths(entry):
        if "tokens" in entry:
            raise ConfigError(file, f"{key}.tokens", f"{parts} say it; leave it out")
    elif "tokens" not in entry:
        raise ConfigError(file, key, "key tokens is missing")
    if kinds == ["turns"]:
        count = sum(turn.get("times", 1) for turn in entry["turns"])
        if count > MOST_TURNS:
            raise ConfigError(
                file, f"{key}.turns", f"{count:,} in all: expected at most {MOST_TURNS:,}"
            )
        turns = [turn for turn in entry["turns"] for _ in range(turn.get("times", 1))]
        entry = entry | {"turns": turns, "keep": entry.get("keep", "all")}
    shared, tokens = entry.get("shared_prefix", 0), entry.get("tokens", 0)
    if shared and shared >= tokens:
        raise ConfigError(
            file,
            f"{key}.shared_prefix",
            f"{shared}: expected fewer than the {tokens} tokens of each prompt",
        )
    return entry | {"tokens": _in_all(entry)}


def _given_lengths(entry: dict) -> str:
    """The parts that say their own lengths, in words, or ''."""
    return "a batch's lengths" if isinstance(entry.get("batch"), list) else ""


def _in_all(entry: dict) -> int:
    """Tokens that are cut from the corpus."""
    if "turns" in entry:
        return sum(turn["tokens"] for turn in entry["turns"])
    if _given_lengths(entry):
        return sum(entry["batch"])
    if "shared_prefix" in entry:
        return 2 * entry["tokens"] - entry["shared_prefix"]
    return entry["tokens"] * entry.get("batch", 1)


def kind_of(entry: dict) -> str:
    """The kind of a prompt's entry, or of what its request says; '' for one text."""
    return next((kind for kind in KINDS if kind in entry), "")


def name_of(entry: dict) -> str:
    """The kind, and how many turns, requests, sequences or shared tokens: e.g. `batch 8`; '' for
    one text.
    """
    kind = kind_of(entry)
    value = entry.get(kind)
    return f"{kind} {len(value) if isinstance(value, list) else value}" if kind else ""


def parts_of(name: str) -> int:
    """How many parts a run has of what name_of said; none for one text."""
    kind, _, number = name.partition(" ")
    return SHARED_PARTS if kind == "shared_prefix" else int(number or 0)


def spell(name: str, tokens: int | None = None) -> str:
    """What name_of said, in words. tokens: of all parts together, if they are known."""
    kind, _, number = name.partition(" ")
    if not NAMED.fullmatch(name):
        return name
    count, s = f"{int(number):,}", "" if number == "1" else "s"
    if kind == "repeat" and tokens:
        return f"{count} requests of {round(tokens / int(number)):,} tokens"
    return {
        "turns": f"a session of {count} turn{s}",
        "repeat": f"{count} requests",
        "batch": f"a batch of {count} sequence{s}",
        "shared_prefix": f"two prompts that share {count} token{s}",
    }[kind]


def is_shorter(entry: dict, than: dict) -> bool:
    """Whether a prompt takes less than another of its kind: what does not fit with the one does not
    fit with the other.
    """
    return (
        kind_of(entry) == kind_of(than)
        and entry["tokens"] < than["tokens"]
        and longest(entry, 0) <= longest(than, 0)
    )


def said_by(entry: dict) -> str:
    """The key of a prompt's entry that says how long it is."""
    return kind_of(entry) if "turns" in entry or _given_lengths(entry) else "tokens"


def not_applicable(engine: str, entry: dict) -> str:
    """Why the engine does not measure a prompt's entry, or ''."""
    kind = kind_of(entry)
    if not kind or kind in OF.get(engine, ()):
        return ""
    why = WHY.get((engine, kind)) or WHY[engine]
    return f"not applicable: engine {engine} does not measure {kind}: {why}"


def mistralrs_not_applicable(entry: dict, protocol: dict) -> str:
    """Why mistral.rs cannot be told the turns of an entry, or ''. protocol: as in its request."""
    if "turns" not in entry:
        return ""
    if entry["keep"] == "trim":
        return "not applicable: mistral.rs cannot be told to take an answer back (keep: trim)"
    if protocol["repeat_penalty"] != 1 and protocol["repeat_window"]:
        return "not applicable: turns are measured without a penalty; set repeat_penalty: 1"
    if entry["keep"] == "all" and protocol["warmup"] + protocol["recorded"] > 1:
        return (
            "not applicable: a second run would find the first one's turns in mistral.rs's prefix "
            "cache; set warmup: 0, recorded: 1, and processes instead"
        )
    return ""


def asked(entry: dict, generate: int) -> dict:
    """What the request says of the workload; {} for a plain prompt. generate: tokens, if not
    said.
    """
    if "turns" in entry:
        turns = [[turn["tokens"], turn.get("generate", generate)] for turn in entry["turns"]]
        return {"workload": {"turns": turns, "keep": entry["keep"]}}
    kind = kind_of(entry)
    return {"workload": {kind: entry[kind]}} if kind else {}


def longest(entry: dict, generate: int) -> int:
    """Positions that the longest sequence of the prompt takes, with what is generated: of a session
    all its turns, and the answers that stay. generate: tokens, if not said.
    """
    if "turns" in entry:
        return _of_session(entry["turns"], generate, trimmed=entry.get("keep") == "trim")
    if "shared_prefix" in entry:
        return (entry["tokens"] + entry["shared_prefix"]) // 2 + generate
    if _given_lengths(entry):
        return max(entry["batch"]) + generate
    return entry["tokens"] // entry.get("batch", 1) + generate


def _of_session(turns: list[dict], generate: int, trimmed: bool) -> int:
    held = most = 0
    for turn in turns:
        held += turn["tokens"]
        answer = turn.get("generate", generate)
        most = max(most, held + answer)
        held += 0 if trimmed else answer
    return most
