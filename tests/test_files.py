"""Files that belong together: all of them are new, or the marker says that they are not."""

import pytest

from kvpeak.base.errors import UserError
from kvpeak.base.files import inside, write_together

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
    with pytest.raises(UnicodeEncodeError):
        write_together(tmp_path, NEW | {"marker": "\ud800"})
    assert contents(tmp_path) == OLD


def test_a_prepared_link_is_replaced_and_its_target_left_alone(tmp_path):
    home = tmp_path / "home.txt"
    home.write_text("mine")
    (tmp_path / "results").mkdir()
    for name in ("data", ".data.tmp", ".marker.tmp"):
        (tmp_path / "results" / name).symlink_to(home)
    write_together(tmp_path / "results", NEW)
    assert home.read_text() == "mine"
    assert (tmp_path / "results/data").read_text() == "new"
    assert not (tmp_path / "results/data").is_symlink()


@pytest.mark.parametrize("name", ["../key", "a/../../key", "/etc/passwd", "link/key"])
def test_a_path_that_leads_out_is_refused(tmp_path, name):
    root = tmp_path / "root"
    root.mkdir()
    (root / "link").symlink_to(tmp_path)
    with pytest.raises(UserError, match="leads out of"):
        inside(root, name)


def test_a_path_inside_is_resolved(tmp_path):
    (tmp_path / "a").mkdir()
    assert inside(tmp_path, "a/../b") == (tmp_path / "b").resolve()


def test_a_file_that_cannot_be_replaced_takes_the_old_marker_away(tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "marker").write_text("old")
    with pytest.raises(IsADirectoryError):
        write_together(tmp_path, NEW)
    assert contents(tmp_path) == {}
