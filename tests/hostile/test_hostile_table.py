"""README.md here names a test for every attack, and each of them is there."""

import ast
import re
from pathlib import Path

HERE = Path(__file__).parent
ROW = re.compile(r"\| (?P<attack>.+) \| `(?P<file>\S+)::(?P<test>\w+)` \|")


def rows() -> list[re.Match]:
    lines = (HERE / "README.md").read_text(encoding="utf-8").splitlines()
    heads = ("| attack | test |", "|---|---|")
    return [ROW.fullmatch(line) for line in lines if line.startswith("|") and line not in heads]


def functions_of(file: Path) -> set[str]:
    """The tests of a module that are run: functions, not just words in it."""
    found = ast.parse(file.read_text(encoding="utf-8")).body
    return {each.name for each in found if isinstance(each, ast.FunctionDef)}


def test_every_attack_has_a_test_that_is_there():
    assert all(rows())
    for row in rows():
        file = (HERE / row["file"]).resolve()
        assert row["test"] in functions_of(file), row["attack"]
        assert row["test"].startswith("test_")


def test_no_attack_is_listed_twice_and_all_kinds_are_there():
    attacks = [row["attack"] for row in rows()]
    assert len(set(attacks)) == len(attacks) >= 74
    text = (HERE / "README.md").read_text(encoding="utf-8")
    assert [int(number) for number in re.findall(r"^## (\d+)\.", text, re.MULTILINE)] == [
        *range(1, 14)
    ]
