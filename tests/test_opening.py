"""The first screen: what a reader asks, answered from the small result set (tests/data/small)."""

from dataclasses import replace
from pathlib import Path

import pytest

from kvpeak.analysis.comparisons import compare
from kvpeak.analysis.headline import missed_mib
from kvpeak.analysis.lead import caution, leading
from kvpeak.analysis.pooled import effects
from kvpeak.analysis.results import read_results
from kvpeak.analysis.verdicts import Verdict
from kvpeak.report.opening import names_line, opening, spell_single_speeds, where_table

SMALL = Path(__file__).parent / "data/small"
CUDA = {"method": "live", "outcome": "ok", "accelerator": "cuda"}
STOCK = {"loop": "mlx-lm", "kv_cache": "mlx-lm", "cap": "default"}


@pytest.fixture(scope="module")
def small():
    return read_results(*(SMALL / name for name in ("plan.csv", "summary.csv", "runs.csv")))


def answered(results, *axes) -> dict:
    compared = [compare(results, *each) for each in axes]
    return opening(results, compared, leading(compared), effects(compared))["answers"]


def test_every_question_of_a_reader_has_an_answer(small):
    answers = answered(small, ("cap", "none", "32MiB"))
    assert list(answers) == ["What changes it most?", "At what price?", "How sure is this?"]
    assert "440 MiB (438 to 441) instead of 1,000 MiB" in answers["What changes it most?"]
    assert answers["How sure is this?"].startswith("The peaks are medians of 4 processes a side")


def stock_before(small, **more):
    """The cell without a cap stands for mlx-lm's own setting."""
    summary = {
        cell: row | (STOCK | more if cell[3] == "cat" and row["cap"] == "none" else {})
        for cell, row in small.summary.items()
    }
    return replace(small, summary=summary)


def test_what_lowers_the_stock_cell_is_said_by_that_name(small):
    answers = answered(stock_before(small), ("cap", "none", "32MiB"))
    assert answers["What takes the memory?"].startswith(
        "As mlx-lm runs it (mlx-0.32.4, default), tiny"
    )
    assert "1,000 MiB" in answers["What would lower it?"]
    assert "What changes it most?" not in answers


@pytest.mark.parametrize(
    ("workload", "words"),
    [
        ("turns 40", "a session of 40 turns"),
        ("repeat 27", "27 requests of 19 tokens"),
        ("batch 8", "a batch of 8 sequences"),
        ("shared_prefix 256", "two prompts that share 256 tokens"),
    ],
)
def test_a_workload_is_named_and_not_called_a_prompt_of_so_many_tokens(small, workload, words):
    results = stock_before(small, workload=workload)
    compared = [compare(results, "cap", "none", "32MiB")]
    found = opening(results, compared, leading(compared), effects(compared))
    assert found["title"].startswith(f"tiny takes 1,000 MiB on {words} as mlx-lm runs it")
    assert f"peaks at 1,000 MiB (998 to 1,001 in 4 processes) on {words}." in found["answers"][
        "What takes the memory?"
    ].replace(". Of", ".")
    assert f"tiny with the cat cache on {words} (" in found["answers"]["What would lower it?"]
    assert "513 tokens" not in found["title"] + " ".join(found["answers"].values())


def test_where_the_other_side_takes_more_nothing_lowers_it(small):
    """The stock cell is the one with the cap; without it the peak rises."""
    summary = {
        cell: row | (STOCK if (cell[3], cell[4]) == ("cat", "32MiB") else {})
        for cell, row in small.summary.items()
    }
    answers = answered(replace(small, summary=summary), ("cap", "32MiB", "none"))
    assert answers["What changes it most?"].endswith("(2.27× more; medians of 4 processes a side).")
    assert answers["What would lower it?"].startswith("Nothing that was compared with this cell")
    back = answered(replace(small, summary=summary), ("cap", "none", "32MiB"))
    assert back["What would lower it?"].startswith("Nothing")


def test_of_a_stock_cell_that_is_in_no_comparison_nothing_is_said_to_lower_it_or_not(small):
    cell, row = next(iter(small.summary.items()))
    alone = (*cell[:2], "batch-8", *cell[3:])
    more = row | STOCK | {"prompt": "batch-8", "workload": "batch 8", "peak_mib": 7_000.0}
    results = replace(small, summary=small.summary | {alone: more})
    answers = answered(results, ("cap", "none", "32MiB"))
    assert answers["What would lower it?"] == "Not known: no comparison has this cell on a side."


