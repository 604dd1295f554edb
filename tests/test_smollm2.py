"""The real GGUF of SmolLM2-135M-Instruct against what llama.cpp found (tests/data/README.md)."""

import contextlib
import hashlib
import json
import os
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
import yaml
from tokenizers import Tokenizer

from kvpeak.base.errors import Unavailable
from kvpeak.base.made import why_not_made
from kvpeak.commands.make_model import make
from kvpeak.inputs.model_folder import read_config, verify_model
from kvpeak.live.loading import load_model

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
MODEL = "smollm2-135m-instruct"
REFERENCE = json.loads((Path(__file__).parent / "data/smollm2-reference.json").read_text())


def is_made(folder: Path) -> bool:
    record = folder / "model.json"
    return record.is_file() and why_not_made(record) is None


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """The model's folder: the one under models/, else made now, which downloads 93 MB. Only a hub
    that is out of reach is a reason to skip.
    """
    there = ROOT / "models" / MODEL
    if is_made(there):
        verify_model(there, hashes=True)
        return there
    made = tmp_path_factory.mktemp("models") / MODEL
    matrix = yaml.safe_load((ROOT / "config/matrix.yaml").read_text())
    entry = {key: value for key, value in matrix["models"][MODEL].items() if key != "config"}
    try:
        with contextlib.chdir(made.parent):  # where it is noted that it was made
            make(MODEL, entry, made)
    except Unavailable as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(f"the model is not there: {error}")
    return made


def test_the_tokenizer_gives_the_same_ids_for_the_whole_corpus(folder):
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    corpus = (ROOT / "prompts/alice.txt").read_text()
    ids = tokenizer.encode(corpus, add_special_tokens=False).ids
    assert len(ids) == REFERENCE["corpus_tokens"]
    digest = hashlib.sha256(",".join(map(str, ids)).encode()).hexdigest()
    assert digest == REFERENCE["corpus_tokens_sha256"]
    assert tokenizer.encode(REFERENCE["chat"]).ids == REFERENCE["chat_tokens"]


@pytest.fixture(scope="module")
def logits(folder) -> np.ndarray:
    """The logits at every position of the reference's tokens, in float32."""
    model, _ = load_model(folder, weights="real", dtype="float32", seed=0)
    return np.array(model(mx.array([REFERENCE["tokens"]])))[0]


def test_the_argmax_is_the_same_at_every_prompt_position(logits):
    assert logits.argmax(-1).tolist() == REFERENCE["argmax"]


def test_the_logits_are_the_same_up_to_rounding(logits):
    for position, largest in REFERENCE["largest_logits"].items():
        found = {token: logits[int(position), int(token)] for token in largest}
        assert found == pytest.approx(largest, abs=1e-3)


def test_the_check_notices_the_other_kind_of_rotary_position(folder, tmp_path):
    """A short answer would not: what is compared has to be able to fail."""
    gguf = next(folder.glob("*.gguf"))
    (tmp_path / gguf.name).symlink_to(gguf)
    config = read_config(folder) | {"rope_traditional": False}
    (tmp_path / "config.json").write_text(json.dumps(config))
    model, _ = load_model(tmp_path, weights="real", dtype="float32", seed=0)
    tokens = REFERENCE["tokens"][:32]
    found = np.array(model(mx.array([tokens])))[0].argmax(-1).tolist()
    assert found != REFERENCE["argmax"][:32]
