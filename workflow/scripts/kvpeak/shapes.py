"""What a model's config.json says about the sizes of its tensors."""

ITEMSIZE = {"float32": 4, "bfloat16": 2, "float16": 2}  # bytes


def kv_bytes_per_token(config: dict, dtype: str) -> int:
    """Bytes of keys and values that one token adds: 2 · layers · kv_heads · head_dim · itemsize."""
    heads = config["num_attention_heads"]
    kv_heads = config.get("num_key_value_heads") or heads
    head_dim = config.get("head_dim") or config["hidden_size"] // heads
    return 2 * config["num_hidden_layers"] * kv_heads * head_dim * ITEMSIZE[dtype]
