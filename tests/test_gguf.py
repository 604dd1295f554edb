"""The GGUF reader: headers, the llama mapping, the tokenizer, and packed values."""

import json
import struct

import mlx.core as mx
import numpy as np
import pytest
import tiny_gguf
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_gguf import array, gguf_bytes, llama_metadata, llama_tensors, scalar

from kvpeak.base.errors import UserError
from kvpeak.inputs import gguf
from kvpeak.live import loading


@pytest.fixture
def file(tmp_path):
    """A function that writes bytes to a .gguf file and returns its path."""

    def write(content: bytes):
        path = tmp_path / "model.gguf"
        path.write_bytes(content)
        return path

    return write


def refused(path) -> str:
    """The one line with which the reader refuses a file."""
    with pytest.raises(UserError) as error:
        gguf.read_header(path)
    assert "\n" not in str(error.value)
    assert str(path) in str(error.value)
    return str(error.value)


def test_header_gives_metadata_and_shapes_with_rows_first(file):
    metadata = {
        "text": scalar("str", "é"),
        "number": scalar("u32", 7),
        "flag": scalar("bool", True),
        "list": array("i32", [1, -2]),
        "texts": array("str", ["a", ""]),
    }
    header = gguf.read_header(file(gguf_bytes(metadata, {"t": ("F32", np.zeros((3, 32)))})))
    assert header.metadata == {
        "text": "é",
        "number": 7,
        "flag": True,
        "list": [1, -2],
        "texts": ["a", ""],
    }
    assert header.shapes == {"t": (3, 32)}


@pytest.mark.parametrize(
    ("counts", "what"),
    [((2**63, 0), "tensors"), ((0, 2**64 - 1), "metadata entries"), ((0, 10), "metadata entries")],
)
def test_a_count_beyond_the_file_is_refused(file, counts, what):
    assert f"says {max(counts)} {what}" in refused(file(b"GGUF" + struct.pack("<IQQ", 3, *counts)))


@pytest.mark.parametrize(
    "value",
    [
        struct.pack("<IQ", 8, 2**62),  # a string
        struct.pack("<IIQ", 9, 6, 2**62),  # an array of floats
        struct.pack("<IIQ", 9, 8, 2**40),  # an array of strings
    ],
)
def test_a_length_beyond_the_file_is_refused(file, value):
    message = refused(file(gguf_bytes({"key": value}, {})))
    assert "which the file cannot hold" in message


def test_arrays_in_arrays_without_end_are_refused(file):
    assert "arrays deep" in refused(
        file(gguf_bytes({"key": struct.pack("<I", 9) + struct.pack("<IQ", 9, 1) * 9}, {}))
    )


def test_a_file_that_is_no_gguf_or_empty_is_refused(file):
    assert "does not start with GGUF" in refused(file(b"PK\3\4" + bytes(64)))
    assert "empty" in refused(file(b""))
    assert "version 1" in refused(file(b"GGUF" + struct.pack("<IQQ", 1, 0, 0)))


@pytest.mark.parametrize("magic", [b"AAAA", b"GGUE", b"GGUG", b"gguf", b"FUGG"])
def test_no_other_magic_is_taken_for_gguf(file, magic):
    assert "does not start with GGUF" in refused(file(magic + struct.pack("<IQQ", 3, 0, 0)))


ENTRY = struct.pack("<QIB", 0, 0, 7)  # an empty key, a byte
TENSOR = struct.pack("<QIQIQ", 0, 1, 0, 0, 0)  # an empty name, one dimension of nothing


@pytest.mark.parametrize(
    ("smallest", "counts", "missing", "what"),
    [  # the number of entries, 8 bytes, comes after that of tensors
        (ENTRY, (0, 3), 1, "metadata entries"),
        (TENSOR, (3, 0), 9, "tensors"),
    ],
)
def test_as_many_as_the_file_can_hold_are_looked_at_and_one_more_is_refused(
    file, smallest, counts, missing, what
):
    whole = b"GGUF" + struct.pack("<IQQ", 3, *counts) + 3 * smallest
    assert "'': is there twice" in refused(file(whole[: len(whole) - missing + 1]))
    assert f"says 3 {what}" in refused(file(whole[:-missing]))


def test_every_truncation_is_noticed(file):
    whole = gguf_bytes(
        {"key": array("str", ["a", "b"])}, {"t": ("Q8_0", np.ones((2, 32), dtype=np.float32))}
    )
    for size in range(len(whole) - 28):  # the 68 bytes of t are padded to 96
        refused(file(whole[:size]))


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_a_damaged_file_is_read_or_refused_in_one_line(tmp_path_factory, data):
    content = bytearray(DAMAGEABLE)
    for _ in range(data.draw(st.integers(1, 4))):
        position = data.draw(st.integers(4, len(content) - 8))
        damage = data.draw(st.binary(min_size=1, max_size=8))
        content[position : position + len(damage)] = damage
    path = tmp_path_factory.mktemp("damaged", numbered=True) / "model.gguf"
    path.write_bytes(content)
    try:
        header = gguf.read_header(path)
    except UserError as error:
        assert "\n" not in str(error)
    else:
        assert all(isinstance(key, str) for key in header.metadata)


