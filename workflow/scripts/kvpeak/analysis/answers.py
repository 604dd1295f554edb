"""Whether two engines give the same answer to the same question, and where they part if not."""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Answers:
    """Two cells of different engines. reference, other: their names on the axes. tokens: how many
    both gave. first: the position of the first difference, None if there is none; then `ids`, the
    ids there.
    """

    reference: dict
    other: dict
    tokens: int
    first: int | None
    ids: tuple[int | None, int | None]


def first_difference(one: list[int], other: list[int]) -> int | None:
    """The first position at which two lists of ids differ, from 0; None if they are equal.

    Where one list ends before, that is the difference.
    """
    for position, pair in enumerate(zip(one, other, strict=False)):
        if pair[0] != pair[1]:
            return position
    return None if len(one) == len(other) else min(len(one), len(other))


def tokens_of(record: dict) -> list[int] | None:
    """The ids of the last run of a cell's record that names them."""
    named = (event.get("tokens") for event in reversed(record.get("events", [])))
    return next((ids for ids in named if ids), None)


def compared(records: Iterable[dict]) -> list[Answers]:
    """Every cell against the first one of another engine that was asked the same, in the records'
    order.

    The first engine is the one whose cell comes first, mlx-lm's own loop before others.
    """
    groups: dict[tuple, list[tuple[dict, list[int]]]] = {}
    for record in records:
        if ids := tokens_of(record):
            groups.setdefault(question_of(record), []).append((record, ids))
    return [answers for group in groups.values() for answers in _in_group(group)]


def _in_group(group: list[tuple[dict, list[int]]]) -> list[Answers]:
    stock = [each for each in group if each[0]["request"]["options"].get("loop") == "mlx-lm"]
    reference, ids = (stock or group)[0]
    engine = reference["request"]["engine"]
    return [
        _answers(reference["cell"], record["cell"], ids, found)
        for record, found in group
        if record["request"]["engine"] != engine
    ]


def _answers(reference: dict, other: dict, ids: list[int], found: list[int]) -> Answers:
    first = first_difference(ids, found)
    at = tuple(_at(each, first) for each in (ids, found))
    return Answers(reference, other, min(len(ids), len(found)), first, at)


def _at(ids: list[int], position: int | None) -> int | None:
    return ids[position] if position is not None and position < len(ids) else None


def question_of(record: dict) -> tuple:
    """What the cell was asked: model, prompt, and how to pick tokens."""
    cell, protocol = record["cell"], record["request"]["protocol"]
    penalty = protocol.get("repeat_penalty")
    window = protocol.get("repeat_window") if penalty != 1 else None
    rest = (protocol.get("generate"), protocol.get("ignore_eos"))
    return (cell["model"], cell["prompt"], cell["round"], penalty, window, *rest)
