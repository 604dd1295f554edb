"""The experiment of config/matrix.yaml: read, checked, and expanded into cells."""

import itertools
import math
import re
from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property
from pathlib import Path

from kvpeak.base import layout
from kvpeak.base.axes import AXES, ROUND, Cell
from kvpeak.base.errors import UserError
from kvpeak.base.made import UNAVAILABLE
from kvpeak.base.untrusted import read_object
from kvpeak.environments import resolve
from kvpeak.experiment import engines, requests, workloads
from kvpeak.experiment.checks import SECTION, check_matrix
from kvpeak.experiment.config_file import ConfigError, load_yaml, shown, validate
from kvpeak.experiment.entries import commit_entry, model_entry
from kvpeak.experiment.order import balanced_order
from kvpeak.experiment.schema import MATRIX, defaults
from kvpeak.system import host

MOST_COMBINATIONS = 2_000_000  # before `exclude`; looking at each takes about 5 µs


class Matrix:
    """A checked matrix.yaml. Raises ConfigError (one line) on anything a user got wrong.

    measured: a cell that has a result counts as one that runs here, wherever it was measured.
    """

    def __init__(self, data: dict, file: Path | str, measured: bool = False):
        validate(data, MATRIX, file)
        prompt, options = defaults("prompts", "*"), defaults("variants", "*")
        self.file, self.measured = file, measured
        self.commits = {n: commit_entry(file, n, given) for n, given in data["commits"].items()}
        self.models = {n: model_entry(file, n, given) for n, given in data["models"].items()}
        self.prompts = {
            name: workloads.prompt_entry(file, name, prompt | given)
            for name, given in data["prompts"].items()
        }
        self.kv_caches: list = data["kv_caches"]
        self.caps: list = data["caps"]
        self.variants = {
            n: engines.variant(options, given) for n, given in data["variants"].items()
        }
        self.protocol = defaults("protocol") | data.get("protocol", {})
        self.compare: list = data.get("compare", [])
        self.recordings: str = data.get("recordings", "")
        self.exclude = [_as_sets(selector) for selector in data.get("exclude", [])]
        self.include = [_as_sets(selector) for selector in data.get("include", [])]
        check_matrix(self)

    def axis(self, name: str) -> list[str]:
        """The names on one of AXES, in the file's order."""
        return list(getattr(self, SECTION[name]))

    @cached_property
    def combinations(self) -> list[Cell]:
        """Every planned combination of the axes, as its round 1, in the file's order.

        Raises ConfigError if they are too many to look at each.
        """
        number = math.prod(len(self.axis(name)) for name in AXES)
        if number > MOST_COMBINATIONS:
            raise ConfigError(
                self.file,
                "",
                f"{number:,} combinations of the six axes; expected at most {MOST_COMBINATIONS:,}: "
                "split the matrix, or shorten an axis",
            )
        product = itertools.product(*(self.axis(name) for name in AXES))
        if not self.exclude:
            return [Cell(*names) for names in product]
        excluded = [
            [(AXES.index(axis), wanted) for axis, wanted in s.items()] for s in self.exclude
        ]
        included = {
            names
            for selector in self.include
            for names in itertools.product(*(selector.get(name, self.axis(name)) for name in AXES))
        }
        return [
            Cell(*names)
            for names in product
            if names in included
            or not any(all(names[k] in wanted for k, wanted in each) for each in excluded)
        ]

    def reason_not_here(self, cell: Cell) -> str:
        """Why the cell cannot run here, or ''."""
        commit = self.commits[cell.commit]
        name = commit["engine"]
        if reason := workloads.not_applicable(name, self.prompts[cell.prompt]):
            return reason
        if name == engines.COMMAND:
            axes = (self.kv_caches, self.caps, self.axis("variant"))
            return engines.command_not_applicable(commit, cell, *axes) or engines.needs_not_met(
                commit.get("needs", {})
            )
        if reason := engines.not_applicable(name, cell, self.variants[cell.variant]):
            return reason
        if reason := self._unavailable(cell.commit):
            return reason
        if name == "mistralrs" and (reason := self._mistralrs_not_applicable(cell)):
            return reason
        if name == "candle-replay" or self._computes_on(name) != "cpu":
            return ""
        if (
            name == "mlx"
            and cell.cap not in ("default", "none")
            and (reason := engines.no_pool_on_cpu(commit))
        ):
            return reason
        return host.no_gpu_reason() if self.models[cell.model].get("needs") == "gpu" else ""

    def _unavailable(self, commit: str) -> str:
        """Why the commit's environment cannot be resolved, or ''; '' too where nobody has tried
        yet.
        """
        if commit not in self._resolutions:
            packages = self.commits[commit].get("packages", {})
            own = host.missing_packages(packages)
            found = resolve.known(commit, packages) if own else None
            self._resolutions[commit] = found.unavailable if found else ""
        reason = self._resolutions[commit]
        return f"{UNAVAILABLE}: commit {commit}: {reason}" if reason else ""

    @cached_property
    def _resolutions(self) -> dict[str, str]:
        return {}

    def _mistralrs_not_applicable(self, cell: Cell) -> str:
        asked = self.request(cell)
        prompt = self.prompts[cell.prompt]
        if reason := workloads.mistralrs_not_applicable(prompt, asked["protocol"]):
            return reason
        return engines.mistralrs_not_applicable(
            cell,
            asked["model"],
            asked["prompt"]["tokens"],
            asked["protocol"],
            self._computes_on("mistralrs"),
        )

    def _computes_on(self, engine: str) -> str:
        """metal, cuda or cpu. The wheels of mistral.rs on PyPI know no CUDA."""
        if engine == "mistralrs" and self.accelerator == "cuda":
            return "cpu"
        return self.accelerator

    @cached_property
    def accelerator(self) -> str:
        """What MLX uses here: metal, cuda or cpu."""
        return host.accelerator()

    def plan(self) -> Iterator[tuple[Cell, str]]:
        """Yield every cell of every round with the reason why it does not run here ('' if it
        does).
        """
        for cell in self.combinations:
            reason = self.reason_not_here(cell)
            for each in self._processes(cell):
                yield each, "" if self.is_measured(each) else reason

    @cached_property
    def cells_here(self) -> list[Cell]:
        """The cells that run here, in the order in which they should: round by round, A B | B A.

        Replays come after all that is live: no live cell starts in memory that a replay has just
        filled. They have no speed that an order could bias. So the largest are neighbours, and
        touch what the system still has at hand.
        """
        here = [
            cell
            for cell in self.combinations
            if not self.reason_not_here(cell) or any(map(self.is_measured, self._processes(cell)))
        ]
        tokens = {name: entry["tokens"] for name, entry in self.prompts.items()}
        caps, sides = self.axis("cap"), self.compare[0]["axis"] if self.compare else ""
        live = [cell for cell in here if not self._is_replayed(cell)]
        live = balanced_order(live, sides, tokens, self.protocol["seed"])
        replayed = [cell for cell in here if self._is_replayed(cell)]
        replayed.sort(key=lambda cell: (tokens[cell.prompt], caps.index(cell.cap)))
        return [
            Cell(*cell.axes, number)
            for cells in (live, replayed)
            for number in self._rounds
            for cell in (cells if number % 2 else reversed(cells))
        ]

    def is_measured(self, cell: Cell) -> bool:
        """Whether the cell has a result that counts wherever it was measured."""
        return self.measured and (layout.CELLS / cell.path / layout.RUNS_FILE).exists()

    def _processes(self, cell: Cell) -> list[Cell]:
        return [Cell(*cell.axes, number) for number in self._rounds]

    def _is_replayed(self, cell: Cell) -> bool:
        return self.commits[cell.commit]["engine"] == "candle-replay"

    def shorter(self, cell: Cell) -> list[Cell]:
        """The planned cells, of every round, that differ from this one in a shorter prompt only."""
        own = self.prompts[cell.prompt]
        shorter = [name for name, each in self.prompts.items() if workloads.is_shorter(each, own)]
        return [
            replace(cell, prompt=name, round=number) for name in shorter for number in self._rounds
        ]

    @property
    def _rounds(self) -> range:
        return range(1, self.protocol["processes"] + 1)

    def cell(self, path: str) -> Cell:
        """The planned cell of a path that ends in COMMIT/MODEL/PROMPT/KV_CACHE/CAP/VARIANT/rN."""
        *names, last = Path(path).parts[-len(AXES) - 1 :]
        number = int(last[1:]) if re.fullmatch(ROUND, last) else 0
        first = Cell(*names) if len(names) == len(AXES) else None
        if first not in self.combinations or number not in self._rounds:
            raise ConfigError(
                self.file, "", f"plans no cell {path}; snakemake --cores 1 plan lists every one"
            )
        return Cell(*names, number)

    def model_folder(self, cell: Cell) -> str:
        """Where the cell's model lies: its own folder, or its shapes alone."""
        commit, model = self.commits[cell.commit], self.models[cell.model]
        return requests.model_folder(commit, cell.model, model)

    def generate(self, model: str) -> int:
        """How many tokens each run of the model generates."""
        return self.models[model].get("generate", self.protocol["generate"])

    def request(self, cell: Cell) -> dict:
        """The request that starts the cell's engine (docs/protocol.md)."""
        return requests.request(
            cell,
            self.commits[cell.commit],
            self.models[cell.model],
            self.prompts[cell.prompt],
            self.variants[cell.variant],
            self.protocol,
        )

    def shapes(self, model: str) -> dict:
        """The model's config.json as far as it is known before the model is fetched, else {}."""
        if model not in self._shapes:
            self._shapes[model] = self._read_shapes(model)
        return self._shapes[model]

    @cached_property
    def _shapes(self) -> dict[str, dict]:
        return {}

    def _read_shapes(self, model: str) -> dict:
        given = self.models[model].get("config")
        file = Path(given) if given else layout.model_folder(model) / "config.json"
        if not given and not file.exists():
            return {}
        try:
            return read_object(file)
        except (OSError, UserError) as error:
            cause = getattr(error, "strerror", None) or str(error).removeprefix(f"{file}: ")
            raise ConfigError(
                self.file, f"models.{model}.config", f"{shown(str(file))} cannot be read: {cause}"
            ) from None


def load_matrix(file: Path | str = layout.MATRIX, measured: bool = False) -> Matrix:
    """Read and check a matrix file. Raises ConfigError."""
    return Matrix(load_yaml(file), file, measured)


def _as_sets(selector: dict) -> dict[str, set[str]]:
    return {
        axis: {names} if isinstance(names, str) else set(names) for axis, names in selector.items()
    }
