"""Which cells run as their engine runs by itself, and what of the others is this project's own.

A laboratory setting isolates one mechanism; nobody who uses the engine has it. What is found there
is said to come from there.
"""

from kvpeak.base.fields import split_texts

MIN_IMPORT_MIB = 1.0  # less is no part of a difference
UNSEEN_PROMPT = (0, 27, 1), (0, 31, 3)  # by their tokens (docs/findings/2026-12-releases)
STOCK = {"loop": "mlx-lm", "kv_cache": "mlx-lm", "cap": "default"}


def laboratory(row: dict) -> dict[str, str]:
    """Axis → what of a live MLX cell's setting mlx-lm does not have by itself; empty for stock.

    `row` is of summary.csv. Cells of other engines run as they are; a replay is said to be one.
    """
    if row["method"] != "live" or not (row.get("versions") or "").startswith("mlx "):
        return {}
    found = {}
    if row["kv_cache"] != STOCK["kv_cache"]:
        found["kv_cache"] = f"the {row['kv_cache']} cache"
    if row["cap"] != STOCK["cap"]:
        cap = "no cap" if row["cap"] == "none" else f"a cap of {row['cap']}"
        found["cap"] = f"{cap} on the buffer pool"
    words = []
    if row.get("loop") != STOCK["loop"]:
        words.append("this project's loop")
    if row.get("attention") == "naive":
        words.append("naive attention")
    if row.get("env"):
        words.append(f"{spell_env(row)} set")
    if words:
        found["variant"] = " with ".join(words)
    return found


def spell_env(row: dict) -> str:
    """E.g. `A=1 and B=2`: the variables that the variant of a cell sets; '' if none."""
    processes = split_texts(row.get("env"))
    return " and ".join(text for each in processes for text in split_texts(each))


def is_stock(row: dict) -> bool:
    """Whether a live MLX cell ran as mlx-lm runs it."""
    mlx = (row.get("versions") or "").startswith("mlx ")
    return row["method"] == "live" and mlx and not laboratory(row)


def prefill_of(row: dict) -> str:
    """How a variant takes in a prompt, in words; '' where its record does not say it."""
    chunk = row.get("prefill_chunk")
    if not chunk:
        return ""
    return "the prompt whole" if chunk == "whole" else f"the prompt {chunk} tokens at a time"


def _chunk(row: dict) -> str:
    """How the cell's own prompt was taken in: a short one is whole in any case."""
    words = prefill_of(row)
    short = words and row["prefill_chunk"].isdecimal()
    tokens = row.get("longest_prompt") or row["prompt_tokens"]
    short = short and tokens <= int(row["prefill_chunk"])
    return "the prompt whole" if short else words


def differences(before: dict, after: dict) -> str:
    """In what two cells of different variants differ, in words, as far as their records say it.

    E.g. `mlx-lm's loop → this project's; the prompt 2,048 tokens at a time → the prompt whole`.
    """
    kinds = (_loop, _chunk, _attention, _env, _penalty, _recorded, _rule)
    told = [tuple(map(of, (before, after))) for of in kinds]
    found = [f"{one} → {other}" for one, other in told if one and other and one != other]
    return "; ".join(filter(None, [*found, imported(before, after)]))


def imported(before: dict, after: dict) -> str:
    """How much of the difference is what importing the loop takes, in words; '' if hardly any. What
    is imported lies in the process, not on a GPU.
    """
    on_gpu = any(row.get("peak_device_mib") is not None for row in (before, after))
    imports = [None if on_gpu else row.get("loop_mib") for row in (before, after)]
    if None in imports or abs(less := imports[1] - imports[0]) < MIN_IMPORT_MIB:
        return ""
    way = "more" if less > 0 else "less"
    return f"importing the loop takes {abs(less):,.0f} MiB {way}"


def prompt_unseen(row: dict) -> bool:
    """Whether mlx-lm's penalty sees no more of the prompt than the last token in this release."""
    version = _packages(row).get("mlx-lm", "") if row.get("loop") == STOCK["loop"] else ""
    numbers = tuple(int(part) for part in version.split(".") if part.isdecimal())
    return UNSEEN_PROMPT[0] <= numbers <= UNSEEN_PROMPT[1]


def packages_apart(before: dict, after: dict) -> str:
    """The packages of two cells whose versions differ, e.g. `mlx 0.31.2 → 0.32.4`."""
    one, other = map(_packages, (before, after))
    return ", ".join(
        f"{name} {one[name]} → {other[name]}"
        for name in one
        if name in other and one[name] != other[name]
    )


def _packages(row: dict) -> dict[str, str]:
    """Package → version of `mlx 0.32.4, mlx-lm 0.32.2`."""
    texts = map(str.strip, (row.get("versions") or "").split(","))
    return dict(text.split(" ", 1) for text in texts if " " in text)


def _loop(row: dict) -> str:
    if not row.get("loop"):
        return ""
    return "mlx-lm's loop" if row["loop"] == STOCK["loop"] else "this project's loop"


def _attention(row: dict) -> str:
    return f"{row['attention']} attention" if row.get("attention") else ""


def _env(row: dict) -> str:
    return spell_env(row) or "no variable set"


def _penalty(row: dict) -> str:
    return spell_penalty(row) or ("no repeat penalty" if row.get("repeat_penalty") else "")


def spell_penalty(row: dict) -> str:
    """E.g. `a repeat penalty of 1.1`; '' without one, and where the record does not say it."""
    given = row.get("repeat_penalty") or "1"
    return "" if given in ("1", "1.0") else f"a repeat penalty of {given}"


def _recorded(row: dict) -> str:
    return "recorded" if row.get("recorded") else "not recorded"


def _rule(row: dict) -> str:
    return f"the pool's rule {row['pool_rule']}" if row.get("pool_rule") else "MLX's own rule"
