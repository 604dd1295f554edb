"""Make smollm2-reference.json with llama.cpp: python make_smollm2_reference.py MODEL.gguf CORPUS

Needs llama-cpp-python. The weights are first written as float32, since llama.cpp rounds activations
for quantised ones, and the KV cache is float32 too.
"""

import ctypes
import hashlib
import json
import sys
import tempfile
from pathlib import Path

import llama_cpp
import numpy as np

POSITIONS = 256
KEPT = range(15, POSITIONS, 80)  # positions whose largest logits are kept
CHAT = "<|im_start|>user\nIn 1865, hé said: `Oh dear!'<|im_end|>\n"


def as_float32(source: str, target: str) -> None:
    options = llama_cpp.llama_model_quantize_default_params()
    options.ftype, options.allow_requantize = llama_cpp.LLAMA_FTYPE_ALL_F32, True
    if llama_cpp.llama_model_quantize(source.encode(), target.encode(), ctypes.byref(options)):
        raise SystemExit(f"{source}: llama.cpp cannot convert it")


def reference(gguf: str, corpus: Path) -> dict:
    with tempfile.NamedTemporaryFile(suffix=".gguf") as file:
        as_float32(gguf, file.name)
        model = llama_cpp.Llama(
            file.name,
            n_ctx=2 * POSITIONS,
            n_batch=POSITIONS,
            logits_all=True,
            verbose=False,
            type_k=llama_cpp.GGML_TYPE_F32,
            type_v=llama_cpp.GGML_TYPE_F32,
            flash_attn=False,
        )
        tokens = model.tokenize(corpus.read_bytes(), add_bos=False, special=False)
        model.eval(tokens[:POSITIONS])
    logits = np.array(model.scores[:POSITIONS])
    second, first = np.sort(logits)[:, -2:].T
    return {
        "made_with": f"llama.cpp of llama-cpp-python {llama_cpp.__version__}, float32",
        "corpus_tokens": len(tokens),
        "corpus_tokens_sha256": hashlib.sha256(",".join(map(str, tokens)).encode()).hexdigest(),
        "chat": CHAT,
        "chat_tokens": model.tokenize(CHAT.encode(), add_bos=False, special=True),
        "tokens": tokens[:POSITIONS],
        "argmax": logits.argmax(-1).tolist(),
        "smallest_lead": float((first - second).min()),
        "largest_logits": {
            str(position): {
                str(i): round(float(logits[position, i]), 4)
                for i in logits[position].argsort()[:-6:-1]
            }
            for position in KEPT
        },
    }


if __name__ == "__main__":
    found = reference(sys.argv[1], Path(sys.argv[2]))
    Path(__file__).with_name("smollm2-reference.json").write_text(json.dumps(found) + "\n")
