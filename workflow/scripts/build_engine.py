"""Build one commit of an external engine: clone its repository at the revision, build it, record what was built.

    results/engines/NAME/source        the checkout, cloned from one mirror per repository
    results/engines/NAME/engine.json   written last: revision, lock files, toolchain, program with its hash

A build that was interrupted left no engine.json, so it starts again from nothing.
"""

import argparse
import fcntl
import hashlib
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

from kvpeak.base.errors import UserError
from kvpeak.base.files import sha256_of
from kvpeak.system.host import missing_programs

LOCK_FILES = ("Cargo.lock", "uv.lock", "poetry.lock", "package-lock.json", "go.sum", "flake.lock")


class Build:
    """One build. Every error is a UserError that names the commit; commands write to standard error."""

    def __init__(self, commit: str, entry: dict, folder: Path):
        self.commit, self.entry, self.folder = commit, entry, folder
        self.source = folder / "source"

    def record(self) -> dict:
        """Build, and return the contents of engine.json."""
        if missing := missing_programs(["git", *self.entry.get("needs", {}).get("programs", [])]):
            raise self.error(f"program {missing[0]} is not on the PATH; install it")
        revision = self.check_out()
        if self.entry.get("build"):
            self.run(self.entry["build"], "build", self.source)
        program = self.source / self.entry["run"][0]
        if not program.is_file():
            raise self.error(f"run: the build made no {self.entry['run'][0]} in {self.source}")
        checked = self.output(self.entry["verify"]) if self.entry.get("verify") else None
        return {
            "commit": self.commit,
            "repository": self.entry["repository"],
            "revision": revision,
            "lock_files": {
                name: sha256_of(self.source / name)
                for name in LOCK_FILES
                if (self.source / name).is_file()
            },
            "toolchain": {
                name: self.version(name) for name in self.entry.get("needs", {}).get("programs", [])
            },
            "build": self.entry.get("build", []),
            "verify": checked and {"command": self.entry["verify"], "output": checked},
            "program": str(program),
            "program_sha256": sha256_of(program),
        }

    def check_out(self) -> str:
        """Clone the revision into source/ and return its full hash."""
        self.refuse_uncommitted()
        mirror = self.mirror()
        wanted = self.entry["revision"]
        full = git_output(mirror, "rev-parse", "--verify", "--quiet", f"{wanted}^{{commit}}")
        if not full:
            raise self.error(
                f"revision {wanted} is not in {self.entry['repository']}; "
                "expected a commit hash that its branches or tags reach"
            )
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        self.git("clone", "--quiet", "--no-checkout", str(mirror.resolve()), str(self.source))
        self.git("-C", str(self.source), "checkout", "--quiet", "--detach", full)
        return full

    def refuse_uncommitted(self) -> None:
        """A revision does not hold what a local repository has not committed."""
        local = Path(self.entry["repository"])
        if local.is_dir() and git_output(local, "status", "--porcelain", "--untracked-files=no"):
            raise self.error(
                f"repository {local} has uncommitted changes, which revision "
                f"{self.entry['revision']} does not hold; commit or stash them"
            )

    def mirror(self) -> Path:
        """The repository's mirror, made or brought up to date as needed; commits share it."""
        repository = self.entry["repository"]
        name = re.sub(r"[^A-Za-z0-9]+", "-", Path(repository).name).strip("-")
        digest = hashlib.sha256(repository.encode()).hexdigest()[:12]
        mirror = self.folder.parent / ".mirrors" / f"{name}-{digest}.git"
        mirror.parent.mkdir(parents=True, exist_ok=True)
        with mirror.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not (mirror / "HEAD").exists():
                partial = mirror.with_suffix(".partial")
                shutil.rmtree(partial, ignore_errors=True)
                self.git("clone", "--quiet", "--mirror", repository, str(partial))
                partial.rename(mirror)
            elif not git_output(mirror, "cat-file", "-t", f"{self.entry['revision']}^{{commit}}"):
                self.git("-C", str(mirror), "remote", "update")
        return mirror

    def git(self, *arguments: str) -> None:
        self.run(["git", *arguments], "git")

    def run(self, command: list[str], step: str, where: Path | None = None) -> None:
        """Run one command in the folder `where` (default: the project's root)."""
        try:
            done = subprocess.run(command, cwd=where, stdin=subprocess.DEVNULL, stdout=sys.stderr)
        except OSError as error:
            raise self.error(f"{step}: {command[0]}: no such program ({error.strerror})") from None
        if done.returncode:
            shown = " ".join(command)
            raise self.error(
                f"{step} failed with {done.returncode}: {shown}; the lines above say why"
            )

    def output(self, command: list[str]) -> str:
        """What a command prints in the checkout."""
        done = subprocess.run(
            command, cwd=self.source, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True
        )
        if done.returncode:
            raise self.error(f"verify failed with {done.returncode}: {' '.join(command)}")
        return done.stdout.strip()

    def version(self, program: str) -> str:
        """The first line of PROGRAM --version."""
        done = subprocess.run([program, "--version"], capture_output=True, text=True)
        return (done.stdout or done.stderr).strip().split("\n")[0]

    def error(self, message: str) -> UserError:
        return UserError(f"commits.{self.commit}: {message}")


def git_output(folder: Path, *arguments: str) -> str:
    """What git prints in a repository, or '' if it fails."""
    done = subprocess.run(["git", "-C", str(folder), *arguments], capture_output=True, text=True)
    return done.stdout.strip() if done.returncode == 0 else ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--commit", required=True, help="the commit's name")
    parser.add_argument(
        "--entry", type=json.loads, required=True, help="its entry in the matrix, as JSON"
    )
    parser.add_argument(
        "--out", type=Path, required=True, help="engine.json in the commit's folder"
    )
    arguments = parser.parse_args()
    try:
        record = Build(arguments.commit, arguments.entry, arguments.out.parent).record()
    except UserError as error:
        print(error, file=sys.stderr)
        return 1
    temporary = arguments.out.with_suffix(".partial")
    temporary.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    temporary.replace(arguments.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
