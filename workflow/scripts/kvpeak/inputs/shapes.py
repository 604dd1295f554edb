"""Model shapes: the part of a Hugging Face config.json that decides how large every tensor is."""

import math
from dataclasses import dataclass
from pathlib import Path

from kvpeak.base.errors import UserError
from kvpeak.base.model_config import MOST, dtype_of, key_of, sizes, text_part, value_of
from kvpeak.base.shipped import shipped
from kvpeak.base.untrusted import read_object

CONFIGS = shipped("config/models")
ITEMSIZE = {"float32": 4, "bfloat16": 2, "float16": 2}  # bytes
FAMILIES = ("qwen2", "llama")
BLOCK = 256  # weights in one block of a GGUF k-quant
BLOCK_BYTES = {"Q4_K": 144, "Q6_K": 210}


@dataclass(frozen=True)
class Shapes:
    """The sizes of a model.

    `dtype` is the activations' type, `stored` that of the weights in the checkpoint, `gguf` their
    file type if they are quantised.
    """

    family: str
    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    positions: int
    tied: bool
    dtype: str
    stored: str
    gguf: str | None = None

    @property
    def repeat(self) -> int:
        """How many query heads share one key/value head."""
        return self.heads // self.kv_heads

    @property
    def itemsize(self) -> int:
        """Bytes of one activation."""
        return ITEMSIZE[self.dtype]

    @property
    def cast(self) -> bool:
        """Whether every weight is converted when it is loaded."""
        return self.gguf is None and self.dtype != self.stored


def find_shapes(name_or_path: str, dtype: str | None = None) -> Shapes:
    """The shapes of a model that config/models/ names, or of a JSON file. Raises UserError.

    `dtype` overrides the file's: the weights are then converted when they are loaded.
    """
    path = Path(name_or_path)
    if path.suffix != ".json":
        path = CONFIGS / f"{name_or_path}.json"
        if not path.is_file():
            known = ", ".join(sorted(file.stem for file in CONFIGS.glob("*.json")))
            raise UserError(
                f"--model: {name_or_path!r}: expected the path of a .json file or one of {known}"
            )
    try:
        config = read_object(path)
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from None
    return read_shapes(config, str(path), dtype)


class _Config:
    """A config's sizes, checked as they are read, under the names that the config gives them."""

    def __init__(self, config: dict, where: str):
        self.config = config
        self.where = where
        self.sizes = sizes(config)

    def fail(self, key: str, message: str):
        said = text_part(self.config).get(key)
        raise UserError(f"{self.where}: {key}: {said!r:.40}: expected {message}")

    def size(self, name: str) -> int:
        found, said = getattr(self.sizes, name), value_of(self.config, name)
        if found is None or (said is not None and said != found):
            self.fail(key_of(self.config, name), f"a positive integer, at most {MOST[name]:,}")
        return found

    def dtype(self) -> str:
        said = value_of(self.config, "dtype")
        found = dtype_of(self.config) if said is not None else "float32"
        return self.known(key_of(self.config, "dtype"), said if found is None else found)

    def known(self, key: str, dtype: str) -> str:
        if dtype not in tuple(ITEMSIZE):
            known = ", ".join(ITEMSIZE)
            raise UserError(f"{self.where}: {key}: {dtype!r}: expected one of {known}")
        return dtype


def read_shapes(config: dict, where: str, dtype: str | None = None) -> Shapes:
    """Check a config and take the shapes from it; `where` names it in errors, `dtype` overrides.

    Without num_key_value_heads every head has its own, without head_dim the heads share
    hidden_size. Raises UserError for a missing key, a size that is not a positive integer or
    more than MOST, heads that the key/value heads do not divide, and families or types that the
    replay has no trace for.
    """
    keys = _Config(config, where)
    family = config.get("model_type")
    if family not in FAMILIES:
        keys.fail("model_type", f"one of {', '.join(FAMILIES)}, which the replay has traces for")
    heads, hidden, kv_heads = keys.size("heads"), keys.size("hidden"), keys.size("kv_heads")
    if heads % kv_heads:
        keys.fail(key_of(config, "kv_heads"), f"a divisor of num_attention_heads ({heads})")
    if value_of(config, "head_dim") is None and hidden % heads:
        keys.fail("num_attention_heads", f"a divisor of hidden_size ({hidden}), or a head_dim")
    stored = keys.dtype()
    dtype = keys.known("dtype", dtype) if dtype else stored
    gguf = config.get("gguf_file_type")
    if gguf not in (None, "Q4_K_M"):
        keys.fail("gguf_file_type", "Q4_K_M, or no such key")
    if gguf and (family != "qwen2" or dtype != "float32"):
        keys.fail("gguf_file_type", "model_type qwen2 and torch_dtype float32 beside it")
    return Shapes(
        family="quantized-qwen2" if gguf else family,
        layers=keys.size("layers"),
        hidden=hidden,
        intermediate=keys.size("intermediate"),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=keys.size("head_dim"),
        vocab=keys.size("vocab"),
        positions=keys.size("positions"),
        tied=bool(config.get("tie_word_embeddings", False)),
        dtype=dtype,
        stored=stored,
        gguf=gguf,
    )


def weight_tensors(shapes: Shapes) -> list[int]:
    """The bytes of every weight tensor as it lies in memory, one upload each.

    A tied output projection is the embedding itself; a quantised model keeps its own copy of it,
    because Candle dequantises the embedding to float32 (quantized_qwen2.rs).
    """
    q, kv = shapes.heads * shapes.head_dim, shapes.kv_heads * shapes.head_dim
    hidden, inner = shapes.hidden, shapes.intermediate
    norm = [hidden * shapes.itemsize]
    bias = [] if shapes.family == "llama" else [n * shapes.itemsize for n in (q, kv, kv)]
    tensors = [shapes.vocab * hidden * shapes.itemsize, *norm]
    if shapes.gguf or not shapes.tied:
        tensors.append(_matrix(shapes, shapes.vocab * hidden, "Q6_K"))
    for layer in range(shapes.layers):
        fine = "Q6_K" if _more_bits(layer, shapes.layers) else "Q4_K"
        kinds = ["Q4_K", "Q4_K", fine, "Q4_K", "Q4_K", "Q4_K", fine]  # q, k, v, o, gate, up, down
        counts = [hidden * n for n in (q, kv, kv, q, inner, inner, inner)]
        tensors += [_matrix(shapes, n, kind) for n, kind in zip(counts, kinds, strict=True)]
        tensors += bias + norm + norm
    return tensors


def _matrix(shapes: Shapes, count: int, kind: str) -> int:
    return count // BLOCK * BLOCK_BYTES[kind] if shapes.gguf else count * shapes.itemsize


def _more_bits(layer: int, layers: int) -> bool:
    """Whether Q4_K_M gives this layer's v and down projections six bits (llama.cpp,
    use_more_bits).
    """
    eighth = layers // 8
    return layer < eighth or layer >= 7 * layers // 8 or (layer - eighth) % 3 == 2


def kv_bytes_per_token(config: dict, dtype: str) -> int | None:
    """Bytes of keys and values that one token adds: 2 · layers · kv_heads · head_dim · itemsize.

    None where the config does not say one of them, or the type is not a floating one.
    """
    said = sizes(config)
    parts = (said.layers, said.kv_heads, said.head_dim, ITEMSIZE.get(dtype))
    return None if None in parts else 2 * math.prod(parts)
