"""What the KV caches hold, as the finding shows it: a row a model, a column a cache."""

from kvpeak.base.fields import split_texts
from kvpeak.base.numbers import KIB
from kvpeak.report import markdown
from kvpeak.report.markdown import Markdown, code, escape, number

MOST_MODELS = 200
UNSUPPORTED = "unsupported"


def kv_section(summary: list[dict]) -> dict | None:
    """The table and a sentence for the finding; None where no engine said what its caches hold."""
    models: dict[str, list[dict]] = {}
    for row in summary:
        if row["kv_layers"] or row["outcome"] == UNSUPPORTED:
            models.setdefault(row["model"], []).append(row)
    held = [row for rows in models.values() for row in rows if row["kv_layers"]]
    if not held:
        return None
    caches = list(dict.fromkeys(row["kv_cache"] for rows in models.values() for row in rows))
    body = [_row(model, rows, caches) for model, rows in list(models.items())[:MOST_MODELS]]
    header = ["model", *map(code, caches), "shapes", "why not the shapes'"]
    more = ["windows, KiB", "states, KiB", "layers"]
    return {
        "table": markdown.table([*header, *more], body, " " + "r" * (len(caches) + 1) + " " + "rr"),
        "sentence": _sentence(models),
        "models": len(models),
        "left_out": len(list(models)[MOST_MODELS:]),
    }


def _row(model: str, rows: list[dict], caches: list[str]) -> list:
    said = [row for row in rows if row["kv_layers"]]
    first = said[0] if said else dict.fromkeys(rows[0])
    return [
        code(model),
        *(_of_cache([row for row in rows if row["kv_cache"] == name]) for name in caches),
        number(first["kv_bytes_from_shapes"]),
        _why(first),
        *(_kib(first[name]) for name in ("kv_window_bytes", "kv_state_bytes")),
        "; ".join(split_texts(first["kv_layers"])) or None,
    ]


def _of_cache(rows: list[dict]) -> Markdown:
    """The bytes of a token, of several commits or types each once; or that it is unsupported."""
    told = {
        number(row["kv_bytes_per_token"]) if row["kv_layers"] else Markdown(UNSUPPORTED): None
        for row in rows
    }
    return Markdown(" / ".join(told)) if told else Markdown("–")


def _sentence(models: dict[str, list[dict]]) -> Markdown:
    """What differs from the shapes, and what takes no other cache; '' if nothing does."""
    differ = sum(any(_differs(row) for row in rows) for rows in models.values())
    states = sum(any(row["kv_state_bytes"] for row in rows) for rows in models.values())
    refused: dict[str, int] = {}
    for rows in models.values():
        names = {row["kv_cache"] for row in rows if row["outcome"] == UNSUPPORTED}
        if names == {row["kv_cache"] for row in rows}:
            names = {"any of these caches"}
        for name in sorted(names):
            refused[name] = refused.get(name, 0) + 1
    parts = []
    if differ:
        parts.append(f"a token takes other bytes than the shapes say in {differ}")
    if states:
        parts.append(f"{states} keep{'s' * (states == 1)} a state of fixed size")
    parts += [f"{count} cannot take {name}" for name, count in refused.items()]
    return escape(f"of {len(models)} models {', '.join(parts)}.") if parts else Markdown("")


def _differs(row: dict) -> bool:
    """Whether the model's own values, not in fewer bits, differ from the shapes."""
    return bool(row["kv_difference"]) and not row["kv_cache"].startswith("quantized")


def _why(row: dict) -> str:
    if row["kv_layers"] and row["kv_bytes_from_shapes"] is None:
        return "its config is not here as it was measured, or does not say its sizes"
    return row["kv_difference"] or ""


def _kib(value: float | None) -> Markdown:
    return number(value) if not value else number(value / KIB, 1)