DAMAGEABLE = gguf_bytes(
    {
        "general.architecture": scalar("str", "llama"),
        "numbers": array("i32", [1, 2, 3]),
        "words": array("str", ["one", "two"]),
        "general.alignment": scalar("u32", 32),
    },
    {"a.weight": ("F32", np.zeros((2, 32))), "b.weight": ("Q4_1", np.arange(64.0).reshape(1, 64))},
)


BYTES = {"F32": 768, "F16": 384, "Q4_0": 108, "Q4_1": 120, "Q8_0": 204}  # of 2 × 96 values


@pytest.mark.parametrize("kind", BYTES)
def test_a_tensor_takes_the_bytes_of_its_format(file, kind):
    """A block of 32 values has two bytes for each scale: 18, 20 and 34 in all (the ggml project's
    format).
    """
    whole = gguf_bytes({}, {"t": (kind, np.arange(192.0).reshape(2, 96))})
    start = 24 + (8 + 1) + 4 + 2 * 8 + 4 + 8 + 31  # one short tensor, padded to a multiple of 32
    exact = whole[: start + BYTES[kind]]
    header = gguf.read_header(file(exact))
    assert (header.shapes, header.types) == ({"t": (2, 96)}, {"t": kind})
    end = len(exact)
    assert f"ends at byte {end} of {end - 1}; the file is cut" in refused(file(exact[:-1]))


def test_a_tensor_begins_where_its_offset_says(file):
    tensors = {name: ("F32", np.ones((1, 8), dtype=np.float32)) for name in "ab"}
    whole = gguf_bytes({}, tensors)
    gguf.read_header(file(whole))
    assert f"tensor b ends at byte {len(whole)} of" in refused(file(whole[:-1]))


