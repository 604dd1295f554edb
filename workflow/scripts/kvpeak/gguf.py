"""Llama models in the GGUF container."""

from pathlib import Path

from kvpeak.errors import UserError

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
GROUP = 32  # values that share a scale, in every GGUF type that MLX keeps packed


def llama_weights(path: Path, dtype) -> dict:
    """mlx-lm's llama parameter names → arrays of `dtype`, dequantised (not evaluated yet)."""
    import mlx.core as mx

    arrays = mx.load(str(path))
    weights = {}
    for name in [name for name in arrays if name.endswith(".weight")]:
        stem = name.removesuffix(".weight")
        weight = arrays.pop(name)
        if f"{stem}.scales" in arrays:
            scales = arrays.pop(f"{stem}.scales").astype(dtype)
            biases = arrays.pop(f"{stem}.biases").astype(dtype)
            bits = weight.shape[-1] // scales.shape[-1]  # 32-bit words per group of 32 values
            weight = mx.dequantize(weight, scales, biases, group_size=GROUP, bits=bits)
        weights[f"{llama_name(stem)}.weight"] = weight.astype(dtype)
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
