"""What the parts of a matrix ask of each other: selectors, comparisons, caps and lengths."""

import os
import re
from pathlib import Path

from kvpeak.base.axes import AXES
from kvpeak.base.errors import UserError
from kvpeak.base.model_config import sizes
from kvpeak.base.roots import ROOTS, check_in_project
from kvpeak.experiment.config_file import ConfigError, did_you_mean, shown
from kvpeak.experiment.engines import COMMAND, ENGINES, caps_of
from kvpeak.experiment.workloads import longest, name_of, said_by, spell

# The variables that a matrix may set: switches and numbers of the libraries that compute. Never
# what names a file, a library or a device, and so decides which code runs, what is read or written,
# or where it is measured.
MAY_BE_SET = re.compile(
    r"(MLX|METAL|MTL|CUDA|CUBLAS|CUDNN|NVIDIA|OMP|GOMP|KMP|OPENBLAS|MKL|BLIS|VECLIB|RAYON|CANDLE"
    r"|MISTRALRS|TOKENIZERS)_\w+|PYTORCH_CUDA_ALLOC_CONF|MALLOC_(ARENA_MAX|\w+_)"
)
NAMES_A_PLACE = re.compile(
    r"PATH|LIB|FILE|DIR|HOME|TEMP|TMP|CACHE|LOG|DUMP|OUT|TRACE|INJECT|TOOL|VISIBLE|TOKEN|KEY|SECRET"
)
RECORDINGS = ("peaks.json", "snapshots.zip")  # the files of a folder of recordings
# Names beside whose folders the steps' own folders and logs lie.
TAKEN = {
    "commit": re.compile(
        r"calibration|engines|envs|instruments|models|pools|prompts|.*\.log", re.IGNORECASE
    ),
    "model": re.compile(r"shapes|.*\.shapes", re.IGNORECASE),
}
A_WORD = re.compile(r"[\w.,:+-]{0,200}", re.ASCII)

# The section of matrix.yaml that lists the names on each axis.
SECTION = dict(
    zip(AXES, ("commits", "models", "prompts", "kv_caches", "caps", "variants"), strict=True)
)


def check_matrix(matrix) -> None:
    """Raises ConfigError for the first thing in a Matrix that does not fit the rest of it."""
    _check_paths(matrix)
    _check_names(matrix)
    _check_selectors(matrix)
    _check_compare(matrix)
    _check_caps(matrix)
    _check_env(matrix)
    _check_prompts(matrix)
    _check_recordings(matrix)


def _check_paths(matrix) -> None:
    """Raises ConfigError for a file that would be read from outside the project, through a link."""
    for path, key in files_of(matrix).items():
        _check_in_project(matrix, key, path)


def files_of(matrix) -> dict[str, str]:
    """Every file that the matrix names to be read, with the first key that does."""
    named = [(f"prompts.{name}.corpus", each["corpus"]) for name, each in matrix.prompts.items()]
    named += [
        (f"models.{name}.config", each["config"])
        for name, each in matrix.models.items()
        if "config" in each
    ]
    named += [
        ("recordings", f"{matrix.recordings}/{name}")
        for name in (RECORDINGS if matrix.recordings else ())
    ]
    return {path: key for key, path in reversed(named)}


def _check_in_project(matrix, key: str, path: str) -> None:
    try:
        os.fsencode(path)
    except UnicodeEncodeError:
        raise ConfigError(
            matrix.file,
            key,
            f"{shown(path)}: not a name in this locale's encoding; set LC_ALL=C.UTF-8",
        ) from None
    try:
        check_in_project(path)
    except UserError:
        raise ConfigError(
            matrix.file,
            key,
            f"{shown(path)}: leads out of the project through a link; expected a file inside it",
        ) from None
    if _is_hidden(Path(path).resolve()):
        raise ConfigError(
            matrix.file, key, f"{shown(path)}: leads to a hidden file; expected one that is not"
        )


def _is_hidden(file: Path) -> bool:
    """Whether a part of a path below the project, or below a root of it, begins with a dot."""
    roots = [root.resolve() for root in (Path(), *ROOTS)]
    below = [file.relative_to(root).parts for root in roots if file.is_relative_to(root)]
    return any(part.startswith(".") for part in min(below, key=len, default=()))


def _check_recordings(matrix) -> None:
    for name in RECORDINGS if matrix.recordings else ():
        if not Path(matrix.recordings, name).is_file():
            raise ConfigError(
                matrix.file,
                "recordings",
                f"{shown(matrix.recordings)} has no file {name}; expected a folder that "
                "tests/device/torch_pools.py wrote",
            )


def _check_names(matrix) -> None:
    """Names become folders, and some disks do not tell upper from lower case."""
    for axis in AXES:
        seen: dict[str, str] = {}
        for name in matrix.axis(axis):
            if axis in TAKEN and TAKEN[axis].fullmatch(name):
                raise ConfigError(
                    matrix.file,
                    f"{SECTION[axis]}.{name}",
                    "kvpeak has a folder or a log of that name; expected another name",
                )
            if (other := seen.setdefault(name.lower(), name)) != name:
                raise ConfigError(
                    matrix.file,
                    f"{SECTION[axis]}.{name}",
                    f"differs from {other} in upper and lower case only; expected another name",
                )


