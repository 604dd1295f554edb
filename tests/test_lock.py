"""Who waits for whom."""

import os

import pytest

from kvpeak.system import private
from kvpeak.system.lock import lock_file, measuring_alone


class GaveUp(Exception):
    pass


@pytest.fixture(autouse=True)
def own_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(private.tempfile, "gettempdir", lambda: str(tmp_path))


def waits(*gpus: int) -> list[str]:
    """What a cell says while it waits; [] if it need not."""
    said = []

    def give_up():
        raise GaveUp

    try:
        with measuring_alone("b/r1", gpus, said.append, give_up):
            assert not said
    except GaveUp:
        assert len(said) == 1
    return said


def hold(*gpus: int):
    return measuring_alone("a/r1", gpus, pytest.fail, pytest.fail)


def test_a_cell_has_the_machine_for_itself():
    with hold():
        assert waits()[0].startswith(f"waiting for process {os.getpid()}, cell a/r1, which has ")
        assert waits(0)
    assert not waits()


def test_cells_on_different_gpus_run_together_and_on_the_same_one_after_the_other():
    with hold(0):
        assert not waits(1)
        assert waits(0)
        assert waits()
    assert not waits(0)


def test_a_cell_gets_the_first_of_its_gpus_that_is_free():
    with hold(0, 1) as first, hold(0, 1) as second:
        assert (first, second) == (0, 1)
        assert waits(0, 1)
        with hold(0, 1, 2) as third:
            assert third == 2
    with hold() as alone:
        assert alone is None


@pytest.mark.fault("stale lock")
def test_the_lock_of_a_process_that_is_gone_is_free():
    with hold():
        text = lock_file().read_text()
    assert text == f"process {os.getpid()}, cell a/r1"
    assert not waits()


def test_a_link_in_place_of_the_lock_is_not_followed(tmp_path):
    (tmp_path / "precious").write_text("precious")
    lock_file().symlink_to(tmp_path / "precious")
    with pytest.raises(OSError, match="symbolic links"), hold():
        pass
    assert (tmp_path / "precious").read_text() == "precious"


def test_a_lock_that_was_removed_while_it_was_waited_for_is_not_taken():
    with hold():
        lock_file().unlink()
        with hold():  # of the new file of that name
            assert waits()
