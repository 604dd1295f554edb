"""Other users of the machine: what they prepare is not taken, and what they write is text."""

from test_lock import hold, own_folder, waits  # noqa: F401

from kvpeak.system.lock import lock_file


def test_what_a_lock_says_of_its_holder_cannot_steer_the_terminal():
    with hold():
        lock_file().write_text("\x1b]0;owned\x07 \u202eelse")
        assert "\\x1b]0;owned\\x07 \\u202eelse" in waits()[0]