@pytest.mark.parametrize("alignment", [1, 8, 64, 256])
def test_the_data_begin_at_the_alignment_that_the_file_says(file, alignment):
    metadata = {"general.alignment": scalar("u32", alignment)}
    head = gguf_bytes(metadata, {"t": ("F32", np.zeros((1, 1)))})
    length = 24 + (8 + 17) + 8 + (8 + 1) + 4 + 2 * 8 + 4 + 8
    end = -(-length // alignment) * alignment + 4
    gguf.read_header(file(head[:length] + bytes(end - length)))
    assert "cut short" in refused(file(head[:length] + bytes(end - length - 1)))


@pytest.mark.parametrize("value", [scalar("u32", 0), scalar("i32", -8), scalar("str", "32")])
def test_an_alignment_that_is_no_positive_number_is_refused(file, value):
    assert "expected a positive whole number" in refused(
        file(gguf_bytes({"general.alignment": value}, {}))
    )


SCALARS = {
    0: ("B", 255),
    1: ("b", -128),
    2: ("H", 65_535),
    3: ("h", -32_768),
    4: ("I", 2**32 - 1),
    5: ("i", -(2**31)),
    6: ("f", -1.5),
    7: ("?", True),
    10: ("Q", 2**64 - 1),
    11: ("q", -(2**63)),
    12: ("d", 1e300),
}


@pytest.mark.parametrize("kind", SCALARS)
def test_every_kind_of_number_alone_and_in_an_array(file, kind):
    code, value = SCALARS[kind]
    metadata = {
        "one": struct.pack(f"<I{code}", kind, value),
        "many": struct.pack(f"<IIQ3{code}", 9, kind, 3, value, 0, value),
        "after": scalar("u32", 7),
    }
    assert gguf.read_header(file(gguf_bytes(metadata, {}))).metadata == {
        "one": value,
        "many": [value, 0, value],
        "after": 7,
    }


@pytest.mark.parametrize("kind", [8 + 5, 14, 99])
def test_a_kind_of_value_that_the_format_does_not_have_is_refused(file, kind):
    number = struct.pack("<IQ", kind, 0)
    assert f"type {kind} at byte" in refused(file(gguf_bytes({"key": number}, {})))
    assert f"array of type {kind} at" in refused(
        file(gguf_bytes({"key": struct.pack("<IIQ", 9, kind, 0)}, {}))
    )


def test_arrays_in_arrays_are_read_as_far_as_four_deep(file):
    def nested(depth: int) -> bytes:
        return struct.pack("<I", 9) + struct.pack("<IQ", 9, 1) * (depth - 1) + INNER

    deepest = gguf.read_header(file(gguf_bytes({"key": nested(4)}, {}))).metadata["key"]
    assert deepest == [[[[5, 6]]]]
    assert "4 arrays deep" in refused(file(gguf_bytes({"key": nested(5)}, {})))


INNER = struct.pack("<IQ2B", 0, 2, 5, 6)  # an array of two bytes, without its own type


@pytest.mark.parametrize("version", [2, 3])
def test_both_versions_that_are_in_use_are_read(file, version):
    assert gguf.read_header(file(b"GGUF" + struct.pack("<IQQ", version, 0, 0))).shapes == {}


def test_a_later_version_is_refused(file):
    assert "version 4" in refused(file(b"GGUF" + struct.pack("<IQQ", 4, 0, 0)))


@pytest.mark.parametrize("dimensions", [0, 1, 4, 5])
def test_a_tensor_has_one_to_four_dimensions(file, dimensions):
    values = np.zeros((1,) * dimensions)
    path = file(gguf_bytes({}, {"t": ("F32", values)}))
    if 1 <= dimensions <= 4:
        assert gguf.read_header(path).shapes == {"t": (1,) * dimensions}
    else:
        assert f"t has {dimensions} dimensions; expected 1 to 4" in refused(path)


def test_packed_rows_are_whole_blocks(file):
    head = gguf_bytes({}, {"t": ("F32", np.zeros((1, 48)))})
    of_q8 = head.replace(struct.pack("<QQI", 48, 1, 0), struct.pack("<QQI", 48, 1, 8))
    assert "rows of 48; expected a multiple of 32" in refused(file(of_q8))
    unknown = head.replace(struct.pack("<QQI", 48, 1, 0), struct.pack("<QQI", 48, 1, 30))
    assert "type 30; expected one of F32, F16, Q4_0, Q4_1, Q8_0" in refused(file(unknown))


def tiny(file, kind="F32", **metadata):
    return file(gguf_bytes(llama_metadata(**metadata), llama_tensors(kind)))


def test_llama_config_from_the_metadata(file):
    config = gguf.llama_config(gguf.read_header(tiny(file)))
    assert config["rms_norm_eps"] == 1e-5
    assert config["head_dim"] == 16
    assert config["vocab_size"] == len(tiny_gguf.tokens())
    assert config["rope_traditional"] and config["tie_word_embeddings"]
    json.dumps(config)


def test_what_the_metadata_leave_out_has_the_formats_default(file):
    left_out = ("llama.attention.head_count_kv", "llama.rope.freq_base")
    metadata = {key: value for key, value in llama_metadata().items() if key not in left_out}
    tensors = llama_tensors("F32") | {"output.weight": ("F32", np.zeros((260, 64)))}
    config = gguf.llama_config(gguf.read_header(file(gguf_bytes(metadata, tensors))))
    assert config == {
        "model_type": "llama",
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "head_dim": 16,
        "vocab_size": len(tiny_gguf.tokens()),
        "max_position_embeddings": 512,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10_000.0,
        "rope_traditional": True,
        "tie_word_embeddings": False,
        "eos_token_id": 0,
        "torch_dtype": "float32",
    }


def test_what_the_metadata_say_stands(file):
    said = {
        "llama.attention.head_count_kv": scalar("u32", 2),
        "llama.attention.key_length": scalar("u32", 24),
        "llama.rope.freq_base": scalar("f32", 500_000.0),
        "llama.rope.scaling.type": scalar("str", "none"),
    }
    config = gguf.llama_config(gguf.read_header(tiny(file, **said)))
    assert (config["num_key_value_heads"], config["head_dim"]) == (2, 24)
    assert config["rope_theta"] == 500_000.0


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("general.architecture", scalar("str", "qwen2"), "expected llama"),
        ("general.architecture", scalar("str", "mamba"), "expected llama"),
        ("llama.rope.scaling.type", scalar("str", "yarn"), "expected none"),
        ("llama.rope.scaling.type", scalar("str", "linear"), "expected none"),
    ],
)
def test_another_architecture_is_refused(file, key, value, message):
    header = gguf.read_header(tiny(file, **{key: value}))
    with pytest.raises(UserError, match=message):
        gguf.llama_config(header)


def test_missing_metadata_is_named(file):
    header = gguf.read_header(
        file(gguf_bytes({"general.architecture": scalar("str", "llama")}, {}))
    )
    with pytest.raises(UserError, match=r"token_embd[.]weight: missing"):
        gguf.llama_config(header)


def test_tokenizer_merges_splits_digits_and_knows_special_tokens(file):
    tokenizer = gguf.build_tokenizer(gguf.read_header(tiny(file)))
    assert tokenizer.encode("he he12<|end|>").tokens == ["he", "Ġhe", "1", "2", "<|end|>"]
    assert tokenizer.decode(tokenizer.encode("hé  he\n").ids) == "hé  he\n"


