"""A finding of a hundred models: what it says of each once, and of all together."""

import pytest

from kvpeak.report.doubts import random_weights
from kvpeak.report.sources import alike


def models(count: int) -> list[dict]:
    same = {"weights": "random", "quantized": "", "dtypes": "float32", "generate": 6}
    return [same | {"name": f"m{number}"} for number in range(count)]


def test_few_models_have_a_row_each():
    assert [len(group) for group in alike(models(8))] == [1] * 8


def test_of_many_models_the_same_is_said_once():
    (other,) = models(1)
    other |= {"name": "other", "quantized": "quantised to 4 bits"}
    groups = alike([*models(99), other])
    assert [len(group) for group in groups] == [99, 1]
    assert groups[1] == [other]


@pytest.mark.parametrize(
    ("count", "said"),
    [
        (1, "`m0` has random weights"),
        (3, "`m0`, `m1`, `m2` have random weights"),
        (99, "99 of 99 models have random weights"),
    ],
)
def test_random_weights_are_said_of_few_models_by_name(count, said):
    assert random_weights(models(count)).startswith(said)
