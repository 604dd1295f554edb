"""Write small GGUF files, and say what their packed tensors stand for."""

import struct

import numpy as np

TYPES = {"F32": 0, "F16": 1, "Q4_0": 2, "Q4_1": 3, "Q8_0": 8}
SCALARS = {"u32": (4, "<I"), "i32": (5, "<i"), "f32": (6, "<f"), "bool": (7, "<?")}


def text(value: str) -> bytes:
    encoded = value.encode()
    return struct.pack("<Q", len(encoded)) + encoded


def scalar(kind: str, value) -> bytes:
    """A metadata value: its type and its bytes."""
    if kind == "str":
        return struct.pack("<I", 8) + text(value)
    number, code = SCALARS[kind]
    return struct.pack("<I", number) + struct.pack(code, value)


def array(kind: str, values: list) -> bytes:
    items = [scalar(kind, value) for value in values]
    head = struct.pack("<II", 9, 8 if kind == "str" else SCALARS[kind][0])
    return head + struct.pack("<Q", len(items)) + b"".join(item[4:] for item in items)


def gguf_bytes(metadata: dict[str, bytes], tensors: dict[str, tuple[str, np.ndarray]]) -> bytes:
    """A GGUF file. `metadata`: key → what scalar or array made; `tensors`: name → type, values."""
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(metadata))
    head += b"".join(text(key) + value for key, value in metadata.items())
    data = b""
    for name, (kind, values) in tensors.items():
        dimensions = values.shape[::-1]
        head += text(name) + struct.pack(f"<I{len(dimensions)}Q", len(dimensions), *dimensions)
        head += struct.pack("<IQ", TYPES[kind], len(data))
        packed = pack(kind, values)
        data += packed + bytes(-len(packed) % 32)
    return head + bytes(-len(head) % 32) + data


def pack(kind: str, values: np.ndarray) -> bytes:
    """A tensor's bytes; the packed types round to the nearest value that they have."""
    if kind in ("F32", "F16"):
        return values.astype({"F32": "<f4", "F16": "<f2"}[kind]).tobytes()
    return b"".join(
        b"".join(np.float16(number).tobytes() for number in scales) + quants
        for scales, quants in map(BLOCKS[kind], values.reshape(-1, 32))
    )


def _q8_0(block: np.ndarray) -> tuple[tuple, bytes]:
    scale = np.float16(np.abs(block).max() / 127)
    return (scale,), np.round(block / np.float32(scale)).astype(np.int8).tobytes()


def _q4_0(block: np.ndarray) -> tuple[tuple, bytes]:
    scale = np.float16(np.abs(block).max() / 7)
    return (scale,), _nibbles(np.round(block / np.float32(scale)) + 8)


def _q4_1(block: np.ndarray) -> tuple[tuple, bytes]:
    low = np.float16(block.min())
    scale = np.float16((block.max() - low) / 15)
    return (scale, low), _nibbles(np.round((block - np.float32(low)) / np.float32(scale)))


def _nibbles(quants: np.ndarray) -> bytes:
    """32 values of 4 bits: the first half in the low nibbles, the second in the high ones."""
    quants = np.clip(quants, 0, 15).astype(np.uint8)
    return (quants[:16] | quants[16:] << 4).tobytes()


BLOCKS = {"Q8_0": _q8_0, "Q4_0": _q4_0, "Q4_1": _q4_1}


def unpack(kind: str, packed: bytes, shape: tuple[int, ...]) -> np.ndarray:
    """The float32 values of a packed tensor, by the formulas of the ggml project's format."""
    head = {"Q8_0": 1, "Q4_0": 1, "Q4_1": 2}[kind]
    blocks = []
    for start in range(0, len(packed), size := {"Q8_0": 34, "Q4_0": 18, "Q4_1": 20}[kind]):
        block = packed[start : start + size]
        scales = np.frombuffer(block[: 2 * head], "<f2").astype(np.float32)
        quants = np.frombuffer(block[2 * head :], np.int8 if kind == "Q8_0" else np.uint8)
        if kind != "Q8_0":
            quants = np.concatenate([quants & 15, quants >> 4]).astype(np.float32)
        if kind == "Q4_0":
            quants = quants - 8
        blocks.append(scales[0] * quants + (scales[1] if kind == "Q4_1" else 0))
    return np.concatenate(blocks).reshape(shape)


# A llama with 2 layers and a vocabulary of the 256 bytes, two merges and two special tokens.

SIZES = {"hidden": 64, "heads": 4, "kv_heads": 2, "inner": 96, "layers": 2}


def tokens() -> list[str]:
    from tokenizers.pre_tokenizers import ByteLevel

    return ["<|end|>", "<|start|>", *sorted(ByteLevel.alphabet()), "he", "Ġhe"]


def llama_metadata(**changes: bytes) -> dict[str, bytes]:
    """Metadata of a tiny llama; `changes` are keys with _ for . (two for an underscore)."""
    vocabulary = tokens()
    metadata = {
        "general.architecture": scalar("str", "llama"),
        "llama.embedding_length": scalar("u32", SIZES["hidden"]),
        "llama.feed_forward_length": scalar("u32", SIZES["inner"]),
        "llama.block_count": scalar("u32", SIZES["layers"]),
        "llama.attention.head_count": scalar("u32", SIZES["heads"]),
        "llama.attention.head_count_kv": scalar("u32", SIZES["kv_heads"]),
        "llama.attention.layer_norm_rms_epsilon": scalar("f32", 1e-5),
        "llama.context_length": scalar("u32", 512),
        "llama.rope.freq_base": scalar("f32", 10000.0),
        "tokenizer.ggml.model": scalar("str", "gpt2"),
        "tokenizer.ggml.pre": scalar("str", "smollm"),
        "tokenizer.ggml.tokens": array("str", vocabulary),
        "tokenizer.ggml.token_type": array("i32", [3, 3] + [1] * (len(vocabulary) - 2)),
        "tokenizer.ggml.merges": array("str", ["h e", "Ġ he"]),
        "tokenizer.ggml.eos_token_id": scalar("u32", 0),
    }
    return metadata | changes


def llama_tensors(kind: str, seed: int = 0) -> dict[str, tuple[str, np.ndarray]]:
    """Random tensors of the tiny llama with tied embeddings, matrices of the type `kind`."""
    draw = np.random.default_rng(seed)
    hidden, inner = SIZES["hidden"], SIZES["inner"]
    kv = hidden // SIZES["heads"] * SIZES["kv_heads"]
    shapes = {
        "attn_q": (hidden, hidden),
        "attn_k": (kv, hidden),
        "attn_v": (kv, hidden),
        "attn_output": (hidden, hidden),
        "ffn_gate": (inner, hidden),
        "ffn_up": (inner, hidden),
        "ffn_down": (hidden, inner),
    }

    def matrix(shape):
        return kind, draw.normal(0, 0.3, shape).astype(np.float32)

    def norm():
        return "F32", draw.uniform(0.5, 1.5, hidden).astype(np.float32)

    tensors = {"token_embd.weight": matrix((len(tokens()), hidden)), "output_norm.weight": norm()}
    for layer in range(SIZES["layers"]):
        tensors |= {f"blk.{layer}.{name}.weight": matrix(s) for name, s in shapes.items()}
        tensors |= {f"blk.{layer}.{name}.weight": norm() for name in ("attn_norm", "ffn_norm")}
    return tensors
