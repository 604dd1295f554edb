"""The experiment of config/matrix.yaml: read, checked, and expanded into cells."""

import hashlib
import itertools
import json
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from kvpeak.base.axes import AXES, ROUND, Cell
from kvpeak.experiment.config_file import ConfigError, did_you_mean, load_yaml, shown, validate
from kvpeak.protocol import command
from kvpeak.system import host

_SECTION = dict(
    zip(AXES, ("commits", "models", "prompts", "kv_caches", "caps", "variants"), strict=True)
)

PROTOCOL = {
    "warmup": 1,
    "recorded": 3,
    "processes": 1,
    "generate": 128,
    "ignore_eos": True,
    "repeat_penalty": 1.1,
    "repeat_window": 64,
    "seed": 0,
    "timeout_s": 1800,
    "guard": 0.8,
    "skip_longer": True,
}
OPTIONS = {"attention": "naive", "prefill_chunk": "whole"}
_KIND_KEYS = {
    "hub": ("repository", "revision"),
    "package": ("package", "version", "file", "sha256"),
    "random": ("config",),
}
_ANY_KIND = ("kind", "weights", "dtype", "seed", "config", "needs", "generate")
_RUN_PROTOCOL = (
    "warmup", "recorded", "generate", "ignore_eos", "repeat_penalty", "repeat_window",
)  # fmt: skip


@dataclass(frozen=True)
class Engine:
    """What an engine takes on the axes that not every engine has; patterns match whole names."""

    kv_caches: str
    caps: str
    cap_hint: str
    options: tuple[str, ...]


ENGINES = {
    "mlx": Engine(
        kv_caches=r"cat|cat-contiguous|prealloc|mlx-lm|rotating-\d+|quantized-\d+",
        caps=r"none|\d+(KiB|MiB|GiB)",
        cap_hint="none or bytes such as 64MiB",
        options=("attention", "prefill_chunk"),
    ),
    "candle-replay": Engine(
        kv_caches=r"cat|cat-contiguous|prealloc",
        caps=r"none|\d+x",
        cap_hint="none or a reuse ratio such as 4x",
        options=("attention", "prefill_chunk", "buffers"),
    ),
}
_COMMIT_KEYS = {
    "mlx": ("packages",),
    "candle-replay": (),
    "command": (
        "repository", "revision", "build", "verify", "run", "needs", "output", "kv_caches", "caps",
    ),
}  # fmt: skip


