"""How near a cell comes to what its machine can do: the least a phase has to compute or move, from
the model's shapes.

Both counts are lower bounds of the work. A ratio to the machine's calibrated peak (calibrate.py)
may still pass 100 %: weights that fit in a cache are read faster than memory can deliver them.
"""

from kvpeak.inputs.shapes import Shapes, weight_tensors


def attended(tokens: int, chunk: int) -> int:
    """Pairs of a query and a key whose scores a prefill in chunks makes: each chunk against all
    tokens up to its end.

    Naive attention in one chunk makes all tokens² of them, although half are masked; a fused
    kernel, which skips what is masked, counts as chunk 1.
    """
    ends = [*range(chunk, tokens, chunk), tokens]
    return sum((end - start) * end for start, end in zip([0, *ends[:-1]], ends, strict=True))


def prefill_flops(shapes: Shapes, tokens: int, chunk: int) -> int:
    """FLOPs of a prefill's matrix products, logits for the last token only.

    A product of m×k and k×n matrices takes 2·m·k·n FLOPs (Golub and Van Loan, Matrix Computations,
    section 1.1): per token 2 for each weight of a layer's matrices, and per pair of query and key
    2·head_dim for the score and as many for the weighted sum, in each head. Kaplan et al. 2020
    (table 1) count a decoder in the same way. Norms, rotations, activations and the softmax are
    left out; they are less than 1 % for these shapes.
    """
    layers = 2 * tokens * layer_weights(shapes) * shapes.layers
    attention = 4 * shapes.head_dim * shapes.heads * shapes.layers * attended(tokens, chunk)
    return layers + attention + 2 * shapes.hidden * shapes.vocab


def layer_weights(shapes: Shapes) -> int:
    """Weights in one layer's matrices: q, k, v, output, gate, up and down."""
    q, kv = shapes.heads * shapes.head_dim, shapes.kv_heads * shapes.head_dim
    return shapes.hidden * (2 * q + 2 * kv + 3 * shapes.intermediate)


def decode_bytes(shapes: Shapes, prompt_tokens: int, generated_tokens: int) -> float:
    """Bytes that a decode step has to move at least, the mean over a generation's steps.

    Every weight is read once (of an embedding that is not also the output projection one row, which
    is left out), the keys and values of every token so far once, and those of the new token
    written. Step i of generated − 1 attends to prompt + 1 + i tokens, on average prompt + generated
    / 2. A cache that copies itself moves more.
    """
    embedding = 0 if shapes.tied else shapes.vocab * shapes.hidden * shapes.itemsize
    row = 2 * shapes.layers * shapes.kv_heads * shapes.head_dim * shapes.itemsize
    context = prompt_tokens + generated_tokens / 2
    return sum(weight_tensors(shapes)) - embedding + row * (context + 1)
