"""Text of others can be seen, is one line, and starts no formula; lists in a field come back as
they were.
"""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvpeak.base.fields import join_texts, split_texts
from kvpeak.base.text import csv_safe, exact, is_seen, plain, seen


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[31mred", "\\x1b[31mred"),
        ("a\nb\tc", "a b c"),
        ("exe\u202etxt", "exe\\u202etxt"),
        ("\ud800", "\\ud800"),
        ("µ × – ü", "µ × – ü"),
        ("\x9b31m", "\\x9b31m"),
    ],
)
def test_what_cannot_be_seen_is_spelled(text, shown):
    assert plain(text) == shown


@pytest.mark.parametrize("sign", "\u3164\u115f\uffa0\u2800\u034f\u17b4\ufe0f\U000e0100")
def test_letters_that_show_nothing_are_spelled(sign):
    for text in (plain(f"a{sign}b"), exact(f"a{sign}b"), seen(f"a{sign}b")):
        assert text.startswith(("a\\u", "a\\U")) and sign not in text
    assert (is_seen("a ü 한"), is_seen(f"a{sign}")) == (True, False)


@given(st.text())
def test_a_plain_line_has_no_hidden_character(text):
    line = plain(text)
    assert all(unicodedata.category(c) not in ("Cc", "Cf", "Cs", "Zl", "Zp") for c in line)
    assert plain(text, 10) == line or len(plain(text, 10)) == 10


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@SUM(A1)", "＝1+1"])
def test_a_formula_becomes_text(text):
    assert csv_safe(text) == "'" + text
    assert csv_safe("a" + text) == "a" + text
    assert csv_safe("a;" + text) == "a;'" + text
    assert csv_safe("a; " + text) == "a; " + text
    assert csv_safe('a;"' + text) == "a;'\"" + text


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), min_size=1)))
def test_texts_come_back_from_one_field(texts):
    texts = [text.strip() for text in texts if text.strip()]
    assert split_texts(join_texts(texts)) == texts


def test_a_field_of_an_older_version_is_read():
    assert split_texts("throttled: 3; on battery") == ["throttled: 3", "on battery"]
    assert split_texts("") == split_texts(None) == []
