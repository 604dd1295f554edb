"""What a request asks for, in the words of mistral.rs; what it has no words for is Unsupported."""

import sys

from kvpeak.base.errors import Unsupported

OWN, PAGED = "own", "paged"
OWN_PREFIXES = 16  # sequences in mistral.rs's prefix cache, where nothing else is asked


def accelerator() -> str:
    """Where the wheel computes: Metal on Apple silicon, else the CPU (PyPI has no CUDA wheel)."""
    return "metal" if sys.platform == "darwin" else "cpu"


def paged(kv_cache: str, where: str) -> bool:
    """Whether the KV cache is the paged one. where: `metal` or `cpu`. Raises Unsupported."""
    if kv_cache == OWN:
        return False
    if kv_cache != PAGED:
        raise Unsupported(f"kv_cache {kv_cache}: mistral.rs has {OWN} and {PAGED}")
    if where == "cpu":
        raise Unsupported("kv_cache paged: mistral.rs has no PagedAttention on the CPU")
    return True


def penalty(protocol: dict, tokens: int) -> float | None:
    """The repetition_penalty of a request, None for none. tokens: of the prompt.

    mistral.rs penalises every token of the prompt and of the answer, once each, by the formula that
    kvpeak uses (Sampler::apply_freq_pres_rep_penalty). A window that never moves is the same.
    Raises Unsupported for one that does.
    """
    factor, window = protocol["repeat_penalty"], protocol["repeat_window"]
    if factor == 1 or window == 0:
        return None
    if window < (whole := tokens + protocol["generate"]):
        raise Unsupported(
            f"repeat_window {window}: mistral.rs penalises the whole text, not its last tokens; "
            "expected "
            f"repeat_penalty 1, or a window of at least {whole}"
        )
    return factor


def check_workload(workload: dict | None, protocol: dict) -> None:
    """Raise Unsupported for a workload that mistral.rs cannot be told."""
    if not workload or "repeat" in workload:
        return
    if "turns" not in workload:
        raise Unsupported(f"{next(iter(workload))}: this engine measures turns and repeat")
    if workload["keep"] == "trim":
        raise Unsupported("keep trim: mistral.rs cannot be told to take an answer back")
    if protocol["repeat_penalty"] != 1 and protocol["repeat_window"]:
        raise Unsupported("turns are measured without a penalty; set repeat_penalty: 1")


def prefixes(workload: dict | None) -> int:
    """How many sequences' caches mistral.rs keeps: its own number where a session's are kept."""
    return OWN_PREFIXES if workload and workload.get("keep") == "all" else 0


def check_options(options: dict) -> None:
    """Raise Unsupported for a variant that asks for more than mistral.rs as it is."""
    for name, own in (("attention", "fused"), ("prefill_chunk", "whole")):
        if (value := options.get(name, own)) != own:
            raise Unsupported(f"{name} {value}: mistral.rs has its own way only; expected {own}")


def check_model(model: dict) -> None:
    """Raise Unsupported for a model that is not in files."""
    if model["weights"] != "real":
        raise Unsupported(f"weights {model['weights']}: mistral.rs reads weights from files")
    if model.get("quantize"):
        raise Unsupported("quantize: mistral.rs reads weights as they are")
