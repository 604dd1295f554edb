"""What the names that a finding uses stand for."""

from kvpeak.analysis.setting import prefill_of
from kvpeak.base.kv_caches import kv_cache
from kvpeak.report import markdown
from kvpeak.report.markdown import Markdown

OWN_LOOP = "this project's loop"  # which never clears the pool
REUSED = "a free buffer is reused if it is at most so many times as large as the request"


def names_line(summary: list[dict]) -> Markdown:
    """What the variants of MLX, the KV caches and the caps on reuse are, by the names that the
    finding uses.
    """
    told = {}
    for row in summary:
        if row["method"] == "live" and (row["versions"] or "").startswith("mlx "):
            loop = "mlx-lm's loop" if row["loop"] == "mlx-lm" else OWN_LOOP
            more = [prefill_of(row), "naive attention" * (row["attention"] == "naive")]
            rule = (row.get("pool_rule") or "").replace(f",cap:{row['cap']}", "")
            more += [row["env"], rule and f"the pool's rule {rule}"]
            told[row["variant"]] = ", ".join(filter(None, [loop, *more]))
    caches = {row["kv_cache"]: kv_cache(row["kv_cache"]).words for row in summary}
    ratios = [row["cap"] for row in summary if row["cap"].endswith("x")]
    caps = dict.fromkeys(ratios, REUSED)
    parts = [_words_of(words) for words in (told, caches) if len(words) > 1]
    parts += [_words_of(caps)] * bool(caps)
    return Markdown(". ".join(parts) + "." if parts else "")


def _words_of(told: dict[str, str]) -> str:
    """Names with what they are; those of which the same is said stand together."""
    names: dict[str, list[str]] = {}
    for name, text in told.items():
        names.setdefault(text, []).append(markdown.code(name))
    return "; ".join(f"{', '.join(some)}: {markdown.escape(text)}" for text, some in names.items())