def test_a_token_of_the_user_is_text_and_a_control_token_is_not(file):
    """Kinds of token: 1 normal, 3 control, 4 user defined, 6 byte (the ggml project's format)."""
    kinds = [3, 4] + [1] * (len(tiny_gguf.tokens()) - 3) + [6]
    changed = {"tokenizer.ggml.token_type": array("i32", kinds)}
    tokenizer = gguf.build_tokenizer(gguf.read_header(tiny(file, **changed)))
    ids = tokenizer.encode("he<|end|> he<|start|>he").ids
    assert tokenizer.decode(ids, skip_special_tokens=True) == "he he<|start|>he"
    assert tokenizer.decode(ids, skip_special_tokens=False) == "he<|end|> he<|start|>he"
    added = tokenizer.get_added_tokens_decoder()
    assert {token.content for token in added.values()} == {"<|end|>", "<|start|>"}


def test_the_files_own_packed_weights_are_a_quantisation(file):
    matrix = np.arange(64.0).reshape(1, 64)
    tensors = {
        "token_embd.weight": ("Q8_0", matrix),
        "output.weight": ("F32", matrix),
        "output_norm.weight": ("F32", np.ones(64)),
        "blk.0.attn_q.weight": ("Q4_0", matrix),
        "blk.0.attn_k.weight": ("Q4_1", matrix),
    }
    assert gguf.quantization(gguf.read_header(file(gguf_bytes({}, tensors)))) == {
        "group_size": 32,
        "bits": 4,
        "mode": "affine",
        "model.embed_tokens": {"group_size": 32, "bits": 8},
        "lm_head": False,
    }
    unpacked = {"output.weight": ("F32", matrix), "output_norm.weight": ("F32", np.ones(64))}
    header = gguf.read_header(file(gguf_bytes({}, unpacked)))
    with pytest.raises(UserError, match="has no packed weights"):
        gguf.quantization(header)


def test_another_tokenizer_is_refused(file):
    header = gguf.read_header(tiny(file, **{"tokenizer.ggml.pre": scalar("str", "llama-bpe")}))
    with pytest.raises(UserError, match="llama-bpe: expected smollm"):
        gguf.build_tokenizer(header)


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q8_0"])
def test_packed_tensors_dequantise_to_the_formats_values(file, kind):
    tensors = llama_tensors(kind)
    path = file(gguf_bytes(llama_metadata(), tensors))
    weights = gguf.llama_weights(path, mx.float32)
    _, values = tensors["blk.1.ffn_down.weight"]
    expected = tiny_gguf.unpack(kind, tiny_gguf.pack(kind, values), values.shape)
    found = np.array(weights["model.layers.1.mlp.down_proj.weight"])
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)


def test_an_unknown_tensor_is_refused():
    with pytest.raises(UserError, match=r"blk.0.attn_q_norm: not one of a llama model's"):
        gguf.llama_name("blk.0.attn_q_norm")


def interleaved(rows: np.ndarray, heads: int) -> np.ndarray:
    """The rows of q or k as a GGUF has them: the two halves of every head interleaved."""
    return rows.reshape(heads, 2, -1, rows.shape[1]).swapaxes(1, 2).reshape(rows.shape)


def test_a_model_written_as_gguf_gives_the_logits_of_the_original(tmp_path):
    """Catches the wrong kind of rotary position, which a plausible answer does not."""
    header_file = tmp_path / "header.gguf"
    header_file.write_bytes(gguf_bytes(llama_metadata(), llama_tensors("F32")))
    config = gguf.llama_config(gguf.read_header(header_file))
    original = loading.random_model(config | {"rope_traditional": False}, 3, "float32")
    named = {gguf.llama_name(n.removesuffix(".weight")): n for n in llama_tensors("F32")}
    tensors = {}
    for name, value in loading.tree_flatten(original.parameters()):
        value, name = np.array(value), named[name.removesuffix(".weight")]
        if ".attn_q." in name or ".attn_k." in name:
            value = interleaved(
                value,
                config["num_attention_heads"] if "_q" in name else config["num_key_value_heads"],
            )
        tensors[name] = ("F32", value)
    folder = tmp_path / "tiny"
    folder.mkdir()
    (folder / "tiny.gguf").write_bytes(gguf_bytes(llama_metadata(), tensors))
    (folder / "config.json").write_text(json.dumps(config))
    loaded, _ = loading.load_model(folder, weights="real", dtype=None, seed=0)
    prompt = mx.array([[5, 17, 99, 3, 250, 42, 7, 8]])
    np.testing.assert_allclose(
        np.array(loaded(prompt)), np.array(original(prompt)), rtol=1e-4, atol=1e-4
    )
