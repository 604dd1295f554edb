"""Llama models in the GGUF container: header, config.json, tokenizer and weights.

Layout: the GGUF specification of the ggml project. Little-endian: the magic `GGUF`, version (u32),
number of tensors (u64), number of metadata entries (u64); the entries (key, type, value); the
tensors' names, dimensions (fastest first), types and offsets; padding; the tensors' data.
"""

import math
import mmap
import struct
from dataclasses import dataclass
from pathlib import Path

from kvpeak.base.errors import UserError
from kvpeak.base.numbers import MIB
from kvpeak.base.untrusted import open_regular

SCALARS = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    7: "?",
    10: "Q",
    11: "q",
    12: "d",
}
STRING, ARRAY = 8, 9
SMALLEST = {STRING: 8, ARRAY: 12} | {kind: struct.calcsize(code) for kind, code in SCALARS.items()}
ENTRY_SMALLEST = 8 + 4 + 1  # an empty key, a type, one byte
TENSOR_SMALLEST = 8 + 4 + 8 + 4 + 8  # an empty name, one dimension
DEEPEST = 4  # arrays in arrays
LARGEST_HEADER = 256 * MIB  # bytes
MOST_VALUES = (
    4_000_000  # entries, tensors and values of arrays; large vocabularies need 1.3 million
)
MOST_DIMENSIONS = 4

# Tensor type: name, values in a block, bytes of a block. The ones that mx.load keeps exactly.
TENSOR_TYPES = {
    0: ("F32", 1, 4),
    1: ("F16", 1, 2),
    2: ("Q4_0", 32, 18),
    3: ("Q4_1", 32, 20),
    8: ("Q8_0", 32, 34),
}
GROUP = 32  # values that share a scale, in every packed type above
BITS = {"Q4_0": 4, "Q4_1": 4, "Q8_0": 8}

NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}

CONTROL, USER_DEFINED = 3, 4  # of tokenizer.ggml.token_type


@dataclass(frozen=True)
class Header:
    """What a GGUF file says about itself. Shapes have the rows first, as MLX has them."""

    path: Path
    metadata: dict
    shapes: dict[str, tuple[int, ...]]
    types: dict[str, str]

    def get(self, key: str, kind: type, default=None):
        """A metadata value. Raises UserError if it is of another kind, or missing with no
        default.
        """
        value = self.metadata.get(key, default)
        if not isinstance(value, kind):
            raise UserError(f"{self.path}: {key}: {value!r:.40}: expected {kind.__name__}")
        return value


def check_header(path: Path) -> None:
    """Raise what read_header does, and keep nothing: MLX's own reader believes what a file says,
    and what this process holds is measured.
    """
    read_header(path, keep=False)


def read_header(path: Path, keep: bool = True) -> Header:
    """Read the metadata and the tensors' shapes; without `keep` arrays are None.

    Raises UserError in one line for a file that is no GGUF, is cut short, has a name twice, or
    holds a count or length that the rest of the file cannot hold, or more than LARGEST_HEADER and
    MOST_VALUES; nothing is allocated for such a number.
    """
    path = Path(path)
    with open_regular(path) as file:
        if not path.stat().st_size:
            raise UserError(f"{path}: empty; expected a GGUF file")
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _Reader(path, data, keep).header()


