"""The table of a comparison: no pair and no column is lost, and each figure is in its place."""

from dataclasses import replace
from pathlib import Path

import pytest

from kvpeak.analysis.comparisons import Comparison, compare
from kvpeak.analysis.results import read_results
from kvpeak.report.sections import comparison_section
from kvpeak.report.tables import SHOWN

SMALL = Path(__file__).parent / "data/small"


@pytest.fixture(scope="module")
def caps() -> Comparison:
    names = ("plan.csv", "summary.csv", "runs.csv")
    return compare(read_results(*(SMALL / name for name in names)), "cap", "none", "32MiB")


def table(section: dict) -> tuple[list[str], list[list[str]]]:
    """The header and the rows of a section's table, as Markdown has them."""
    lines = section["table"].strip().splitlines()
    header, _, *body = ([cell.strip() for cell in line.strip("|").split("|")] for line in lines)
    return header, body


def test_each_pair_has_a_row_with_the_figures_of_both_sides(caps):
    header, rows = table(comparison_section(caps))
    assert header[:7] == [
        *("prompt", "kv cache", "peak before", "after", "after / before", "pool before", "after")
    ]
    assert len(header) == 10  # and three speeds
    assert [row[:7] for row in rows] == [
        [
            *("`alice-512`", "`cat`", "1,000 (998 to 1,001)", "440 (438 to 441)"),
            *("0.44×", "900", "340"),
        ],
        ["`alice-512`", "`prealloc`", "430", "428", "1.00×", "330", "328"],
        ["`alice-2048` ⚑", "`cat`", "oom at 1,800", "660", "–", "1,700", "560"],
        ["`alice-2048`", "`prealloc`", "640", "640", "1.00×", "540", "540"],
    ]
    assert [row[7:] for row in rows] == [
        [f"{speed}, same within 5 %" for speed in ("2,100 → 2,100", "250 → 250", "100 → 100")],
        ["2,100 → 2,100", "250 → 250", "100 → 100"],
        ["–", "–", "–"],
        ["8,200 → 8,200", "250 → 250", "100 → 100"],
    ]


def test_an_axis_on_which_no_pairs_differ_has_no_column(caps):
    one = replace(caps, pairs=[pair for pair in caps.pairs if pair.names["kv_cache"] == "cat"])
    header, rows = table(comparison_section(one))
    assert header[:2] == ["prompt", "peak before"]
    assert [row[0] for row in rows] == ["`alice-512`", "`alice-2048` ⚑"]


def test_a_pair_with_one_side_is_counted_and_not_shown(caps):
    first, *others = caps.pairs
    section = comparison_section(replace(caps, pairs=[replace(first, after=None), *others]))
    assert (section["pairs"], section["one_sided"], section["left_out"]) == (3, 1, 0)
    assert len(table(section)[1]) == 3


def test_of_many_pairs_those_with_the_largest_changes_are_shown_in_their_order(caps):
    def pair(number: int, change: float):
        side = caps.pairs[1].before
        names = caps.pairs[1].names | {"prompt": f"p{number}"}
        after = side | {"peak_mib": side["peak_mib"] + change}
        return replace(caps.pairs[1], names=names, before=side, after=after)

    changes = [1.0, *[-50.0 - n for n in range(SHOWN)], 2.0]
    section = comparison_section(replace(caps, pairs=list(map(pair, range(SHOWN + 2), changes))))
    assert (section["pairs"], section["left_out"]) == (SHOWN, 2)
    assert [row[0] for row in table(section)[1]] == [f"`p{n}`" for n in range(1, SHOWN + 1)]


def test_a_pair_whose_answers_differ_is_marked(caps):
    first, *others = caps.pairs
    differs = replace(first, after=first.after | {"tokens_sha256": "differs"})
    section = comparison_section(replace(caps, pairs=[differs, *others]))
    assert section["unstable"]
    assert table(section)[1][0][0] == "`alice-512` ∿"
    assert not comparison_section(caps)["unstable"]


def test_a_replay_says_its_method(caps):
    first, *others = caps.pairs
    replayed = replace(first, after=first.after | {"method": "replayed: real"})
    header, rows = table(comparison_section(replace(caps, pairs=[replayed, *others])))
    assert header[2] == "method"
    assert [row[2] for row in rows] == ["live / replayed: real", "live", "live", "live"]
