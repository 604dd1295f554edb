"""Files of a pinned revision on the model hub, checked against the hub's own hashes."""

import fnmatch
import hashlib
from pathlib import Path

from kvpeak.base.errors import Unavailable, UserError
from kvpeak.base.files import sha256_of
from kvpeak.system.programs import hosts_only

TIMEOUT_S = 20.0  # of a hub that does not answer; the client's own is none


def download(
    repository: str, revision: str, patterns: list[str], pinned: dict[str, str], folder: Path
) -> list[str]:
    """Download the repository's top-level files that match a pattern. Returns their names.

    `pinned` gives the SHA-256 of files by name, checked beside the hub's own hashes.

    Files that an earlier, interrupted call completed are kept. Raises UserError when the hub cannot
    be reached or refuses, or when a file is not what the hub says it is.
    """
    import huggingface_hub  # here: only a download needs it

    try:
        listing = huggingface_hub.HfApi().model_info(
            repository, revision=revision, files_metadata=True, timeout=TIMEOUT_S
        )
        files = [file for file in listing.siblings if wanted(file.rfilename, patterns)]
        for name in pinned.keys() - {file.rfilename for file in files}:
            raise UserError(f"{name}: pinned by its sha256, and the revision has no such file")
        for file in sorted(files, key=lambda file: file.size):
            name = file.rfilename
            huggingface_hub.hf_hub_download(repository, name, revision=revision, local_dir=folder)
            check(folder / name, file, pinned.get(name))
    except UserError:
        raise
    except Exception as error:  # the client's own errors, its HTTP library's and OSError
        reason = str(error).strip().splitlines() or [type(error).__name__]
        said = hosts_only(reason[0])  # the hub's address may hold a password
        raise Unavailable(f"cannot be downloaded from the hub ({said})") from None
    return [file.rfilename for file in files]


def wanted(name: str, patterns: list[str]) -> bool:
    """Whether it is a top-level file with one of the names."""
    return "/" not in name and any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def check(path: Path, file, pinned: str | None) -> None:
    """Compare with the hub's listing, which has the SHA-256 of large files and the git blob id of
    the others, and with the pinned SHA-256. A file that differs is deleted. Raises UserError."""
    checks = [("bytes", path.stat().st_size, file.size)]
    if file.lfs:
        checks.append(("sha256", sha256_of(path), file.lfs.sha256))
    else:
        checks.append(("git blob id", git_blob_id(path), file.blob_id))
    if pinned:
        checks.append(("sha256", sha256_of(path), pinned))
    for what, found, expected in checks:
        if found != expected:
            path.unlink()
            raise UserError(f"{path.name}: {what}: {found}, expected {expected}; try again")


def git_blob_id(path: Path) -> str:
    """SHA-1 of `blob SIZE`, a zero byte, and the content: git's name for it."""
    content = path.read_bytes()
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