class _Reader:
    """Walks over the bytes of a GGUF file; every read is checked against its end."""

    def __init__(self, path: Path, data, keep: bool):
        self.path, self.data, self.at, self.keep = path, data, 0, keep
        self.values = 0

    def header(self) -> Header:
        if self.take(4) != b"GGUF":
            raise UserError(f"{self.path}: does not start with GGUF; expected a GGUF file")
        if (version := self.scalar("I")) not in (2, 3):
            raise UserError(f"{self.path}: GGUF version {version}; expected 2 or 3")
        tensors = self.count(TENSOR_SMALLEST, "tensors")
        entries = self.count(ENTRY_SMALLEST, "metadata entries")
        metadata = self.entries(entries)
        infos = {}
        for _ in range(tensors):
            name = self.new_name(infos)
            infos[name] = self.tensor(name)
        self.check_data(infos, metadata.get("general.alignment", 32))
        shapes = {name: shape for name, (shape, *_) in infos.items()}
        types = {name: kind for name, (*_, kind) in infos.items()}
        return Header(self.path, metadata, shapes, types)

    def entries(self, count: int) -> dict:
        metadata = {}
        for _ in range(count):
            key = self.new_name(metadata)
            metadata[key] = self.value(self.scalar("I"))
        return metadata

    def new_name(self, known: dict) -> str:
        name = self.string()
        if name in known:
            self.fail(f"{name!r:.80}: is there twice")
        return name

    def tensor(self, name: str) -> tuple[tuple[int, ...], int, int, str]:
        """Shape, bytes, offset in the data, name of the type."""
        dimensions = self.scalar("I")
        if not 1 <= dimensions <= MOST_DIMENSIONS:
            self.fail(f"tensor {name} has {dimensions} dimensions; expected 1 to {MOST_DIMENSIONS}")
        shape = tuple(reversed([self.scalar("Q") for _ in range(dimensions)]))
        kind, offset = self.scalar("I"), self.scalar("Q")
        if kind not in TENSOR_TYPES:
            known = ", ".join(label for label, *_ in TENSOR_TYPES.values())
            self.fail(f"tensor {name} has type {kind}; expected one of {known}")
        label, block, block_bytes = TENSOR_TYPES[kind]
        if shape[-1] % block:
            self.fail(f"tensor {name} has rows of {shape[-1]}; expected a multiple of {block}")
        return shape, math.prod(shape) // block * block_bytes, offset, label

    def check_data(self, infos: dict, alignment) -> None:
        if not isinstance(alignment, int) or alignment < 1:
            self.fail(f"general.alignment is {alignment}; expected a positive whole number")
        start = -(-self.at // alignment) * alignment
        for name, (_, size, offset, _) in infos.items():
            if start + offset + size > len(self.data):
                self.fail(
                    f"tensor {name} ends at byte {start + offset + size} of {len(self.data)}; "
                    "the file is cut short"
                )

    def value(self, kind: int, depth: int = 0):
        if kind in SCALARS:
            return self.scalar(SCALARS[kind])
        if kind == STRING:
            return self.string()
        if kind != ARRAY or depth == DEEPEST:
            self.fail(f"metadata value of type {kind} at byte {self.at}, {depth} arrays deep")
        of, length = self.scalar("I"), None
        if of not in SMALLEST:
            self.fail(f"array of type {of} at byte {self.at}")
        length = self.count(SMALLEST[of], "array values")
        if of in SCALARS:
            code = f"<{length}{SCALARS[of]}"
            if not self.keep:
                return self.skip(struct.calcsize(code))
            return list(struct.unpack(code, self.take(struct.calcsize(code))))
        kept = []
        for _ in range(length):
            value = self.value(of, depth + 1)
            if self.keep:
                kept.append(value)
        return kept if self.keep else None

    def count(self, smallest: int, what: str) -> int:
        """A u64 count of things of at least `smallest` bytes, which must fit into what is left."""
        count = self.length(smallest, what)
        self.values += count
        if self.values > MOST_VALUES:
            self.fail(f"has {self.values} values in its header; expected at most {MOST_VALUES:,}")
        return count

    def length(self, smallest: int, what: str) -> int:
        length = self.scalar("Q")
        if length * smallest > len(self.data) - self.at:
            self.fail(f"says {length} {what}, which the file cannot hold")
        return length

    def string(self) -> str:
        text = self.take(self.length(1, "bytes of text"))
        try:
            return text.decode()
        except UnicodeDecodeError:
            self.fail(f"text before byte {self.at} is not UTF-8")

    def scalar(self, code: str):
        code = "<" + code
        return struct.unpack(code, self.take(struct.calcsize(code)))[0]

    def skip(self, size: int) -> None:
        if self.at + size > len(self.data):
            self.fail(f"ends at byte {len(self.data)}, inside the header; the file is cut short")
        if self.at + size > LARGEST_HEADER:
            self.fail(f"its header is larger than {LARGEST_HEADER // MIB} MiB")
        self.at += size

    def take(self, size: int) -> bytes:
        self.skip(size)
        return self.data[self.at - size : self.at]

    def fail(self, message: str):
        raise UserError(f"{self.path}: {message}; get the file again")


def llama_config(header: Header) -> dict:
    """The config.json of mlx-lm's llama for this file.

    Raises UserError for another architecture or for scaled rotary positions.
    """
    if (architecture := header.get("general.architecture", str)) != "llama":
        raise UserError(f"{header.path}: general.architecture: {architecture}: expected llama")
    if (scaling := header.get("llama.rope.scaling.type", str, "none")) != "none":
        raise UserError(f"{header.path}: llama.rope.scaling.type: {scaling}: expected none")
    if "token_embd.weight" not in header.shapes:
        raise UserError(f"{header.path}: tensor token_embd.weight: missing")
    heads = header.get("llama.attention.head_count", int)
    hidden = header.get("llama.embedding_length", int)
    return {
        "model_type": "llama",
        "hidden_size": hidden,
        "intermediate_size": header.get("llama.feed_forward_length", int),
        "num_hidden_layers": header.get("llama.block_count", int),
        "num_attention_heads": heads,
        "num_key_value_heads": header.get("llama.attention.head_count_kv", int, heads),
        "head_dim": header.get("llama.attention.key_length", int, hidden // max(heads, 1)),
        "vocab_size": header.shapes["token_embd.weight"][0],
        "max_position_embeddings": header.get("llama.context_length", int),
        "rms_norm_eps": _decimal(header.get("llama.attention.layer_norm_rms_epsilon", float)),
        "rope_theta": _decimal(header.get("llama.rope.freq_base", float, 10000.0)),
        # The converter interleaves the rows of q and k, so that a pair of dimensions is adjacent.
        "rope_traditional": True,
        "tie_word_embeddings": "output.weight" not in header.shapes,
        "eos_token_id": header.get("tokenizer.ggml.eos_token_id", int),
        "torch_dtype": "float32",
    }


def quantization(header: Header) -> dict:
    """The config's `quantization` for the file's own packed weights, which MLX computes with.

    A block of 32 with a scale and a least value is one of MLX's affine groups. Layers in another
    number of bits than most, or unpacked, have entries of their own. Raises UserError for a file
    without packed weights.
    """
    bits = {
        llama_name(name.removesuffix(".weight")): BITS.get(header.types[name])
        for name, shape in header.shapes.items()
        if len(shape) == 2
    }
    packed = [found for found in bits.values() if found]
    if not packed:
        raise UserError(f"{header.path}: has no packed weights; leave quantize out, or say how")
    most = max(sorted(set(packed)), key=packed.count)
    own = {
        layer: {"group_size": GROUP, "bits": found} if found else False
        for layer, found in bits.items()
        if found != most
    }
    return {"group_size": GROUP, "bits": most, "mode": "affine", **own}


def _decimal(value: float) -> float:
    """The short decimal that a float32 stands for: 9.999999747378752e-06 → 1e-05."""
    return float(f"{value:.7g}")


def build_tokenizer(header: Header):
    """The file's tokenizer as a tokenizers.Tokenizer.

    Raises UserError for one that is not byte-level BPE with single digits, SmolLM's.
    """
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    for key, expected in (("tokenizer.ggml.model", "gpt2"), ("tokenizer.ggml.pre", "smollm")):
        if (found := header.get(key, str)) != expected:
            raise UserError(f"{header.path}: {key}: {found}: expected {expected}")
    tokens = header.get("tokenizer.ggml.tokens", list)
    kinds = header.get("tokenizer.ggml.token_type", list)
    merges = [merge.split(" ") for merge in header.get("tokenizer.ggml.merges", list)]
    tokenizer = Tokenizer(
        models.BPE({token: number for number, token in enumerate(tokens)}, list(map(tuple, merges)))
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    for add, wanted in (
        (tokenizer.add_special_tokens, CONTROL),
        (tokenizer.add_tokens, USER_DEFINED),
    ):
        add(
            [
                AddedToken(token, normalized=False)
                for token, kind in zip(tokens, kinds, strict=True)
                if kind == wanted
            ]
        )
    return tokenizer


def llama_weights(path: Path, dtype, packed: bool = False) -> dict:
    """mlx-lm's llama parameter names → arrays of the MLX `dtype`, not evaluated yet.

    Packed weights are dequantised, or with `packed` left as they are, their scales in `dtype`.
    """
    import mlx.core as mx  # here, so that the programs that only read headers start without it

    check_header(path)
    arrays = mx.load(str(path))
    weights = {}
    for name in [name for name in arrays if name.endswith(".weight")]:
        stem = name.removesuffix(".weight")
        weight, layer = arrays.pop(name), llama_name(stem)
        if f"{stem}.scales" not in arrays:
            weights[f"{layer}.weight"] = weight.astype(dtype)
            continue
        scales = arrays.pop(f"{stem}.scales").astype(dtype)
        biases = arrays.pop(f"{stem}.biases").astype(dtype)
        if packed:
            parts = {"weight": weight, "scales": scales, "biases": biases}
            weights |= {f"{layer}.{part}": array for part, array in parts.items()}
            continue
        bits = weight.shape[-1] // scales.shape[-1]  # 32-bit words for a group of 32 values
        weight = mx.dequantize(weight, scales, biases, group_size=GROUP, bits=bits)
        weights[f"{layer}.weight"] = weight.astype(dtype)
    return weights


def llama_name(stem: str) -> str:
    """`blk.3.attn_q` → `model.layers.3.self_attn.q_proj`. Raises UserError for an unknown one."""
    prefix, short = "", stem
    if stem.startswith("blk."):
        _, layer, short = stem.split(".", 2)
        prefix = f"model.layers.{layer}."
    if short not in NAMES:
        raise UserError(f"GGUF tensor {stem}: not one of a llama model's")
    return prefix + NAMES[short]