class Matrix:
    """A checked matrix.yaml. Raises ConfigError (one line) on anything a user got wrong."""

    def __init__(self, data: dict, file: Path | str):
        validate(data, "matrix.schema.json", file)
        self.file = file
        self.commits: dict = {
            name: _commit(file, name, entry) for name, entry in data["commits"].items()
        }
        self.models: dict = {
            name: _model(file, name, entry) for name, entry in data["models"].items()
        }
        self.prompts: dict = {
            name: {"corpus": "prompts/alice.txt", **entry}
            for name, entry in data["prompts"].items()
        }
        self.kv_caches: list = data["kv_caches"]
        self.caps: list = data["caps"]
        self.variants: dict = {name: OPTIONS | entry for name, entry in data["variants"].items()}
        self.protocol: dict = PROTOCOL | data.get("protocol", {})
        self.compare: list = data.get("compare", [])
        self.exclude: list = [_as_sets(selector) for selector in data.get("exclude", [])]
        self.include: list = [_as_sets(selector) for selector in data.get("include", [])]
        self._check_selectors()
        self._check_compare()
        self._check_caps()
        self._check_prompts()

    def axis(self, name: str) -> list[str]:
        """The names on one of AXES, in the file's order."""
        return list(getattr(self, _SECTION[name]))

    @cached_property
    def combinations(self) -> list[Cell]:
        """Every planned combination of the axes, as its round 1, in the file's order."""
        product = itertools.product(*(self.axis(name) for name in AXES))
        if not self.exclude:
            return [Cell(*names) for names in product]
        return [
            Cell(*names)
            for names in product
            if not _selected(self.exclude, names) or _selected(self.include, names)
        ]

    def reason_not_here(self, cell: Cell) -> str:
        """Why the cell cannot run here, or ''."""
        commit = self.commits[cell.commit]
        if commit["engine"] == "command":
            return self._command_not_applicable(cell) or _not_here(commit.get("needs", {}))
        if reason := self._not_applicable(cell):
            return reason
        needs_gpu = self.models[cell.model].get("needs") == "gpu" and commit["engine"] == "mlx"
        return host.no_gpu_reason() if needs_gpu and self.accelerator == "cpu" else ""

    def _not_applicable(self, cell: Cell) -> str:
        engine_name = self.commits[cell.commit]["engine"]
        engine = ENGINES[engine_name]
        if not re.fullmatch(engine.caps, cell.cap):
            return f"not applicable: engine {engine_name} has no cap {cell.cap} (it takes {engine.cap_hint})"
        if not re.fullmatch(engine.kv_caches, cell.kv_cache):
            return f"not applicable: engine {engine_name} has no KV cache {cell.kv_cache}"
        for option, value in self.variants[cell.variant].items():
            if option not in engine.options:
                return f"not applicable: engine {engine_name} has no option {option} ({value})"
        if engine_name == "mlx" and cell.cap != "none" and self.accelerator == "cpu":
            return self._no_pool(cell.commit)
        return ""

    def _command_not_applicable(self, cell: Cell) -> str:
        """A command runs a KV cache, cap or variant only if it can be told which, or says it has it."""
        commit = self.commits[cell.commit]
        told = {name for argument in commit["run"] for name in command.placeholders(argument)}
        has = {
            "kv_cache": commit.get("kv_caches", self.kv_caches if "kv_cache" in told else []),
            "cap": commit.get("caps", self.caps if "cap" in told else ["none"]),
            "variant": self.axis("variant")[: None if "variant" in told else 1],
        }
        for axis, names in has.items():
            if (name := getattr(cell, axis)) not in names:
                return f"not applicable: {cell.commit} has no {axis} {name}"
        return ""

    def _no_pool(self, commit: str) -> str:
        """MLX got a buffer pool on the CPU with 0.32.0; before, its limit does nothing and reads back as 0."""
        version = self.commits[commit].get("packages", {}).get("mlx", "")
        numbers = re.match(r"(\d+)\.(\d+)", version)
        if not numbers or (int(numbers[1]), int(numbers[2])) >= (0, 32):
            return ""
        return f"not applicable: mlx {version} has no buffer pool on the CPU to cap (it came with 0.32.0)"

    @cached_property
    def accelerator(self) -> str:
        """What MLX uses here: metal, cuda or cpu."""
        return host.accelerator()

    def plan(self) -> Iterator[tuple[Cell, str]]:
        """Yield every cell of every round with the reason why it does not run here ('' if it does)."""
        for cell in self.combinations:
            reason = self.reason_not_here(cell)
            for number in range(1, self.protocol["processes"] + 1):
                yield Cell(*cell.axes, number), reason

    @cached_property
    def cells_here(self) -> list[Cell]:
        """The cells that run here, in the order in which they should: round by round, A B | B A."""
        here = [cell for cell in self.combinations if not self.reason_not_here(cell)]
        tokens = {name: entry["tokens"] for name, entry in self.prompts.items()}
        sides = self.compare[0]["axis"] if self.compare else ""
        first = balanced_order(here, sides, tokens, self.protocol["seed"])
        return [
            Cell(*cell.axes, number)
            for number in range(1, self.protocol["processes"] + 1)
            for cell in (first if number % 2 else reversed(first))
        ]

    def shorter(self, cell: Cell) -> list[Cell]:
        """The planned cells, of every round, that differ from this one in a shorter prompt only."""
        tokens = self.prompts[cell.prompt]["tokens"]
        shorter = [name for name, entry in self.prompts.items() if entry["tokens"] < tokens]
        return [
            replace(cell, prompt=name, round=number)
            for name in shorter
            for number in range(1, self.protocol["processes"] + 1)
        ]

    def cell(self, path: str) -> Cell:
        """The planned cell of a path that ends in COMMIT/MODEL/PROMPT/KV_CACHE/CAP/VARIANT/rN."""
        *names, last = Path(path).parts[-len(AXES) - 1 :]
        number = last[1:] if re.fullmatch(ROUND, last) else "0"
        first = Cell(*names) if len(names) == len(AXES) else None
        if first not in self.combinations or not 0 < int(number) <= self.protocol["processes"]:
            raise ConfigError(
                self.file, "", f"plans no cell {path}; snakemake --cores 1 plan lists every one"
            )
        return Cell(*names, int(number))

    def model_folder(self, cell: Cell) -> str:
        """Where the cell's model lies. A replay needs shapes only, and none of a model's weights if the
        matrix says where its config is."""
        shapes = self.commits[cell.commit]["engine"] == "candle-replay"
        return f"models/{'shapes/' if shapes and 'config' in self.models[cell.model] else ''}{cell.model}"

    def generate(self, model: str) -> int:
        """How many tokens each run of the model generates."""
        return self.models[model].get("generate", self.protocol["generate"])

    def build_entry(self, commit: str) -> dict:
        """What decides how an external engine is built."""
        entry = self.commits[commit]
        keys = ("repository", "revision", "build", "verify", "needs")
        return {key: entry[key] for key in keys if key in entry} | {"run": entry["run"][:1]}

    def request(self, cell: Cell) -> dict:
        """The request that starts the cell's engine (docs/protocol.md)."""
        commit, model, prompt = (
            self.commits[cell.commit],
            self.models[cell.model],
            self.prompts[cell.prompt],
        )
        model = {key: value for key, value in model.items() if key != "generate"}
        if commit["engine"] == "candle-replay":
            model["weights"] = "none"
        own = host.missing_packages(commit.get("packages", {}))
        return {
            "cell": cell.as_dict(),
            "engine": commit["engine"],
            "model": {"name": cell.model, "folder": self.model_folder(cell), **model},
            "prompt": {
                "name": cell.prompt,
                "tokens": prompt["tokens"],
                "path": f"prompts/{cell.model}/{cell.prompt}.json",
            },
            "kv_cache": cell.kv_cache,
            "cap": cell.cap,
            "options": self.variants[cell.variant],
            "protocol": {key: self.protocol[key] for key in _RUN_PROTOCOL}
            | {"generate": self.generate(cell.model), "seed": model["seed"]},
            "limits": {
                "timeout_s": self.protocol["timeout_s"],
                "guard_fraction": self.protocol["guard"],
            },
            **({"python": f"results/envs/{cell.commit}/venv/bin/python"} if own else {}),
            **({"external": _external(cell.commit, commit)} if "run" in commit else {}),
        }

    def _check_selectors(self) -> None:
        for key in ("exclude", "include"):
            for number, selector in enumerate(getattr(self, key)):
                for axis, names in selector.items():
                    for name in sorted(names - set(self.axis(axis))):
                        raise ConfigError(
                            self.file,
                            f"{key}[{number}].{axis}",
                            f"{shown(name)} selects nothing; expected a name of {_SECTION[axis]}"
                            f"{did_you_mean(name, self.axis(axis))}: {_listed(self.axis(axis))}",
                        )
        if not self.combinations:
            raise ConfigError(
                self.file, "exclude", "leaves no cell; remove a selector or add an include"
            )

    def _check_compare(self) -> None:
        for number, entry in enumerate(self.compare):
            names = self.axis(entry["axis"])
            for key in ("before", "after"):
                if entry[key] not in names:
                    raise ConfigError(
                        self.file,
                        f"compare[{number}].{key}",
                        f"{shown(entry[key])} is not on the axis {entry['axis']}; expected one of "
                        f"{_listed(names)}{did_you_mean(entry[key], names)}",
                    )
            if entry["before"] == entry["after"]:
                raise ConfigError(
                    self.file,
                    f"compare[{number}].after",
                    f"{shown(entry['after'])} is also before; expected another name of {_listed(names)}",
                )

    def _check_caps(self) -> None:
        engines = sorted({entry["engine"] for entry in self.commits.values()})
        for number, cap in enumerate(self.caps):
            if "command" in engines:
                continue
            if not any(re.fullmatch(ENGINES[name].caps, cap) for name in engines):
                takes = "; ".join(f"{name} takes {ENGINES[name].cap_hint}" for name in engines)
                raise ConfigError(
                    self.file,
                    f"caps[{number}]",
                    f"{shown(cap)}: no engine of commits has this cap; {takes}",
                )

    def _check_prompts(self) -> None:
        used = dict.fromkeys((cell.prompt, cell.model) for cell in self.combinations)
        for prompt, model in sorted(used, key=lambda names: list(self.prompts).index(names[0])):
            self._check_length(prompt, model)

    def _check_length(self, prompt: str, model: str) -> None:
        entry, key = self.prompts[prompt], f"prompts.{prompt}.tokens"
        tokens, generate = entry["tokens"], self.generate(model)
        positions = self.shapes(model).get("max_position_embeddings")
        if isinstance(positions, int) and generate >= positions:
            own = "generate" in self.models[model]
            raise ConfigError(
                self.file,
                f"models.{model}.generate" if own else "protocol.generate",
                f"{generate}: expected fewer than the {positions} positions of {model}",
            )
        if isinstance(positions, int) and tokens + generate > positions:
            raise ConfigError(
                self.file,
                key,
                f"{tokens} and {generate} generated are more than the {positions} positions of {model}; "
                f"expected at most {positions - generate}, or exclude {{model: {model}, prompt: {prompt}}}",
            )
        try:
            size = Path(entry["corpus"]).stat().st_size
        except OSError:
            raise ConfigError(
                self.file, f"prompts.{prompt}.corpus", f"{shown(entry['corpus'])}: no such file"
            ) from None
        if tokens > size:  # a token is at least one byte
            raise ConfigError(
                self.file,
                key,
                f"{tokens} is longer than the corpus {entry['corpus']} ({size} bytes); "
                "expected a shorter prompt or a longer corpus",
            )

    def shapes(self, model: str) -> dict:
        """The model's config.json as far as it is known before the model is fetched, else {}."""
        if model not in self._shapes:
            given = self.models[model].get("config")
            fetched = Path("models", model, "config.json")
            path = Path(given) if given else fetched if fetched.exists() else None
            try:
                self._shapes[model] = json.loads(path.read_text(encoding="utf-8")) if path else {}
            except (OSError, ValueError) as error:
                raise ConfigError(
                    self.file,
                    f"models.{model}.config",
                    f"{shown(str(path))} cannot be read: {getattr(error, 'strerror', None) or error}",
                ) from None
        return self._shapes[model]

    @cached_property
    def _shapes(self) -> dict[str, dict]:
        return {}