def _check_env(matrix) -> None:
    """Raises ConfigError for a variable that decides which program runs, what it may read, or how
    it is measured.
    """
    for variant, options in matrix.variants.items():
        for name, value in options.get("env", {}).items():
            where = f"variants.{variant}.env.{name}"
            if not MAY_BE_SET.fullmatch(name) or NAMES_A_PLACE.search(name):
                raise ConfigError(
                    matrix.file,
                    where,
                    "may not be set by a matrix; expected a switch of MLX, CUDA, Metal, a BLAS or "
                    "OpenMP, such as MLX_CUDA_USE_CUDNN_SDPA; another program's belongs into its "
                    "run: [env, NAME=value, program]",
                )
            if not A_WORD.fullmatch(str(value)):
                raise ConfigError(matrix.file, where, f"{shown(value)}: expected a number or word")


def _check_selectors(matrix) -> None:
    for key in ("exclude", "include"):
        for number, selector in enumerate(getattr(matrix, key)):
            for axis, names in selector.items():
                for name in sorted(names - set(matrix.axis(axis))):
                    raise ConfigError(
                        matrix.file,
                        f"{key}[{number}].{axis}",
                        f"{shown(name)} selects nothing; expected a name of {SECTION[axis]}"
                        f"{did_you_mean(name, matrix.axis(axis))}: {_listed(matrix.axis(axis))}",
                    )
    if not matrix.combinations:
        raise ConfigError(
            matrix.file, "exclude", "leaves no cell; remove a selector or add an include"
        )


def _check_compare(matrix) -> None:
    for number, entry in enumerate(matrix.compare):
        names = matrix.axis(entry["axis"])
        for key in ("before", "after"):
            if entry[key] not in names:
                raise ConfigError(
                    matrix.file,
                    f"compare[{number}].{key}",
                    f"{shown(entry[key])} is not on the axis {entry['axis']}; expected one of "
                    f"{_listed(names)}{did_you_mean(entry[key], names)}",
                )
        if entry["before"] == entry["after"]:
            raise ConfigError(
                matrix.file,
                f"compare[{number}].after",
                f"{shown(entry['after'])} is also before; "
                f"expected another name of {_listed(names)}",
            )


def _check_caps(matrix) -> None:
    engines = sorted({entry["engine"] for entry in matrix.commits.values()})
    if COMMAND in engines:
        return
    for number, cap in enumerate(matrix.caps):
        patterns = {caps_of(name, each) for name in engines for each in matrix.variants.values()}
        if not any(re.fullmatch(pattern, cap) for pattern in patterns):
            takes = "; ".join(f"{name} takes {ENGINES[name].cap_hint}" for name in engines)
            raise ConfigError(
                matrix.file,
                f"caps[{number}]",
                f"{shown(cap)}: no engine of commits has this cap; {takes}",
            )


def _check_prompts(matrix) -> None:
    used = dict.fromkeys((cell.prompt, cell.model) for cell in matrix.combinations)
    for prompt, model in sorted(used, key=lambda names: list(matrix.prompts).index(names[0])):
        _check_positions(matrix, prompt, model)
        _check_corpus(matrix.file, prompt, matrix.prompts[prompt])


def _check_positions(matrix, prompt: str, model: str) -> None:
    positions = sizes(matrix.shapes(model)).positions
    if positions is None:
        return
    entry, generate = matrix.prompts[prompt], matrix.generate(model)
    taken, where = longest(entry, generate), f"prompts.{prompt}.{said_by(entry)}"
    otherwise = f"or exclude {{model: {model}, prompt: {prompt}}}"
    if "turns" in entry:
        if taken > positions:
            raise ConfigError(
                matrix.file,
                where,
                f"{spell(name_of(entry))} takes {taken} positions with its answers, and {model} "
                f"has {positions}; expected fewer or shorter turns, {otherwise}",
            )
        return
    if generate >= positions:
        own = "generate" in matrix.models[model]
        raise ConfigError(
            matrix.file,
            f"models.{model}.generate" if own else "protocol.generate",
            f"{generate}: expected fewer than the {positions} positions of {model}",
        )
    if taken > positions:
        raise ConfigError(
            matrix.file,
            where,
            f"{taken - generate} and {generate} generated are more than the {positions} positions "
            f"of {model}; expected at most {positions - generate}, {otherwise}",
        )


def _check_corpus(file, prompt: str, entry: dict) -> None:
    try:
        size = Path(entry["corpus"]).stat().st_size
    except OSError:
        raise ConfigError(
            file, f"prompts.{prompt}.corpus", f"{shown(entry['corpus'])}: no such file"
        ) from None
    if entry["tokens"] > size:  # a token is at least one byte
        words = spell(name_of(entry))
        raise ConfigError(
            file,
            f"prompts.{prompt}.{said_by(entry)}",
            f"{entry['tokens']} tokens{f' for {words}' if words else ''} are more than the corpus "
            f"{entry['corpus']} has ({size} bytes); expected a shorter prompt or a longer corpus",
        )


def _listed(names: list[str], most: int = 8) -> str:
    return ", ".join(names[:most]) + (f", … ({len(names)} in all)" if len(names) > most else "")