def test_a_change_that_is_established_in_single_pairs_is_named(small):
    """Over all pairs nothing is established of the time to first token; in two it is shorter."""
    found = compare(small, "cap", "none", "32MiB")
    changes = iter([(Verdict.FASTER, 0.5), (Verdict.FASTER, 0.25), (Verdict.UNCLEAR, 2.0)])

    def told(pair):
        speeds = dict(pair.speeds)
        if change := speeds.get("ttft_ms") or speeds.get("decode_tok_s"):
            verdict, ratio = next(changes, (Verdict.UNCLEAR, 1.0))
            after = {"after": change.before * ratio, "ratio": replace(change.ratio, value=ratio)}
            speeds["ttft_ms"] = replace(change, verdict=verdict, half_widths=(None, None), **after)
        return replace(pair, speeds=speeds)

    found = replace(found, pairs=[told(pair) for pair in found.pairs])
    (line,) = spell_single_speeds(found, effects([found])[found.slug])
    pairs = sum("ttft_ms" in pair.speeds for pair in found.pairs)
    assert line.startswith(f"time to first token is shorter in 2 of {pairs} pairs (most: ")


def test_a_row_of_the_table_is_one_process_whose_parts_add_up(small):
    """Two processes: the median of their peaks, 900, is that of neither."""
    cell = next(iter(small.summary))
    row = small.summary[cell] | STOCK | {"peak_mib": 900.0, "rounds": 2}
    results = replace(small, summary={cell: row | {"parts": [100.0, 200.0, 300.0, 250.0]}})
    text = where_table(results, [])
    assert "| 850 | 100 | 200 | 300 | 250 |" in text
    assert "A row is one process" in text
    once = replace(small, summary={cell: row | {"parts": [900.0, 0.0, 0.0, 0.0], "rounds": 1}})
    assert "A row is one process" not in where_table(once, [])
    takes = opening(results, [], leading([compare(small, "cap", "32MiB", "2x")]), {})["answers"]
    assert (
        "Of the 850 MiB of one process, the one with the median peak, 100 MiB are weights"
        in (takes["What takes the memory?"])
    )


def test_a_finding_says_what_its_names_are(small):
    own = {"versions": "mlx 0.32.4", "attention": "fused", "env": ""}
    rows = [
        row | own | {"loop": loop, "variant": name} | more
        for row in small.summary.values()
        for name, loop, more in (
            ("stock", "mlx-lm", {}),
            ("naive", "own", {"attention": "naive"}),
            ("quiet", "mlx-lm", {"env": "A=0"}),
        )
    ]
    text = names_line(rows)
    assert "`stock`: mlx-lm's loop; `naive`: this project's loop, which never clears" in text
    assert "the pool with naive attention; `quiet`: mlx-lm's loop with A=0. `cat`: keys" in text
    assert names_line(rows[:1]) == ""


@pytest.mark.parametrize(
    ("seen", "missed"),
    [
        ([(2426, 1920), (2302, 1792), (2458, 1920), (2462, 1920), (2426, 2016)], 542 - 410),
        ([(1630, 1056), (1598, 1024), (1662, 1088)], 0),  # 574 beside the pool in each
        ([(1630, None)], 0),
        ([], 0),
    ],
)
def test_what_samples_missed_is_told_by_the_reserve_that_is_counted_exactly(seen, missed):
    """Processes of the H200 finding: device and pool's reserve, MiB."""
    names = ("peak_device_mib", "peak_reserved_mib")
    processes = [dict(zip(names, each, strict=True)) for each in seen]
    assert missed_mib(CUDA, processes) == missed
    assert missed_mib(CUDA | {"accelerator": "cpu"}, processes) == 0


def test_a_sampled_peak_is_a_lower_bound_where_it_is_printed(small):
    source = {"peak_source": "NVML, the process, sampled (a lower bound)", "missed_mib": 132.0}
    results = stock_before(small, **source)
    compared = [compare(results, "cap", "none", "32MiB")]
    found = opening(results, compared, leading(compared), effects(compared))
    assert "at least 1,000 MiB (sampled)" in found["title"]
    assert "peaks at 1,000 MiB or more (998 to 1,001" in found["answers"]["What takes the memory?"]
    assert "instead of 1,000 MiB or more" in found["answers"]["What would lower it?"]
    assert caution(leading(compared).pair) == [
        "They were sampled: each is a lower bound, and so their ratio is no bound.",
        "In a process of the cell with 1,000 MiB the samples missed 132 MiB at least.",
    ]
