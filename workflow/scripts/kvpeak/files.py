"""Files that are there completely or not at all."""

import json
from pathlib import Path


def write_json(path: Path, data) -> None:
    """Write JSON to a temporary name beside `path`, then rename it; makes the folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    temporary.replace(path)
