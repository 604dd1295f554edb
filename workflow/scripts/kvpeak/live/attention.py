"""Attention with its scores materialised, in the place of MLX's fused kernel."""

from contextlib import contextmanager

import mlx.core as mx

from kvpeak.base.errors import Unsupported


def naive_attention(queries, keys, values, *, scale, mask=None, sinks=None):
    """softmax(scale · Q Kᵀ + mask) V, every product an array of its own.

    queries [batch, heads, L, d]; keys [batch, KV heads, T, d] and values [batch, KV heads, T, dᵥ],
    each KV head shared by heads / KV heads query heads; the scores are [batch, heads, L, T]. `mask`
    is None, "causal" (the last query sees all of T), or an array that broadcasts to the scores:
    bool, or added to them. `sinks` [heads] join each softmax as one more score without a value. The
    softmax is in float32.
    """
    batch, heads, length, _ = queries.shape
    kv_heads, total = keys.shape[1], keys.shape[2]
    grouped = (batch, kv_heads, heads // kv_heads, length)
    queries = (scale * queries).reshape(*grouped, -1)
    scores = queries @ keys[:, :, None].swapaxes(-1, -2)
    if isinstance(mask, str):
        mask = mx.arange(total - length, total)[:, None] >= mx.arange(total)
    if mask is not None:
        if (
            mask.ndim > 2
        ):  # a view: [..., 1 or heads, L, T] with its heads grouped like the queries'
            mask = mx.unflatten(mask, -3, (1, 1) if mask.shape[-3] == 1 else (kv_heads, -1))
        scores = mx.where(mask, scores, -mx.inf) if mask.dtype == mx.bool_ else scores + mask
    if sinks is not None:
        sinks = mx.broadcast_to(sinks.reshape(kv_heads, -1, 1, 1), (*grouped, 1))
        scores = mx.concatenate([sinks.astype(scores.dtype), scores], axis=-1)
    weights = mx.softmax(scores, axis=-1, precise=True)
    if sinks is not None:
        weights = weights[..., 1:]
    return (weights @ values[:, :, None]).reshape(batch, heads, length, -1)


def use(kind: str) -> None:
    """Let every model of this process use the attention `kind`: `naive`, or `fused`, which is MLX's
    own.

    Models take the fused kernel from `mx.fast` when they are called, most of them through mlx-lm's
    scaled_dot_product_attention, which keeps a path of its own for quantised caches.
    """
    if kind == "naive":
        mx.fast.scaled_dot_product_attention = naive_attention
    elif kind != "fused":
        raise Unsupported(f"attention {kind}: expected naive or fused")


@contextmanager
def calls():
    """Count the calls of the attention in use while the block runs; yields a list that gets one
    entry each.
    """
    attention, made = mx.fast.scaled_dot_product_attention, []

    def counted(*arguments, **options):
        made.append(1)
        return attention(*arguments, **options)

    mx.fast.scaled_dot_product_attention = counted
    try:
        yield made
    finally:
        mx.fast.scaled_dot_product_attention = attention