def balanced_order(cells: list[Cell], sides: str, tokens: dict[str, int], seed: int) -> list[Cell]:
    """The cells in the order of the first round; the next round goes backwards.

    Blocks of cells that differ only in the prompt and on the axis `sides` (of the first comparison) come in
    an order drawn from the seed. Within a block, prompts go from short to long, so that a longer one can
    be skipped when a shorter one did not fit; the sides of a prompt are neighbours, and which of them comes
    first alternates, from a drawn start: A B, B A, A B.
    """
    blocks: dict[tuple, dict[str, list[Cell]]] = {}
    for cell in cells:
        names = cell.as_dict()
        block = tuple(names[axis] for axis in AXES if axis not in ("prompt", sides))
        blocks.setdefault(block, {}).setdefault(cell.prompt, []).append(cell)
    draw = random.Random(seed)
    backwards = draw.random() < 0.5
    order = []
    for block in draw.sample(list(blocks), len(blocks)):
        for prompt in sorted(blocks[block], key=tokens.get):
            neighbours = blocks[block][prompt]
            order += reversed(neighbours) if backwards else neighbours
            backwards = not backwards
    return order


def digest(request: dict) -> str:
    """Twelve hexadecimal digits that differ when a request does."""
    return hashlib.sha256(json.dumps(request, sort_keys=True).encode()).hexdigest()[:12]


