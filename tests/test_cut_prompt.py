"""Cutting a corpus to an exact number of a model's tokens."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from kvpeak.base.errors import UserError
from kvpeak.base.made import FAILED, say_why_not, why_not_made
from kvpeak.base.untrusted import MOST_BYTES
from kvpeak.inputs.model_folder import describe_files
from kvpeak.inputs.prompts import (
    check_prompt,
    corpus_tokens,
    cut,
    keep_prompt,
    prompt_record,
    restore_prompt,
)

PROGRAM = Path(__file__).parents[1] / "workflow/scripts/cut_prompt.py"
CONFIG = {"vocab_size": 100, "max_position_embeddings": 64}


@pytest.fixture
def corpus(tmp_path) -> Path:
    path = tmp_path / "corpus.txt"
    path.write_text("one two three " * 20)
    return path


@pytest.fixture
def tokenizer(tmp_path) -> Path:
    """Words are tokens 1 to 3; at the start of a text it would like to add token 0."""
    words = {"<start>": 0, "one": 1, "two": 2, "three": 3}
    tokenizer = Tokenizer(models.WordLevel(words, "<start>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<start> $A", special_tokens=[("<start>", 0)]
    )
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    return tmp_path / "tokenizer.json"


def test_a_tokenizer_gives_the_corpus_and_nothing_else(corpus, tokenizer):
    assert corpus_tokens(corpus, tokenizer, 100) == [1, 2, 3] * 20


def test_without_a_tokenizer_tokens_are_bytes_modulo_the_vocabulary(tmp_path):
    path = tmp_path / "corpus.bin"
    path.write_bytes(bytes([0, 99, 100, 255]))
    assert corpus_tokens(path, None, 100) == [0, 99, 0, 55]


@pytest.mark.parametrize("tokens", [1, 2, 59, 60])
def test_the_count_is_exact(corpus, tokenizer, tokens):
    ids = cut(corpus, tokenizer, CONFIG, tokens)
    assert ids == ([1, 2, 3] * 20)[:tokens]


def test_a_prompt_longer_than_the_corpus_is_refused(corpus, tokenizer):
    with pytest.raises(UserError, match="61 tokens asked for, but it has 60"):
        cut(corpus, tokenizer, CONFIG, 61)


def test_a_prompt_longer_than_the_positions_is_refused(corpus):
    with pytest.raises(UserError, match="65 positions asked for, but the model has 64; shorten"):
        cut(corpus, None, CONFIG, 65)
    with pytest.raises(UserError, match="72 positions asked for, but the model has 64; shorten"):
        cut(corpus, None, CONFIG, 40, longest=72)


def test_the_sequences_of_a_batch_need_not_fit_together(corpus):
    assert len(cut(corpus, None, CONFIG | {"vocab_size": 256}, 130, longest=64)) == 130


def test_a_file_that_is_no_tokenizer_is_one_line(corpus, tokenizer):
    tokenizer.write_text("{}")
    with pytest.raises(UserError) as error:
        corpus_tokens(corpus, tokenizer, 100)
    assert str(tokenizer) in str(error.value) and "\n" not in str(error.value)


def test_a_corpus_that_is_no_text_is_one_line(corpus, tokenizer):
    corpus.write_bytes(b"one \xff two")
    with pytest.raises(UserError, match="byte 4 is not UTF-8"):
        corpus_tokens(corpus, tokenizer, 100)


@pytest.fixture
def model(tmp_path, tokenizer) -> Path:
    """A made model folder with that tokenizer."""
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    files = describe_files(tmp_path, ["config.json", "tokenizer.json"])
    (tmp_path / "model.json").write_text(json.dumps({"name": "tiny", "files": files}))
    return tmp_path


def run(corpus: Path, model: Path, tokens: int, out: Path):
    command = [sys.executable, str(PROGRAM), "--corpus", str(corpus), "--model-folder", str(model)]
    command += ["--tokens", str(tokens), "--out", str(out)]
    return subprocess.run(command, capture_output=True, text=True)


def test_the_program_writes_tokens_and_what_they_come_from(corpus, model, tmp_path):
    out = tmp_path / "prompts/tiny/short.json"
    assert run(corpus, model, 5, out).returncode == 0
    prompt = json.loads(out.read_text())
    assert prompt.pop("tokens") == [1, 2, 3, 1, 2]
    assert prompt == {
        "model": "tiny",
        "corpus": "corpus.txt",
        "corpus_sha256": describe_files(tmp_path, ["corpus.txt"])["corpus.txt"]["sha256"],
        "tokenizer_sha256": json.loads((model / "model.json").read_text())["files"][
            "tokenizer.json"
        ]["sha256"],
    }


@pytest.mark.parametrize(
    ("tokens", "spoil", "message"),
    [
        (0, None, "--tokens: 0: expected at least 1"),
        (5, "tokenizer.json", "tokenizer.json: missing"),
        (5, "corpus.txt", "corpus.txt: not found"),
        (5, "model.json", "model.json: not found"),
    ],
)
def test_the_program_refuses_in_one_line_and_writes_nothing(
    corpus, model, tmp_path, tokens, spoil, message
):
    if spoil:
        (tmp_path / spoil).unlink()
    done = run(corpus, model, tokens, tmp_path / "out.json")
    assert done.returncode == 1
    assert message in done.stderr and len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "out.json").exists()


@pytest.fixture
def kept(corpus, model, monkeypatch) -> Path:
    """A project's prompt of five tokens, which is older than the cells that were measured with it,
    and so is its copy.
    """
    monkeypatch.chdir(model)
    file = Path("prompts/tiny/short.json")
    keep_prompt(file, prompt_record(corpus, model, 5))
    for path in (file, ".kvpeak" / file):
        os.utime(path, (1, 1))
    return file


@pytest.mark.parametrize("size", [0, 20, MOST_BYTES + 1])
def test_a_prompt_that_was_cut_here_is_put_back_as_old_as_it_was(kept, size):
    before = kept.read_bytes()
    os.truncate(kept, size)
    restore_prompt(kept)
    assert kept.read_bytes() == before
    assert kept.stat().st_mtime == 1


def test_a_prompt_without_a_copy_has_one_once_it_was_compared(kept, corpus, model):
    before = kept.read_bytes()
    copy = ".kvpeak" / kept
    copy.unlink()
    with pytest.raises(UserError, match="not the first 4"):
        check_prompt(kept, corpus, model, 4)
    assert not copy.exists()
    check_prompt(kept, corpus, model, 5)
    kept.write_text("{}")
    restore_prompt(kept)
    assert (kept.read_bytes(), kept.stat().st_mtime) == (before, 1)


def test_neither_a_prompt_that_was_deleted_nor_one_that_cannot_be_cut_any_more_is_put_back(kept):
    kept.unlink()
    restore_prompt(kept)
    assert not kept.exists()
    say_why_not(kept, FAILED, "the corpus is gone")
    restore_prompt(kept)
    assert why_not_made(kept).reason == "the corpus is gone"
