"""Prompts that are more than one text: turns of a session, repeated requests, a batch."""

from kvpeak.experiment.config_file import ConfigError

KINDS = ("turns", "repeat", "batch")


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
    if kinds == ["turns"]:
        if "tokens" in entry:
            raise ConfigError(
                file, f"{key}.tokens", "a session's turns say their own; leave it out"
            )
        turns = [turn for turn in entry["turns"] for _ in range(turn.get("times", 1))]
        return entry | {
            "turns": turns,
            "keep": entry.get("keep", "all"),
            "tokens": sum(turn["tokens"] for turn in turns),
        }
    if "tokens" not in entry:
        raise ConfigError(file, key, "key tokens is missing")
    if kinds == ["batch"]:
        return entry | {"tokens": entry["tokens"] * entry["batch"]}
    return entry


def asked(entry: dict, generate: int) -> dict:
    """What the request says of the workload; {} for a plain prompt. generate: tokens, if not
    said.
    """
    if "turns" in entry:
        turns = [[turn["tokens"], turn.get("generate", generate)] for turn in entry["turns"]]
        return {"workload": {"turns": turns, "keep": entry["keep"]}}
    return next(
        ({"workload": {kind: entry[kind]}} for kind in ("repeat", "batch") if kind in entry), {}
    )


def longest(entry: dict, generate: int) -> int:
    """Positions that one sequence of the prompt takes, with what is generated."""
    if "turns" in entry:
        return sum(turn["tokens"] + turn.get("generate", generate) for turn in entry["turns"])
    return entry["tokens"] // entry.get("batch", 1) + generate
