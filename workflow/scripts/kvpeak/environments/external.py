"""One commit of an external engine: its repository is cloned at the revision, built, and recorded.

    .kvpeak/mirrors/NAME.git           one mirror for each repository
    .kvpeak/engines/COMMIT/source      the checkout, in which the program is built and run
    results/engines/COMMIT/engine.json what was built: revision, lock files, toolchain, program
                                       with its hash

A copy of the record lies beside the checkout, written last: an interrupted build has none and
starts again from nothing.
"""

import fcntl
import hashlib
import os
import re
import shutil
from pathlib import Path

from kvpeak.base.errors import Unavailable, UserError
from kvpeak.base.files import sha256_of
from kvpeak.base.layout import LOCAL, engine_source
from kvpeak.base.text import plain
from kvpeak.system.git import ANSWER_S, TRANSFER_S, GitError, git, git_or_nothing
from kvpeak.system.host import missing_programs
from kvpeak.system.lock import open_lock
from kvpeak.system.programs import last_line, run_program

LOCK_FILES = ("Cargo.lock", "uv.lock", "poetry.lock", "package-lock.json", "go.sum", "flake.lock")
BUILD_S = 10_800.0  # seconds that a build may take
VERIFY_S = 600.0
_PLAIN_KEY = re.compile(r"[\w.-]*", re.ASCII)


class Build:
    """One build. Every error is a UserError that names the commit; Unavailable where something
    cannot be had.
    """

    def __init__(self, commit: str, entry: dict):
        """`entry` is the commit's of the matrix."""
        self.commit, self.entry = commit, entry
        self.programs = entry.get("needs", {}).get("programs", [])
        self.source = engine_source(commit)

    def record(self) -> dict:
        """Build, and return the contents of engine.json."""
        try:
            return self._record()
        except UserError as error:
            raise error.within(f"commits.{self.commit}") from None

    def _record(self) -> dict:
        if missing := missing_programs(["git", *self.programs]):
            raise Unavailable(f"program {missing[0]} is not on the PATH; install it")
        revision = self._check_out()
        if self.entry.get("build"):
            self._run("build", BUILD_S)
        program = self.source / self.entry["run"][0]
        if not program.is_file():
            raise UserError(f"run: the build made no {self.entry['run'][0]} in {self.source}")
        checked = self._run("verify", VERIFY_S) if self.entry.get("verify") else None
        return {
            "commit": self.commit,
            "repository": self.entry["repository"],
            "revision": revision,
            "lock_files": {
                name: sha256_of(self.source / name)
                for name in LOCK_FILES
                if (self.source / name).is_file()
            },
            "toolchain": {name: self._version(name) for name in self.programs},
            "build": self.entry.get("build", []),
            "verify": checked and {"command": self.entry["verify"], "output": checked},
            "program": str(program),
            "program_sha256": sha256_of(program),
        }

    def _check_out(self) -> str:
        """Clone the revision into the checkout and return its full hash."""
        self._refuse_uncommitted()
        mirror = self._mirror()
        wanted = self.entry["revision"]
        asked = ("--verify", "--quiet", "--end-of-options", f"{wanted}^{{commit}}")
        full = git_or_nothing("rev-parse", *asked, folder=mirror)
        if not full:
            raise Unavailable(
                f"revision {wanted} is not in {self.entry['repository']}; "
                "expected a commit hash that its branches or tags reach"
            )
        shutil.rmtree(self.source.parent, ignore_errors=True)
        self.source.parent.mkdir(parents=True)
        where = (str(mirror.resolve()), str(self.source))
        git("clone", "--quiet", "--no-checkout", *where, limit_s=TRANSFER_S)
        git("checkout", "--quiet", "--detach", full, folder=self.source, limit_s=TRANSFER_S)
        return full

    def _refuse_uncommitted(self) -> None:
        """A revision does not hold what a local repository has not committed."""
        local = Path(self.entry["repository"])
        # In a submodule git would start what that one's own configuration names.
        changed = ("status", "--porcelain", "--untracked-files=no", "--ignore-submodules=dirty")
        if local.is_dir() and git_or_nothing(*_no_filters(local), *changed, folder=local):
            raise UserError(
                f"repository {local} has uncommitted changes, which revision "
                f"{self.entry['revision']} does not hold; commit or stash them"
            )

    def _mirror(self) -> Path:
        """The repository's mirror, made or brought up to date as needed; commits share it."""
        mirror = mirror_of(self.entry["repository"])
        mirror.parent.mkdir(parents=True, exist_ok=True)
        with os.fdopen(open_lock(mirror.with_suffix(".lock")), "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not (mirror / "HEAD").exists():
                self._clone(mirror)
            elif not git_or_nothing(
                "cat-file", "-t", f"{self.entry['revision']}^{{commit}}", folder=mirror
            ):
                git("remote", "update", folder=mirror, limit_s=TRANSFER_S)
        return mirror

    def _clone(self, mirror: Path) -> None:
        repository = self.entry["repository"]
        partial = mirror.with_suffix(".partial")
        shutil.rmtree(partial, ignore_errors=True)
        try:
            git("ls-remote", "--quiet", "--", repository, "HEAD", limit_s=ANSWER_S)
            where = ("--", repository, str(partial))
            git("clone", "--quiet", "--mirror", *where, limit_s=TRANSFER_S)
        except GitError as error:
            raise Unavailable(f"repository {repository} cannot be had: {error}") from None
        partial.rename(mirror)

    def _run(self, step: str, limit_s: float) -> str:
        """Run one of the entry's commands in the checkout; what it printed on its standard
        output.
        """
        command = self.entry[step]
        shown = " ".join(command)
        try:
            done = run_program(command, limit_s, folder=self.source, capture=step == "verify")
        except Unavailable as error:
            raise error.within(step) from None
        if done.returncode:
            said = last_line(done.stderr)
            raise UserError(
                f"{step} failed with {done.returncode}: {shown}{said and f' ({said})'}"
                "; its log says more"
            )
        return (done.stdout or "").strip()

    def _version(self, program: str) -> str:
        """The first line of PROGRAM --version."""
        done = run_program([program, "--version"], VERIFY_S, capture=True)
        return (done.stdout or done.stderr).strip().split("\n")[0]


def _no_filters(repository: Path) -> list[str]:
    """Options of git by which it starts none of the filters that a repository's own configuration
    names: that is in no revision, and nobody has looked at it.
    """
    asked = ("config", "--name-only", "--get-regexp", r"^filter\..*\.(clean|process|required)$")
    names = git_or_nothing(*asked, folder=repository).split("\n")
    if strange := next((name for name in names if not _PLAIN_KEY.fullmatch(name)), None):
        raise UserError(
            f"repository {repository}: its configuration names {plain(strange, 80)}; expected a "
            "filter's name of letters, digits, - and _, which git can be told not to start"
        )
    values = {name: "false" if name.endswith(".required") else "" for name in names if name}
    return [each for name, value in values.items() for each in ("-c", f"{name}={value}")]


def mirror_of(repository: str) -> Path:
    """Where the repository's mirror lies."""
    name = re.sub(r"[^A-Za-z0-9]+", "-", Path(repository).name).strip("-")
    digest = hashlib.sha256(repository.encode()).hexdigest()[:12]
    return LOCAL / "mirrors" / f"{name}-{digest}.git"
