"""The runner's own folders, while an engine with the same rights runs."""

import os
from pathlib import Path

from kvpeak.base.errors import UserError


class Held:
    """A folder that is held open from before an engine starts.

    The engine may put a link or another folder in its place, or in the place of one above it. The
    descriptor leads to the runner's own all the same.
    """

    def __init__(self, folder: Path):
        """Raises OSError."""
        self.folder = folder
        self._known = {path: path.stat() for path in (folder, *folder.parents)}
        self.descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def __del__(self):
        if hasattr(self, "descriptor"):
            os.close(self.descriptor)

    def is_there(self) -> bool:
        """Whether its path still leads to it; or to nothing, below the same folder: whoever writes
        into it then makes it again.
        """
        for path, known in self._known.items():
            try:
                return os.path.samestat(path.stat(), known)
            except FileNotFoundError:
                continue
            except OSError:
                break
        return False

    def check(self) -> None:
        """Raise UserError if its path leads to something else."""
        if not self.is_there():
            raise UserError(
                f"{self.folder}: something else was put in the place of this folder while the "
                "engine ran; expected an engine that leaves the results alone"
            )
