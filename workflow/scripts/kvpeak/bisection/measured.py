"""The search with real processes, and its state on the disk, from which it can go on."""

import hashlib
import json
import shlex
from collections.abc import Iterator
from types import NoneType

from kvpeak.base import layout
from kvpeak.base.axes import AXES, Cell
from kvpeak.base.errors import UserError
from kvpeak.base.files import write_json
from kvpeak.base.numbers import LARGEST
from kvpeak.base.roots import check_root
from kvpeak.base.untrusted import read_object
from kvpeak.bisection.candidates import Candidates
from kvpeak.bisection.search import BAD, GOOD, SKIPPED, Bisection, verdict
from kvpeak.experiment.matrix import Matrix
from kvpeak.experiment.preparation import to_be_tried_again
from kvpeak.experiment.requests import request
from kvpeak.runner.cell import run_cell

STATE = "state.json"
MEASURED = "measured"  # the verdict follows from the peaks of the ends
TOO_MUCH = ("oom", "guard")  # outcomes of a peak that was too large to be measured


class Search:
    """One cell of a matrix at many releases. folder: below results/bisect/, named by what was
    asked.
    """

    def __init__(
        self, matrix: Matrix, names: tuple[str, ...], candidates: Candidates, above: float | None
    ):
        """names: on every axis but the commit. above: MiB, or None to measure the ends.

        Raises UserError for names that the matrix does not have, and if the model or prompt is not
        made.
        """
        self.candidates, self.above = candidates, above
        self._matrix, self._names = matrix, names
        _check(matrix, names)
        ends = candidates.names[0], candidates.names[-1]
        asked = json.dumps([self._request(name) for name in ends] + [above], sort_keys=True)
        digest = hashlib.sha256(asked.encode()).hexdigest()[:8]
        self.folder = layout.RESULTS / "bisect" / f"{ends[0]}..{ends[1]}-{digest}"
        check_root(layout.RESULTS)
        self.measured: dict[str, dict] = self._read()

    def run(self) -> Iterator[str]:
        """Measure what has to be measured; yields a line for each process, and then what was found.

        Raises UserError if an end cannot be measured, or the two ends do not differ.
        """
        names = self.candidates.names
        if self.above is None:
            for name in (names[0], names[-1]):
                yield from self._measure(name)
                if self.measured[name]["peak_mib"] is None:
                    raise UserError(f"{name} has no peak: {self.measured[name]['detail']}")
        search = Bisection(names, self._verdicts())
        while name := search.next():
            yield from self._measure(name)
            search.verdicts = self._verdicts()
        yield self._found(search)

    @property
    def processes(self) -> int:
        """How many processes were measured so far."""
        return sum(each["verdict"] != SKIPPED for each in self.measured.values())

    def _found(self, search: Bisection) -> str:
        good, bad = search.found
        peaks = " → ".join(self._spell(name) for name in (good, bad))
        unknown = f"; between them {', '.join(search.between)}" if search.between else ""
        return (
            f"The peak changed at {bad}: {peaks} ({good} is the last without it{unknown}). "
            f"{self.processes} processes measured; {self.folder / STATE}"
        )

    def _spell(self, name: str) -> str:
        peak = self.measured.get(name, {}).get("peak_mib")
        return "not measured" if peak is None else f"{peak:,.0f} MiB"

    def _verdicts(self) -> dict[str, str]:
        """Of everything that was measured; the ends are what they were said to be."""
        names = self.candidates.names
        good, bad = (self.measured.get(name, {}).get("peak_mib") for name in (names[0], names[-1]))
        if self.above is None and good is not None and good == bad:
            raise UserError(f"both ends peak at {good:,.0f} MiB; expected two different peaks")
        found = {names[0]: GOOD, names[-1]: BAD}
        for name, each in self.measured.items():
            if name in found:
                continue
            if each["verdict"] == SKIPPED or each["peak_mib"] is None:
                found[name] = each["verdict"]
            else:
                found[name] = verdict(each["peak_mib"], good, bad, self.above)
        return found

    def _measure(self, name: str) -> Iterator[str]:
        """Measure one candidate unless that was done, and keep it."""
        if name in self.measured:
            yield f"{name}: {self._spell(name)}, kept from before"
            return
        cell = self._cell(name)
        out = self.folder / "cells" / cell.path
        try:
            self.candidates.prepare(name)
            outcome = run_cell(self._request(name), out)
        except UserError as error:
            self._keep(name, {"verdict": SKIPPED, "peak_mib": None, "detail": str(error)})
            yield f"{name}: skipped: {error}"
            return
        record = read_object(out / layout.RECORD_FILE)
        peak = headline_mib(record["memory"])
        known = {"peak_mib": peak if outcome == "ok" else None, "detail": record["detail"]}
        if outcome == "ok" and peak is not None:
            self._keep(name, known | {"verdict": MEASURED})
        else:
            self._keep(name, known | {"verdict": BAD if outcome in TOO_MUCH else SKIPPED})
        said = self._spell(name) if outcome == "ok" else outcome
        yield f"{name}: {said}, {self._verdict_of(name)}"

    def _verdict_of(self, name: str) -> str:
        names = self.candidates.names
        if self.above is None and not {names[0], names[-1]} <= self.measured.keys():
            return "an end"
        return self._verdicts()[name]

    def _keep(self, name: str, what: dict) -> None:
        self.measured[name] = what
        write_json(self.folder / STATE, {"candidates": self.candidates.names} | self._state())

    def _state(self) -> dict:
        return {"above_mib": self.above, "measured": self.measured}

    def _read(self) -> dict[str, dict]:
        """What was measured before. Raises UserError for a state that is none."""
        file = self.folder / STATE
        try:
            found = read_object(file)
        except FileNotFoundError:
            return {}
        if found.get("candidates") != self.candidates.names:
            return {}
        measured = found.get("measured")
        if not isinstance(measured, dict) or not all(map(_is_measured, measured.values())):
            raise UserError(
                f"{file}: measured: expected a verdict, a peak in MiB and a detail of each "
                "release; delete the file"
            )
        return {name: measured[name] for name in self.candidates.names if name in measured}

    def _cell(self, name: str) -> Cell:
        return Cell(name, *self._names)

    def _request(self, name: str) -> dict:
        cell, matrix = self._cell(name), self._matrix
        return request(
            cell,
            self.candidates.entry(name),
            matrix.models[cell.model],
            matrix.prompts[cell.prompt],
            matrix.variants[cell.variant],
            matrix.protocol,
        )


