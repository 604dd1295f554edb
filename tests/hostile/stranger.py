"""What a stranger puts into a folder of results: programs, links, and text that wants to be more
than text.
"""

import json
import os
import unicodedata
from pathlib import Path

# A terminal's title and colour, a reversed direction, a lone surrogate, HTML, Markdown, a formula.
EVIL = (
    "=HYPERLINK(1) \x1b]0;owned\x07\x1b[31m \u202etxt.exe \ud800 <script>alert(1)</script> "
    "[a](javascript:alert(1)) ![i](http://evil.example/x) | x | `c` http://evil.example/y"
)
HIDDEN = {"Cc", "Cf", "Cs", "Co", "Zl", "Zp"}


def tripwire(file: Path, wire: Path) -> None:
    """A program that leaves `wire` behind if anybody starts it."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"#!/bin/sh\ntouch '{wire}'\n")
    file.chmod(0o755)


def put_programs(results: Path, commit: str, wire: Path) -> None:
    """An environment, a build and a mirror as an older kvpeak kept them in results/."""
    tripwire(results / f"envs/{commit}/venv/bin/python", wire)
    record = {"commit": commit, "packages": {"mlx": "0.31.1"}, "own": True, "freeze": [EVIL]}
    _json(results / f"envs/{commit}/environment.json", record)
    lock = {"lock": "evil @ git+https://evil.example/x", "unavailable": "", "packages": {}}
    _json(results / f"envs/{commit}/resolution.json", lock)
    tripwire(results / f"engines/{commit}/source/bin/x", wire)
    mirror = results / "mirrors/x-0123.git"
    tripwire(mirror / "hooks/post-checkout", wire)
    (mirror / "config").write_text(
        f'[core]\nfsmonitor = "touch {wire}"\n[remote "origin"]\nurl = "ext::touch {wire}"\n'
    )
    (mirror / "HEAD").write_text("ref: refs/heads/main\n")


def put_links(folder: Path, outside: Path) -> None:
    """Links to `outside`, under every name that a temporary file ever had here."""
    for name in ("summary.csv", "runs.csv", "checks.csv", "processes.csv", "fits.csv"):
        (folder / f"results/.{name}.tmp").symlink_to(outside)
    for name in ("finding.md", "details.md", "finding.html"):
        (folder / f"report/.{name}.tmp").symlink_to(outside)


def put_text(record: Path) -> None:
    """Hostile text in every field of a cell.json that takes text."""
    said = json.loads(record.read_text())
    said |= {"detail": EVIL, "flags": [EVIL], "log": EVIL}
    said["engine"] |= {"versions": {EVIL: EVIL}, "blas": EVIL, "dtype": EVIL, "loop": EVIL}
    said["machine"]["before"] |= {"name": EVIL, "cpu": EVIL}
    said["harness"]["revision"] = EVIL
    said["request"]["model"] |= {"name": EVIL, "config": EVIL}
    said["request"]["prompt"]["name"] = EVIL
    said["request"]["env"] = {EVIL: EVIL}
    said["memory"]["peak_footprint_source"] = EVIL
    _json(record, said)


def put_damage(cells: list[Path]) -> None:
    """One kind of damage for each cell."""
    first, second, third = cells
    said = json.loads((first / "cell.json").read_text())
    said["engine"]["method"] = ["live"]
    _json(first / "cell.json", said)
    (second / "cell.json").write_text("[" * 100_000)
    (third / "memory.csv").unlink()
    os.mkfifo(third / "memory.csv")


def take_away_what_is_no_file(folder: Path) -> None:
    """What Snakemake refuses to begin with."""
    for path in folder.rglob("*"):
        if path.is_symlink() or not (path.is_file() or path.is_dir()):
            path.unlink()


def hidden(text: str) -> set[str]:
    """The characters that cannot be seen, besides white space."""
    return {c for c in text if unicodedata.category(c) in HIDDEN and c not in "\n\t\r"}


def everything(folder: Path) -> dict[str, bytes | str]:
    """Each file's bytes and each link's target below a folder."""
    return {
        path.relative_to(folder).as_posix(): str(path.readlink())
        if path.is_symlink()
        else path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_symlink() or path.is_file()
    }


def _json(file: Path, value: object) -> None:
    file.write_text(json.dumps(value, indent=1))
