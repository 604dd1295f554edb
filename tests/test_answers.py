"""Two engines' answers to one question: equal, or the first difference."""

import pytest

from kvpeak.analysis.answers import compared, first_difference, tokens_of
from kvpeak.report.answers import answers_section, words


@pytest.mark.parametrize(
    ("one", "other", "first"),
    [
        ([1, 2, 3], [1, 2, 3], None),
        ([1, 2, 3], [1, 9, 3], 1),
        ([1, 2, 3], [1, 2], 2),
        ([1, 2], [1, 2, 3], 2),
        ([], [], None),
        ([], [1], 0),
    ],
)
def test_the_first_difference_of_two_lists(one, other, first):
    assert first_difference(one, other) == first


def record(engine: str, tokens: list[int], commit="c", penalty=1, variant="v", **options) -> dict:
    cell = {"commit": commit, "model": "m", "prompt": "p", "kv_cache": "k", "variant": variant}
    protocol = {"generate": len(tokens), "ignore_eos": True, "repeat_penalty": penalty}
    events = [{"event": "loaded"}, {"event": "run", "tokens": tokens}, {"event": "done"}]
    request = {"engine": engine, "options": options, "protocol": protocol}
    return {"cell": cell | {"round": 1}, "request": request, "events": events}


def test_the_ids_are_those_of_the_last_run_that_names_them():
    given = record("mlx", [1, 2])
    given["events"].insert(1, {"event": "run", "tokens": [7]})
    assert tokens_of(given) == [1, 2]
    assert tokens_of({"events": [{"event": "run", "tokens": None}]}) is None


def test_cells_of_one_engine_are_not_compared_with_each_other():
    assert compared([record("mlx", [1]), record("mlx", [2])]) == []


def test_mlx_lms_own_loop_is_the_reference():
    found = compared(
        [
            record("mistralrs", [1, 2, 4], commit="rs"),
            record("mlx", [9, 9, 9], commit="lab"),
            record("mlx", [1, 2, 3], commit="stock", loop="mlx-lm"),
        ]
    )
    assert [(each.reference["commit"], each.other["commit"]) for each in found] == [("stock", "rs")]
    assert (found[0].first, found[0].ids) == (2, (3, 4))
    assert words(found[0]) == "first difference at token 3: 4 instead of 3"


def test_answers_with_another_penalty_are_other_questions():
    assert compared([record("mlx", [1]), record("mistralrs", [2], penalty=1.1)]) == []


def test_the_section_names_equal_answers_and_an_early_end():
    records = [record("mlx", [1, 2, 3]), record("mistralrs", [1, 2, 3], commit="a")]
    assert "all 3 tokens are equal" in answers_section(records)
    short = record("mistralrs", [1, 2, 3], commit="b")
    short["events"][1]["tokens"] = [1, 2]
    assert "first difference at token 3: the end instead of 3" in answers_section(
        [records[0], short]
    )
    assert answers_section(records[:1]) == ""
