"""How figures are spelled: one minus, one kind of percentage, and no sign before a zero."""

import pytest

from kvpeak.base.numbers import percent
from kvpeak.report import markdown


@pytest.mark.parametrize(
    ("value", "shown"),
    [(0.05, "+5.0 %"), (-0.001, "−0.1 %"), (-0.0004, "0.0 %"), (0.0, "0.0 %"), (None, "–")],
)
def test_a_signed_percentage(value, shown):
    assert percent(value) == shown


def test_a_share_has_no_sign():
    assert percent(0.336, 0, sign=False) == "34 %"
    assert percent(12.5, 0, sign=False) == "1,250 %"


@pytest.mark.parametrize(
    ("value", "shown"), [(14872.4, "14,872"), (-1.5, "−2"), (-0.04, "0"), ("-3", "−3"), ("", "–")]
)
def test_a_number(value, shown):
    assert markdown.number(value) == shown
