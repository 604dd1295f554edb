"""Files that belong together: all of them are new, or the marker says that they are not."""

import pytest

from kvpeak.base.files import write_together

OLD = {"data": "old", "marker": "old"}
NEW = {"data": "new", "marker": "new"}


def contents(folder) -> dict[str, str]:
    return {file.name: file.read_text() for file in folder.iterdir() if file.is_file()}


def test_the_files_are_there_and_nothing_else(tmp_path):
    folder = tmp_path / "a/b"
    write_together(folder, OLD)
    write_together(folder, NEW)
    assert contents(folder) == NEW


def test_text_that_cannot_be_written_leaves_the_old_files(tmp_path):
    write_together(tmp_path, OLD)
    (tmp_path / ".marker.tmp").mkdir()
    with pytest.raises(IsADirectoryError):
        write_together(tmp_path, NEW)
    assert contents(tmp_path) == OLD


def test_a_file_that_cannot_be_replaced_takes_the_old_marker_away(tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "marker").write_text("old")
    with pytest.raises(IsADirectoryError):
        write_together(tmp_path, NEW)
    assert contents(tmp_path) == {}
