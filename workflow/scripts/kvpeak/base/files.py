"""Files that are there completely or not at all."""

import contextlib
import json
import os
from pathlib import Path


def write_json(path: Path, data) -> None:
    """Write JSON to a temporary name beside `path`, then rename it; makes the folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    temporary.replace(path)


def write_together(folder: Path, texts: dict[str, str]) -> None:
    """Write the files of `texts` (name → content) into `folder`; the last name is the marker.

    All are on the disk under temporary names before the first takes its own, and the old marker goes
    before the others change: whoever finds the marker finds files that belong together. Raises OSError; if
    that happens while writing, the old files are as they were and no temporary one is left.
    """
    folder.mkdir(parents=True, exist_ok=True)
    temporary = {name: folder / f".{name}.tmp" for name in texts}
    try:
        for name, text in texts.items():
            _write_through(temporary[name], text)
        (folder / [*texts][-1]).unlink(missing_ok=True)
        for name, file in temporary.items():
            file.replace(folder / name)
        _sync_folder(folder)
    except OSError:
        for file in temporary.values():
            with contextlib.suppress(OSError):
                file.unlink(missing_ok=True)
        raise


def _write_through(file: Path, text: str) -> None:
    try:
        with file.open("w", encoding="utf-8", newline="") as opened:
            opened.write(text)
            opened.flush()
            os.fsync(opened.fileno())
    except OSError as error:
        error.filename = error.filename or str(file)
        raise


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
