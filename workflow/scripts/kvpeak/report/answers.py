"""The answers of two engines side by side, as the finding shows them."""

from kvpeak.analysis.answers import Answers, compared
from kvpeak.report import markdown
from kvpeak.report.markdown import code

HEADER = ["model", "prompt", "commit", "KV cache", "against", "answer"]


def answers_section(records: list[dict]) -> str:
    """The table of answers to the same question by different engines; '' if there are none."""
    body = [_row(answers) for answers in compared(records)]
    return markdown.table(HEADER, body, "      ") if body else ""


def _row(answers: Answers) -> list:
    other, reference = answers.other, answers.reference
    return [
        code(other["model"]),
        code(other["prompt"]),
        code(other["commit"]),
        code(other["kv_cache"]),
        code(f"{reference['commit']} {reference['variant']}"),
        words(answers),
    ]


def words(answers: Answers) -> str:
    """Equal, or the first difference: its token's number from 1, and the ids."""
    if answers.first is None:
        return f"all {answers.tokens} tokens are equal"
    ids = ["the end" if value is None else str(value) for value in answers.ids]
    return f"first difference at token {answers.first + 1}: {ids[1]} instead of {ids[0]}"
