"""What caches hold beside what the shapes say: the difference, its name, and the table of it."""

import pytest

from kvpeak.analysis.kv_held import difference, layers_of
from kvpeak.base.columns import SUMMARY
from kvpeak.base.fields import join_texts
from kvpeak.inputs.shapes import kv_bytes_per_token
from kvpeak.report.kv_held import kv_section

PLAIN = {"num_hidden_layers": 4, "hidden_size": 256, "num_attention_heads": 4}
LATENT = PLAIN | {
    "kv_lora_rank": 64,
    "qk_nope_head_dim": 48,
    "qk_rope_head_dim": 16,
    "v_head_dim": 32,
}
WHOLE = 4 * 2 * 256 * 4  # bytes of a token in float32: layers, keys and values, hidden, bytes
EIGHT_BITS = "8 bits, a scale and a bias for each 64 values"


@pytest.mark.parametrize(
    ("text", "layers"),
    [
        ("layers 0-23: KVCache", {"KVCache": 24}),
        ("layers 0-2, 4: CatCache; layer 3: ArraysCache", {"CatCache": 4, "ArraysCache": 1}),
        ("layers 0.0, 0.1: KVCache", {"KVCache": 2}),
        ("of another engine", {}),
    ],
)
def test_the_layers_are_counted_by_what_they_keep(text, layers):
    assert layers_of(text) == layers


@pytest.mark.parametrize(
    ("config", "kv_cache", "layers", "measured", "named"),
    [
        (PLAIN, "mlx-lm", "layers 0-3: KVCache", WHOLE, ""),
        (PLAIN, "cat", "layer 1: CatCache", WHOLE / 4, "1 of 4 layers keeps every token"),
        (PLAIN, "quantized-8", "layers 0-3: QuantizedKVCache", WHOLE * 9 / 32, EIGHT_BITS),
        (
            PLAIN,
            "quantized-8",
            "layers 0-1: QuantizedKVCache; layers 2-3: RotatingKVCache",
            WHOLE * 9 / 64,
            f"2 of 4 layers keep every token; {EIGHT_BITS}",
        ),
        (
            LATENT,
            "mlx-lm",
            "layers 0-3: KVCache",
            4 * (64 + 16) * 4,
            "a latent of 64 values and 16 of the position, not the heads",
        ),
        (
            LATENT,
            "mlx-lm",
            "layers 0-3: KVCache",
            4 * 4 * (48 + 16 + 32) * 4,
            "keys of 64 and values of 32 for each of 4 heads",
        ),
        (
            PLAIN,
            "mlx-lm",
            "layers 0-3: KVCache",
            WHOLE / 2,
            "other sizes than the config's KV heads · head size",
        ),
        (PLAIN, "mlx-lm", "layers 0-7: KVCache", WHOLE * 2, "8 caches in 4 layers"),
        (PLAIN, "mlx-lm", "layers 0-3: KVCache", None, ""),
        ({"num_hidden_layers": 4}, "mlx-lm", "layers 0-3: KVCache", WHOLE, ""),
    ],
)
def test_a_difference_has_a_name(config, kv_cache, layers, measured, named):
    formula = kv_bytes_per_token(config, "float32")
    assert difference(config, "float32", kv_cache, layers, measured, formula) == named


def row(model: str, kv_cache: str, outcome: str = "ok", **values) -> dict:
    names = {"commit": "mlx", "prompt": "p", "cap": "none", "variant": "v"}
    named = names | {"model": model, "kv_cache": kv_cache, "outcome": outcome}
    return dict.fromkeys(SUMMARY.names) | named | values


def held(model: str, kv_cache: str, measured: int, **values) -> dict:
    found = {"kv_bytes_per_token": measured, "kv_layers": "layers 0-3: KVCache"}
    return row(model, kv_cache, **found, **({"kv_bytes_from_shapes": 8192} | values))


def test_a_model_is_a_row_and_a_cache_a_column():
    found = kv_section(
        [
            held("plain", "mlx-lm", 8192),
            held("plain", "quantized-8", 2304, kv_difference="8 bits"),
            held("hybrid", "mlx-lm", 4096, kv_difference="2 of 4 layers", kv_state_bytes=3 * 1024),
            row("hybrid", "quantized-8", "unsupported", detail="layer 0 (…): no"),
        ]
    )
    header, _, plain, hybrid = found["table"].splitlines()
    assert header.startswith("| model | `mlx-lm` | `quantized-8` | shapes |")
    assert plain.startswith("| `plain` | 8,192 | 2,304 | 8,192 |  |")
    assert hybrid.startswith("| `hybrid` | 4,096 | unsupported | 8,192 | 2 of 4 layers |")
    assert "| 3.0 |" in hybrid
    assert found["sentence"] == (
        "of 2 models a token takes other bytes than the shapes say in 1, 1 keeps a state of fixed "
        "size, 1 cannot take quantized-8."
    )


def test_a_model_that_does_not_run_here_is_no_caches_fault():
    rows = [row("metal", name, "unsupported", detail="needs Metal") for name in ("mlx-lm", "cat")]
    found = kv_section([held("plain", "mlx-lm", 8192), *rows])
    assert found["sentence"] == "of 2 models 1 cannot take any of these caches."


def test_where_nothing_differs_the_finding_has_no_line():
    assert kv_section([held("plain", "mlx-lm", 8192)])["sentence"] == ""


def test_layers_of_several_kinds_and_a_config_that_says_little_are_told():
    layers = join_texts(["layers 0, 2: KVCache; layer 1: ArraysCache"])
    told = {"kv_layers": layers, "kv_bytes_from_shapes": None}
    table = kv_section([held("m", "mlx-lm", 8192) | told])["table"]
    assert "| layers 0, 2: KVCache; layer 1: ArraysCache |" in table
    assert "| – | its config is not here as it was measured, or does not say its sizes |" in table


def test_commits_that_hold_the_same_are_told_once():
    rows = [held("m", "cat", size) | {"commit": str(size)} for size in (8192, 8192, 4096)]
    assert "| 8,192 / 4,096 |" in kv_section(rows)["table"]


def test_without_an_engine_that_says_it_there_is_no_section():
    assert kv_section([row("m", "cat", kv_bytes_per_token=8192)]) is None
