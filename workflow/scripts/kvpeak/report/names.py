"""What the names that a finding uses stand for."""

from kvpeak.analysis.setting import prefill_of, spell_env, spell_penalty
from kvpeak.base.kv_caches import words_of
from kvpeak.report import markdown
from kvpeak.report.markdown import Markdown

OWN_LOOP = "this project's loop"  # which never clears the pool
REUSED = "a free buffer is reused if its size class is at most so many times the request's"


def names_line(summary: list[dict]) -> Markdown:
    """What the variants of MLX, the KV caches and the caps on reuse are, by the names that the
    finding uses; what all the variants share is said once.
    """
    told = {}
    rules = any(row.get("pool_rule") for row in summary)
    for row in summary:
        if row["method"] == "live" and (row["versions"] or "").startswith("mlx "):
            told[row["variant"]] = [
                "mlx-lm's loop" if row["loop"] == "mlx-lm" else OWN_LOOP,
                prefill_of(row),
                "naive attention" * (row["attention"] == "naive"),
                spell_env(row),
                spell_penalty(row),
                _pool_of(row) * rules,
                "recorded, which takes memory" * bool(row.get("recorded")),
            ]
    columns = zip(*told.values(), strict=True)
    shared = [words[0] for words in columns if words[0] and len(set(words)) == 1]
    variants = {
        name: ", ".join(word for word in words if word and word not in shared)
        for name, words in told.items()
    }
    caches = {row["kv_cache"]: words_of(row["kv_cache"]) for row in summary}
    ratios = [row["cap"] for row in summary if row["cap"].endswith("x")]
    parts = [_words_of(words) for words in (variants, caches) if len(words) > 1]
    parts += [_words_of(dict.fromkeys(ratios, REUSED))] * bool(ratios)
    if len(variants) > 1 and shared:
        parts.insert(0, f"Each variant: {markdown.escape(', '.join(shared))}")
    return Markdown(". ".join(parts) + "." if parts else "")


def _pool_of(row: dict) -> str:
    rule = (row.get("pool_rule") or "").replace(f",cap:{row['cap']}", "")
    named = "of that name" if rule == row["variant"] else rule
    return f"the pool's rule {named}" if rule else "MLX's own pool"


def _words_of(told: dict[str, str]) -> str:
    """Names with what they are; those of which the same is said stand together."""
    names: dict[str, list[str]] = {}
    for name, text in told.items():
        names.setdefault(text, []).append(markdown.code(name))
    return "; ".join(f"{', '.join(some)}: {markdown.escape(text)}" for text, some in names.items())