def load_matrix(file: Path | str = "config/matrix.yaml") -> Matrix:
    """Read and check a matrix file. Raises ConfigError."""
    return Matrix(load_yaml(file), file)


def _commit(file, name: str, entry: dict) -> dict:
    """Check what the schema cannot: keys by engine, and placeholders."""
    engine, key = entry["engine"], f"commits.{name}"
    for given in entry:
        if given not in ("engine", *_COMMIT_KEYS[engine]):
            raise ConfigError(
                file, f"{key}.{given}", f"{shown(entry[given])}: engine {engine} has no such key"
            )
    if engine != "command":
        return entry
    for needed in ("repository", "revision", "run", "output"):
        if needed not in entry:
            raise ConfigError(file, key, f"key {needed} is missing; engine command needs it")
    for number, argument in enumerate(entry["run"]):
        _check_placeholders(file, f"{key}.run[{number}]", argument)
    _check_placeholders(file, f"{key}.output.file", entry["output"]["file"])
    if Path(entry["run"][0]).is_absolute() or ".." in Path(entry["run"][0]).parts:
        raise ConfigError(
            file,
            f"{key}.run[0]",
            f"{shown(entry['run'][0])}: expected the program's path in the checkout",
        )
    told = {word for argument in entry["run"] for word in command.placeholders(argument)}
    if "kv_cache" not in told and "kv_caches" not in entry:
        raise ConfigError(
            file,
            f"{key}.run",
            "has no {kv_cache}; add it, or say which the program has: kv_caches: [cat]",
        )
    return {**entry, "output": {"format": "csv", **entry["output"]}}


