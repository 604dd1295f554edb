"""The one way in which git is called: it asks nothing, ends in time, and runs nothing that a
repository names.
"""

from pathlib import Path

from kvpeak.base.errors import Unavailable
from kvpeak.system.programs import PROXIES, SSH, environment, last_line, run_program

# No transport that is a command, no helper and no hook of a repository; a connection that stalls
# ends.
SAFE = (
    *("-c", "protocol.ext.allow=never"),
    *("-c", "core.fsmonitor=false"),
    *("-c", "core.hooksPath=/dev/null"),
    *("-c", "gc.auto=0", "-c", "maintenance.auto=false"),  # nothing that goes on when git ends
    *("-c", "http.lowSpeedLimit=100", "-c", "http.lowSpeedTime=60"),
)
ANSWER_S = 60.0  # for the first answer of a repository elsewhere
TRANSFER_S = 3600.0  # for all of it
QUICK_S = 60.0  # for what is on this disk


class GitError(Unavailable):
    """git could not do what was asked; its last line says why."""


def git(*arguments: str, folder: Path | None = None, limit_s: float = QUICK_S) -> str:
    """What git prints, in the repository `folder` if given. Raises GitError."""
    where = ("-C", str(folder)) if folder else ()
    try:
        done = run_program(
            ["git", *SAFE, *where, *arguments],
            limit_s,
            variables=environment(*SSH, *PROXIES),
            capture=True,
        )
    except Unavailable as error:
        raise GitError(str(error)) from None
    if done.returncode:
        raise GitError(f"git {arguments[0]} failed ({_cause(done.stderr) or done.returncode})")
    return done.stdout.strip()


def _cause(said: str) -> str:
    """The line that git calls fatal; advice follows it."""
    lines = (line.strip() for line in said.splitlines())
    return next((line for line in lines if line.startswith(("fatal:", "ssh:"))), last_line(said))


def git_or_nothing(*arguments: str, folder: Path | None = None) -> str:
    """What git prints, or '' if it fails."""
    try:
        return git(*arguments, folder=folder)
    except GitError:
        return ""
