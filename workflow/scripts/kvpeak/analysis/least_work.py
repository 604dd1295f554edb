"""How near a cell comes to what its machine can do: the least that a phase has to compute or move,
from the model's shapes.

Both counts are lower bounds of the work. A ratio to the machine's calibrated peak (calibrate.py)
may still pass 100 %: weights that fit in a cache are read faster than memory can deliver them.
"""

from kvpeak.base.model_config import quantization
from kvpeak.inputs.shapes import ITEMSIZE, Shapes, kv_bytes_per_token, read_shapes, weight_tensors

# Model types whose decoder layers are these: q, k, v and output, a gated MLP, keys and values of
# every token in every layer. Each is counted in the shapes of a family that read_shapes knows.
COUNTED_AS = {"qwen2": "qwen2", "llama": "llama", "qwen3": "llama"}


def counted_shapes(config: dict, dtype: str) -> Shapes | None:
    """The shapes by which a model's work is counted; None for one that does other work.

    Raises UserError for a config of such a model that lacks one of them.
    """
    family = COUNTED_AS.get(config.get("model_type"))
    if family is None or dtype not in ITEMSIZE or quantization(config):
        return None
    return read_shapes(config | {"model_type": family}, "config.json", dtype)


def kv_bytes(config: dict, dtype: str) -> int | None:
    """Bytes of keys and values that one token adds; None for a model that keeps something else."""
    if config.get("model_type") not in COUNTED_AS or dtype not in ITEMSIZE:
        return None
    return kv_bytes_per_token(config, dtype)


def attended(tokens: int, chunk: int, fused: bool = False) -> int:
    """Pairs of a query and a key whose scores a pass over `tokens` makes, `chunk` queries at a
    time.

    Each chunk meets all tokens up to its end. Naive attention makes every score, although up to
    half are masked; a fused kernel may skip what is masked, and so the least is a query's own past.
    """
    if fused:
        return tokens * (tokens + 1) // 2
    ends = [*range(chunk, tokens, chunk), tokens]
    return sum((end - start) * end for start, end in zip([0, *ends[:-1]], ends, strict=True))


def prefill_flops(shapes: Shapes, tokens: int, chunk: int, fused: bool = False) -> int:
    """FLOPs of the matrix products that a prefill has to do: all tokens but the last one in chunks,
    then the last one alone, for its logits.

    MLX is lazy: of the first tokens the last layer gives only keys and values, so that its queries,
    scores, output and MLP never run for them. A product of m×k and k×n matrices takes 2·m·k·n FLOPs
    (Golub and Van Loan, Matrix Computations, section 1.1): per token 2 for each weight of a layer's
    matrices, and per pair of query and key 2·head_dim for the score and as many for the weighted
    sum, in each head. Kaplan et al. 2020 (table 1) count a decoder in the same way. Norms,
    rotations, activations and the softmax are left out; they are less than 1 % for these shapes.
    """
    first, pair = tokens - 1, 4 * shapes.head_dim * shapes.heads
    layers = 2 * layer_weights(shapes) * (first * (shapes.layers - 1) + shapes.layers)
    keys_and_values = 2 * first * 2 * shapes.hidden * shapes.kv_heads * shapes.head_dim
    many = attended(first, chunk, fused) if first else 0
    scores = pair * (many * (shapes.layers - 1) + tokens * shapes.layers)
    return layers + keys_and_values + scores + 2 * shapes.hidden * shapes.vocab


def layer_weights(shapes: Shapes) -> int:
    """Weights in one layer's matrices: q, k, v, output, gate, up and down."""
    q, kv = shapes.heads * shapes.head_dim, shapes.kv_heads * shapes.head_dim
    return shapes.hidden * (2 * q + 2 * kv + 3 * shapes.intermediate)


def decode_bytes(
    shapes: Shapes, prompt_tokens: int, generated_tokens: int, kv_bytes_per_token: float
) -> float:
    """Bytes that a decode step has to move at least, the mean over a generation's steps.

    Every weight is read once (of an embedding that is not also the output projection one row, which
    is left out), the keys and values of every token so far once, and those of the new token
    written. Step i of generated − 1 attends to prompt + 1 + i tokens, on average prompt + generated
    / 2. A cache that copies itself moves more.
    """
    embedding = 0 if shapes.tied else shapes.vocab * shapes.hidden * shapes.itemsize
    context = prompt_tokens + generated_tokens / 2
    return sum(weight_tensors(shapes)) - embedding + kv_bytes_per_token * (context + 1)
