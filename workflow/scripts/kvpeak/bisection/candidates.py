"""What lies between two commits of a matrix: a package's releases, or a repository's revisions."""

import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass

from kvpeak.base import layout
from kvpeak.base.errors import UserError
from kvpeak.environments.build import prepared
from kvpeak.environments.releases import numbers, releases
from kvpeak.experiment.engines import COMMAND
from kvpeak.experiment.matrix import Matrix
from kvpeak.experiment.preparation import to_be_tried_again
from kvpeak.experiment.requests import build_entry
from kvpeak.protocol.programs import SCRIPTS
from kvpeak.system.git import git
from kvpeak.system.programs import NO_QUESTIONS, run_program

BUILD_S = 14400  # as the rule `engine`


@dataclass(frozen=True)
class Candidates:
    """names: as a commit each, from the good end to the bad one. entry: name → its entry, as in the
    matrix. prepare: makes what its engine runs in; raises UserError."""

    names: list[str]
    entry: Callable[[str], dict]
    prepare: Callable[[str], None]


def candidates_of(matrix: Matrix, good: str, bad: str) -> Candidates:
    """Everything from the commit `good` to the commit `bad`, both included. Raises UserError."""
    for option, name in (("--good", good), ("--bad", bad)):
        if name not in matrix.commits:
            raise UserError(
                f"{option}: {name}; expected a commit of {matrix.file}: {', '.join(matrix.commits)}"
            )
    ends = matrix.commits[good], matrix.commits[bad]
    if len({entry["engine"] for entry in ends}) > 1:
        raise UserError(f"--good {good} and --bad {bad} are different engines; expected one")
    if ends[0]["engine"] == COMMAND:
        return _revisions(good, bad, *ends)
    return _releases(good, bad, *ends)


def _releases(good: str, bad: str, old: dict, new: dict) -> Candidates:
    """The releases between two entries that differ in one package."""
    sides = old.get("packages", {}), new.get("packages", {})
    differ = [name for name in sides[0] | sides[1] if sides[0].get(name) != sides[1].get(name)]
    if len(differ) != 1 or any(differ[0] not in side for side in sides):
        raise UserError(
            f"--good {good} and --bad {bad} differ in {', '.join(differ) or 'nothing'}; "
            "expected another version of one package"
        )
    package = differ[0]
    first, last = (side[package] for side in sides)
    low, high = sorted(map(numbers, (first, last)))
    versions = [each.version for each in releases(package) if low <= numbers(each.version) <= high]
    if not {first, last} <= set(versions):
        known = ", ".join(each.version for each in releases(package)) or "none"
        raise UserError(f"{package} {first} to {last}: expected releases that are known: {known}")
    if numbers(first) > numbers(last):
        versions.reverse()
    by_name = {f"{package}-{version}": version for version in versions}
    names = [good, *[*by_name][1:-1], bad]
    version_of = by_name | {good: first, bad: last}

    def entry(name: str) -> dict:
        return old | {"packages": sides[0] | {package: version_of[name]}}

    return Candidates(names, entry, lambda name: prepared(name, entry(name)["packages"]))


def _revisions(good: str, bad: str, old: dict, new: dict) -> Candidates:
    """The revisions on the way from one to the other in the repository of both."""
    if old["repository"] != new["repository"]:
        raise UserError(f"--good {good} and --bad {bad} have different repositories; expected one")
    _build(bad, new)
    source = layout.engine_source(bad)
    listed = ["rev-list", "--reverse", "--ancestry-path"]
    way = f"{old['revision']}..{new['revision']}"
    between = git(*listed, way, folder=source).split()
    if not between:
        raise UserError(
            f"--bad {bad}: {new['revision']} does not come after {old['revision']} in "
            f"{new['repository']}; expected a later revision"
        )
    revision_of = {f"{bad}-{full[:10]}": full for full in between[:-1]}
    revision_of |= {good: old["revision"], bad: new["revision"]}
    names = [good, *[*revision_of][:-2], bad]

    def entry(name: str) -> dict:
        return new | {"revision": revision_of[name]}

    return Candidates(names, entry, lambda name: _build(name, entry(name)))


def _build(name: str, entry: dict) -> None:
    """Build one revision, unless that was done here before. Raises UserError."""
    record = layout.engine_record(name)
    if record.exists() and not to_be_tried_again(record):
        return
    command = [sys.executable, str(SCRIPTS / "build_engine.py"), "--commit", name]
    command += ["--entry", json.dumps(build_entry(entry)), "--out", str(record)]
    done = run_program(command, BUILD_S, variables=os.environ | NO_QUESTIONS)
    if done.returncode:
        raise UserError(f"commit {name}: could not be built; the lines above say why")
