"""mistral.rs with one model: its files linked into a folder of the attempt's own, and loaded from
there.
"""

import os
import re
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from kvpeak.base.errors import UserError
from kvpeak.inputs.model_folder import INDEX, verify_model

# What a chat template would add is not in the prompt: the text goes to the model as it is.
PLAIN_TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
RESERVE = re.compile(rb"Allocating (\d+) MB for PagedAttention")
DTYPES = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}


def link_files(model: Path, into: Path) -> list[str]:
    """Link the model's files into an empty folder; return the names of its GGUF files, [] if it has
    none. Only weights that its model.json lists are linked: mistral.rs prefers some others.

    Beside a GGUF file only the tokenizer is linked: a config.json that is made for MLX stops
    mistral.rs, and before 0.9.1 it cut every GGUF model's text by the rules of Qwen2, whatever the
    file says. Raises UserError.
    """
    listed = [model / name for name in sorted(verify_model(model)["files"])]
    gguf = [file for file in listed if file.suffix == ".gguf"]
    weights = [file for file in listed if file.suffix == ".safetensors"]
    wanted = gguf or [*weights, model / INDEX, model / "config.json"]
    if not gguf and not any(file.suffix == ".safetensors" for file in wanted):
        raise UserError(f"{model}: holds no .gguf and no .safetensors; make the model again")
    if not (model / "tokenizer.json").is_file():
        raise UserError(f"{model}: holds no tokenizer.json, which mistral.rs reads the text with")
    extras = [model / "tokenizer.json"] + ([] if gguf else [model / "tokenizer_config.json"])
    for file in [*wanted, *extras]:
        if file.is_file():
            (into / file.name).symlink_to(file.resolve())
    return [file.name for file in gguf]


def load(model: Path, dtype: str | None, paged: bool, folder: Path, prefixes: int = 0):
    """A Runner with the model, and the MiB that its paged cache reserved (None: it said of none).

    folder: empty; it has to stay as long as the runner. prefixes: how many sequences' caches it
    keeps for prompts that begin alike. Raises UserError and what mistralrs raises.
    """
    import mistralrs

    files = link_files(model, folder)
    template = folder / "plain.jinja"
    template.write_text(PLAIN_TEMPLATE, encoding="utf-8")
    if dtype is not None and dtype not in DTYPES:
        raise UserError(f"dtype {dtype}: mistral.rs computes in {', '.join(DTYPES)}")
    kind = getattr(mistralrs.ModelDType, DTYPES[dtype]) if dtype else mistralrs.ModelDType.Auto
    if files:
        which = mistralrs.Which.GGUF(
            quantized_model_id=str(folder),
            quantized_filename=files,
            tok_model_id=str(folder),
            dtype=kind,
        )
    else:
        which = mistralrs.Which.Plain(model_id=str(folder), dtype=kind)

    def start():
        return mistralrs.Runner(
            which=which,
            max_seqs=1,
            prefix_cache_n=prefixes,
            token_source="none",
            jinja_explicit=str(template),
            **({"paged_attn": True} if paged else {"no_paged_attn": True}),
        )

    return _reading_the_reserve(start) if paged else (start(), None)


def _reading_the_reserve(start: Callable):
    """What `start` returns, and the MiB that PagedAttention reserved by the engine's own messages.

    They are kept in a file meanwhile, and passed on to standard error afterwards.
    """
    with tempfile.TemporaryFile() as said:
        before = [os.dup(number) for number in (1, 2)]
        sys.stderr.flush()
        try:
            for number in (1, 2):
                os.dup2(said.fileno(), number)
            started = start()
        finally:
            for number, old in zip((1, 2), before, strict=True):
                os.dup2(old, number)
                os.close(old)
            said.seek(0)
            messages = said.read()
            os.write(2, messages)
    return started, reserve_mib(messages)


def reserve_mib(messages: bytes) -> float | None:
    """The size of the paged cache that these messages name (mistral.rs's MB are 2^20 bytes), else
    None.
    """
    found = RESERVE.findall(messages)
    return float(found[-1]) if found else None