def _check_placeholders(file, key: str, argument: str) -> None:
    for name in command.placeholders(argument):
        if name not in command.PLACEHOLDERS:
            raise ConfigError(
                file,
                key,
                f"{shown(argument)}: no placeholder {{{name}}}{did_you_mean(name, command.PLACEHOLDERS)}; "
                f"expected one of {', '.join(command.PLACEHOLDERS)}",
            )


def _external(name: str, commit: dict) -> dict:
    """What the runner needs to know of a command: where it lies, its arguments and its output."""
    source = f"results/engines/{name}/source"
    return {
        "program": f"{source}/{commit['run'][0]}",
        "folder": source,
        "run": commit["run"],
        "output": commit["output"],
    }


def _not_here(needs: dict) -> str:
    """Why a command's needs are not met on this machine, or ''."""
    wanted = needs.get("os")
    if wanted and wanted != host.operating_system():
        return f"not here: needs {wanted}, this is {host.operating_system()}"
    missing = command.missing_programs(needs.get("programs", []))
    return f"not here: needs {missing[0]} on the PATH" if missing else ""


def _model(file, name: str, entry: dict) -> dict:
    kind = entry["kind"]
    for key in entry:
        if key not in (*_ANY_KIND, *_KIND_KEYS[kind]) and (kind, key) != ("hub", "files"):
            raise ConfigError(
                file,
                f"models.{name}.{key}",
                f"{shown(entry[key])}: a model of kind {kind} has no such key",
            )
    weights = entry.get("weights", "random" if kind == "random" else "real")
    if kind == "random" and weights == "real":
        raise ConfigError(
            file,
            f"models.{name}.weights",
            '"real": a model of kind random has none; expected random',
        )
    needed = ("config",) if weights == "random" and "config" in entry else _KIND_KEYS[kind]
    for key in needed:
        if key not in entry:
            raise ConfigError(file, f"models.{name}", f"key {key} is missing; kind {kind} needs it")
    return {"seed": 0, "dtype": None, **entry, "weights": weights}


def _as_sets(selector: dict) -> dict[str, set[str]]:
    return {
        axis: {names} if isinstance(names, str) else set(names) for axis, names in selector.items()
    }


def _selected(selectors: list[dict[str, set[str]]], names: tuple[str, ...]) -> bool:
    """Whether one of the selectors takes the combination (names in the order of AXES)."""
    return any(
        all(names[AXES.index(axis)] in wanted for axis, wanted in selector.items())
        for selector in selectors
    )


def _listed(names: list[str], most: int = 8) -> str:
    return ", ".join(names[:most]) + (f", … ({len(names)} in all)" if len(names) > most else "")
