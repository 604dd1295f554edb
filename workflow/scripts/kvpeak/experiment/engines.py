"""What each engine takes on the axes that not every engine has, and why a cell is not for it."""

import re
from dataclasses import dataclass, field

from kvpeak.base.axes import Cell
from kvpeak.base.kv_caches import has_kv_cache
from kvpeak.base.made import UNAVAILABLE
from kvpeak.protocol import command
from kvpeak.system import host


@dataclass(frozen=True)
class Engine:
    """caps: a pattern of whole names. commit_keys: of an entry in `commits`, beside `engine`.

    only: option → the one value of it that the engine has.
    """

    caps: str
    cap_hint: str
    options: tuple[str, ...]
    commit_keys: tuple[str, ...] = ()
    only: dict[str, str] = field(default_factory=dict)


ENGINES = {
    "mlx": Engine(
        caps=r"default|none|\d+(KiB|MiB|GiB)",
        cap_hint="default, none or bytes such as 64MiB",
        options=("attention", "prefill_chunk", "loop", "pool", "record", "wait"),
        commit_keys=("packages",),
    ),
    "mistralrs": Engine(
        caps=r"default|none",
        cap_hint="default or none: Candle's pool has no limit",
        options=("attention", "prefill_chunk"),
        commit_keys=("packages",),
        only={"attention": "fused", "prefill_chunk": "whole"},
    ),
    "candle-replay": Engine(
        caps=r"none|\d+x",
        cap_hint="none or a reuse ratio such as 4x",
        options=("attention", "prefill_chunk", "buffers"),
    ),
}
POOL_CAPS = r"default|none|\d+x"  # of MLX with the pool candle in place of its own
RUNNER_OPTIONS = ("env",)  # of a variant, for the process and not for the engine
PROTOCOL_OPTIONS = ("repeat_penalty",)  # of a variant, instead of the protocol's
STOCK_CHUNK = 2048  # tokens in a pass of mlx-lm's own prefill, where the variant does not say
COMMAND = "command"  # any external program, which says itself what it has
COMMAND_KEYS = (
    *("repository", "revision", "build", "verify", "run", "needs", "output"),
    *("kv_caches", "caps"),
)


def variant(options: dict, given: dict) -> dict:
    """A variant's options: what is given, and `options` else; mlx-lm's own loop has its own
    chunk.
    """
    stock = {"prefill_chunk": STOCK_CHUNK} if given.get("loop") == "mlx-lm" else {}
    return options | stock | given


def caps_of(name: str, options: dict) -> str:
    """The pattern of the caps that an engine has with a variant's options."""
    candle = options.get("pool", "").partition(",")[0] == "candle"
    return POOL_CAPS if name == "mlx" and candle else ENGINES[name].caps


def commit_keys(engine: str) -> tuple[str, ...]:
    """The keys that a commit of the engine may have beside `engine`."""
    return COMMAND_KEYS if engine == COMMAND else ENGINES[engine].commit_keys


def not_applicable(name: str, cell: Cell, options: dict) -> str:
    """Why the engine `name` has not what the cell asks for, or ''. options: of the cell's
    variant.
    """
    engine, caps = ENGINES[name], caps_of(name, options)
    if not re.fullmatch(caps, cell.cap):
        hint = "default, none or a reuse ratio such as 4x" if caps == POOL_CAPS else engine.cap_hint
        return f"not applicable: engine {name} has no cap {cell.cap} (it takes {hint})"
    if not has_kv_cache(name, cell.kv_cache):
        return f"not applicable: engine {name} has no KV cache {cell.kv_cache}"
    for option, value in options.items():
        if option in (*PROTOCOL_OPTIONS, *RUNNER_OPTIONS):
            continue
        if option not in engine.options or engine.only.get(option, value) != value:
            return f"not applicable: engine {name} has no option {option} ({value})"
    return ""


def mistralrs_not_applicable(
    cell: Cell, model: dict, tokens: int, protocol: dict, accelerator: str
) -> str:
    """Why mistral.rs does not run the cell, or ''. tokens: of its prompt; protocol: as in its
    request.
    """
    if model["weights"] != "real":
        return f"not applicable: engine mistralrs reads weights from files; {cell.model} has none"
    if cell.kv_cache == "paged" and accelerator == "cpu":
        return "not applicable: mistral.rs has no PagedAttention on the CPU"
    window, whole = protocol["repeat_window"], tokens + protocol["generate"]
    if protocol["repeat_penalty"] != 1 and 0 < window < whole:
        return (
            f"not applicable: mistral.rs penalises the whole text, not its last {window} tokens; "
            "set repeat_penalty: 1 in the variant"
        )
    return ""


def no_pool_on_cpu(commit: dict) -> str:
    """Why a cap means nothing for this MLX on a CPU, or ''.

    MLX got a buffer pool on the CPU with 0.32.0; before, its limit does nothing and reads back as
    0.
    """
    version = commit.get("packages", {}).get("mlx", "")
    numbers = re.match(r"(\d+)\.(\d+)", version)
    if not numbers or (int(numbers[1]), int(numbers[2])) >= (0, 32):
        return ""
    return (
        f"not applicable: mlx {version} has no buffer pool on the CPU to cap (it came with 0.32.0)"
    )


def command_not_applicable(commit: dict, cell: Cell, kv_caches: list, caps: list, variants: list):
    """Why an external program has not what the cell asks for, or ''.

    It has a KV cache, cap or variant only if it can be told which, or says it has it. kv_caches,
    caps, variants: the matrix's.
    """
    told = {name for argument in commit["run"] for name in command.placeholders(argument)}
    has = {
        "kv_cache": commit.get("kv_caches", kv_caches if "kv_cache" in told else []),
        "cap": commit.get("caps", caps if "cap" in told else ["none"]),
        "variant": variants[: None if "variant" in told else 1],
    }
    for axis, names in has.items():
        if (name := getattr(cell, axis)) not in names:
            return f"not applicable: {cell.commit} has no {axis} {name}"
    return ""


def needs_not_met(needs: dict) -> str:
    """Why an external program's needs are not met on this machine, or ''."""
    wanted = needs.get("os")
    if wanted and wanted != host.operating_system():
        return f"not here: needs {wanted}, this is {host.operating_system()}"
    missing = host.missing_programs(needs.get("programs", []))
    return f"{UNAVAILABLE}: needs {missing[0]} on the PATH" if missing else ""
