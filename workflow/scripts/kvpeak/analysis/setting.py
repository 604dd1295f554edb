"""Which cells run as their engine runs by itself, and what of the others is this project's own.

A laboratory setting isolates one mechanism; nobody who uses the engine has it. What is found there
is said to come from there.
"""

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
        limit = "no limit" if row["cap"] == "none" else f"a limit of {row['cap']}"
        found["cap"] = f"{limit} on the buffer pool"
    words = []
    if row.get("loop") != STOCK["loop"]:
        words.append("a loop that never clears the pool")
    if row.get("attention") == "naive":
        words.append("naive attention")
    if row.get("env"):
        words.append(f"{row['env']} set")
    if words:
        found["variant"] = " with ".join(words)
    return found


def is_stock(row: dict) -> bool:
    """Whether a live MLX cell ran as mlx-lm runs it."""
    mlx = (row.get("versions") or "").startswith("mlx ")
    return row["method"] == "live" and mlx and not laboratory(row)
