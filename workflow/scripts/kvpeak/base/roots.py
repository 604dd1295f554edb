"""The folders of a project, which may lie on another disk: each may itself be a link."""

import os
from pathlib import Path

from kvpeak.base.errors import UserError
from kvpeak.base.files import check_contents, inside, is_late, listed, write_text
from kvpeak.base.layout import FINDING, LOCAL, MODELS, PROMPTS, RESULTS
from kvpeak.base.untrusted import read_text

ROOTS = (RESULTS, MODELS, PROMPTS, FINDING.parent)


def check_in_project(path: str) -> None:
    """Raise UserError if a path of a matrix leads out of the project by a link. What lies in one of
    ROOTS may lie where that leads.
    """
    root = next((root for root in ROOTS if Path(path).is_relative_to(root)), Path())
    inside(root, Path(path).relative_to(root))


def check_own(folder: Path) -> None:
    """Raise UserError if what kvpeak itself keeps in Snakemake's folder leads elsewhere, or has
    another name as well: an archive may bring that along, too, and nobody sees it.

    What is of the future there is of now afterwards, because nobody would look for it.
    """
    if folder.is_symlink():
        raise UserError(f"{folder}: a link; expected a folder; remove it")
    for entry in listed(folder):
        path, found = Path(entry.path), entry.stat(follow_symlinks=False)
        if not entry.name.startswith("kvpeak"):
            continue
        if entry.is_dir(follow_symlinks=False):
            check_contents(path, _set_to_now)
        elif not entry.is_file(follow_symlinks=False) or found.st_nlink > 1:
            raise UserError(f"{path}: a link, or no file of its own; delete {folder}")
        else:
            _set_to_now(path, found.st_mtime)


def _set_to_now(path: Path, changed_s: float) -> None:
    if is_late(changed_s):
        os.utime(path, follow_symlinks=False)


def check_root(root: Path) -> None:
    """What check_contents does; and a root that is a link leads to a folder that was empty when it
    was first seen here, or that a person has noted.

    An archive may bring a link to a folder of yours along. Raises UserError.
    """
    if root.is_symlink():
        target, note = root.resolve(), LOCAL / "links" / root.name
        known = note.exists() and read_text(note).strip() == str(target)
        if not known and (not target.is_dir() or any(target.iterdir())):
            raise UserError(
                f"{root}: a link to {target}, where something is already; if you have made it: "
                f"mkdir -p {note.parent} && readlink -f {root} > {note}; else remove it"
            )
        if not known:
            write_text(note, f"{target}\n")
    check_contents(root)