def _is_measured(said: object) -> bool:
    """Whether this is what _measure keeps of a release."""
    return (
        isinstance(said, dict)
        and said.get("verdict") in (MEASURED, BAD, SKIPPED)
        and isinstance(said.get("peak_mib"), (int, float, NoneType))
        and (said["verdict"] != MEASURED or 0 < (said["peak_mib"] or 0) <= LARGEST)
        and isinstance(said.get("detail"), (str, NoneType))
    )


def headline_mib(memory: dict) -> float | None:
    """The peak of a cell's record that leads: the device's where there is one, else the
    footprint.
    """
    device = memory.get("peak_device_mib")
    return memory["peak_footprint_mib"] if device is None else device


def _check(matrix: Matrix, names: tuple[str, ...]) -> None:
    """Raise UserError for a name that is not on its axis, and for a model or prompt that is not
    made.
    """
    for axis, name in zip(AXES[1:], names, strict=True):
        if name not in matrix.axis(axis):
            raise UserError(
                f"--cell: {axis} {name} is not in {matrix.file}; expected one of "
                f"{', '.join(matrix.axis(axis))}"
            )
    model, prompt = names[:2]
    needed = [layout.model_record(model), layout.prompt_file(model, prompt)]
    if missing := [str(path) for path in needed if not path.exists() or to_be_tried_again(path)]:
        command = shlex.join(
            ["snakemake", "--cores", "1", *missing, "--config", f"matrix={matrix.file}"]
        )
        raise UserError(f"{missing[0]} was not made here; make it: {command}")
