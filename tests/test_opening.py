"""The first screen: what a reader asks, answered from the small result set (tests/data/small)."""

from dataclasses import replace
from pathlib import Path

import pytest

from kvpeak.analysis.comparisons import compare
from kvpeak.analysis.headline import missed_mib
from kvpeak.analysis.lead import caution, leading
from kvpeak.analysis.parts import parts_of
from kvpeak.analysis.pooled import effects
from kvpeak.analysis.results import read_results
from kvpeak.analysis.setting import differences, prompt_unseen
from kvpeak.analysis.verdicts import Verdict
from kvpeak.base.axes import AXES
from kvpeak.report.context import not_here
from kvpeak.report.doubts import not_measured
from kvpeak.report.names import names_line
from kvpeak.report.opening import opening, spell_single_speeds
from kvpeak.report.where import where_table

SMALL = Path(__file__).parent / "data/small"
CUDA = {"method": "live", "outcome": "ok", "accelerator": "cuda"}
STOCK = {"loop": "mlx-lm", "kv_cache": "mlx-lm", "cap": "default"}


@pytest.fixture(scope="module")
def small():
    return read_results(*(SMALL / name for name in ("plan.csv", "summary.csv", "runs.csv")))


def answered(results, *axes) -> dict:
    compared = [compare(results, *each) for each in axes]
    return opening(results, compared, leading(compared), effects(compared))["answers"]


QUESTIONS = [
    "What takes the memory?",
    "What changes it most, in MiB?",
    "What would lower it?",
    "At what price?",
    "How sure is this?",
]


def test_every_question_of_a_reader_has_an_answer(small):
    """The largest change is one that no matrix declares: its cells differ in their cache only."""
    answers = answered(small, ("cap", "none", "32MiB"))
    assert list(answers) == QUESTIONS
    assert answers["What changes it most, in MiB?"].startswith(
        "KV cache, cat → prealloc: 1,000 → 430 MiB (0.43 times; tiny, mlx-0.32.4, 513 tokens"
    )
    assert answers["What would lower it?"].endswith(
        "With all else equal 1 other cap and 1 other KV cache were tried; 2 of 2 take clearly less "
        "(over 5 %)."
    )
    assert answers["At what price?"].startswith("Of prealloc instead of cat: there are too few")
    assert answers["How sure is this?"].startswith(
        "The two peaks of the largest change are medians of 4 and 1 processes a side"
    )


def test_a_change_of_another_setting_that_is_as_large_is_named(small):
    """The largest takes 570 MiB off: from 1,000 to 430; the limit may take 560 off, not 530."""

    def most(peak):
        summary = {
            cell: row | ({"peak_mib": peak, "peak_max_mib": peak, "peak_min_mib": peak})
            if row["cap"] == "32MiB" and row["kv_cache"] == "cat"
            else row
            for cell, row in small.summary.items()
        }
        return answered(replace(small, summary=summary), ("cap", "none", "32MiB"))[
            "What changes it most, in MiB?"
        ]

    assert most(440.0).endswith(
        " Changes as large, within 5 %: cap, no cap → cap 32MiB (1,000 → 440)."
    )
    assert "as many MiB" not in most(470.0)


def test_another_commit_brings_its_packages_and_its_tokens(small):
    """The cell under prealloc stands for the same cell under another release."""
    cells = {
        cell: row
        for cell, row in small.summary.items()
        if cell[2:5] in (("alice-512", "cat", "none"), ("alice-512", "prealloc", "none"))
    }
    summary, plan = {}, {}
    for cell, row in cells.items():
        old = cell[3] == "prealloc"
        name = ("mlx-0.31.2" if old else "mlx-0.32.4", *cell[1:3], "mlx-lm", *cell[4:])
        versions = "mlx 0.31.2, mlx-lm 0.31.3" if old else "mlx 0.32.4, mlx-lm 0.32.2"
        more = dict(zip(AXES, name, strict=True)) | {"versions": versions, "tokens_sha256": name[0]}
        summary[name], plan[name] = row | more, ""
    results = replace(small, summary=summary, plan=plan)
    axes = ("commit", "mlx-0.32.4", "mlx-0.31.2")
    lower = answered(results, axes)["What would lower it?"]
    assert lower.endswith(
        "clearly less (over 5 %). A commit brings packages of its own. Its tokens are others."
    )
    assert (
        "What differs: mlx 0.32.4 → 0.31.2, mlx-lm 0.32.2 → 0.31.3 and the packages that come with "
        "them."
    ) in leading([compare(results, *axes)]).sentence


def test_a_setting_that_differs_in_more_than_one_name_is_named_where_it_takes_least(small):
    def lower(peak):
        summary = {
            cell: row | ({"peak_mib": peak} if cell[2:5] == place else {})
            for cell, row in small.summary.items()
        }
        axes = ("cap", "none", "32MiB")
        return answered(replace(small, summary=summary), axes)["What would lower it?"]

    place = ("alice-512", "prealloc", "32MiB")
    said = " Of all 4 settings of this prompt the least is 400 MiB (prealloc, cap 32MiB, default)."
    assert lower(400.0).endswith(said)
    assert "Of all" not in lower(420.0)


def test_memory_of_a_gpu_is_called_so(small):
    results = stock_before(small, accelerator="cuda", peak_source="counted")
    compared = [compare(results, "cap", "none", "32MiB")]
    found = opening(results, compared, leading(compared), effects(compared))
    assert found["title"].startswith("tiny takes 1,000 MiB of GPU memory on 513 tokens")
    assert "peaks at 1,000 MiB of GPU memory" in found["answers"]["What takes the memory?"]
    assert " MiB of GPU memory (" in found["answers"]["What changes it most, in MiB?"]


def test_where_nothing_was_measured_every_question_is_answered_all_the_same(small):
    nothing = replace(small, summary={})
    answers = answered(nothing, ("cap", "none", "32MiB"))
    assert list(answers) == QUESTIONS
    assert answers["What takes the memory?"] == "Not known from these data."
    assert answers["What would lower it?"].startswith("Not known from these data.")


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
    assert "1,000 → 430 MiB" in answers["What would lower it?"]


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
    assert f"peaks at 1,000 MiB (median; 998 to 1,001 in 4 processes) on {words}." in found[
        "answers"
    ]["What takes the memory?"].replace(". Of", ".")
    assert f"tiny, mlx-0.32.4, {words}, " in found["answers"]["What changes it most, in MiB?"]
    assert "513 tokens" not in found["title"] + " ".join(found["answers"].values())


def test_where_the_other_side_takes_more_nothing_lowers_it(small):
    """The stock cell is the one with the cap; without it the peak rises."""
    cells = [cell for cell in small.summary if cell[2:4] == ("alice-512", "cat")]
    summary = {cell: small.summary[cell] | (STOCK if cell[4] == "32MiB" else {}) for cell in cells}
    for names in (("32MiB", "none"), ("none", "32MiB")):
        answers = answered(replace(small, summary=summary), ("cap", *names))
        assert answers["What would lower it?"] == (
            "With all else equal 1 other cap was tried; it does not take clearly less (over "
            "5 %; no cap: 2.27 times as much)."
        )
        assert answers["At what price?"].startswith("Nothing that was tried lowers this peak. The")


def test_a_peak_that_was_reached_in_loading_is_named_so_and_has_the_parts_of_the_runs(small):
    cell = next(iter(small.summary))
    seen = {"sampled_load_mib": 950.0, "sampled_run_mib": 700.0, "loaded_mib": 20.0}
    row = small.summary[cell] | STOCK | seen | {"peak_pool_mib": 600.0, "peak_active_mib": 300.0}
    results = replace(small, summary={cell: row | {"parts": parts_of(row, [])}})
    found = opening(results, [], leading([compare(results, "cap", "none", "32MiB")]), {})
    assert found["title"].startswith("tiny takes 1,000 MiB while loading, and 700 on 513 tokens")
    assert (
        "reached while loading; the largest sample of the runs is 700 MiB. Of the 700 MiB while "
        "running 20 MiB are weights, at most 280 other live arrays, 300 free memory that "
        "the pool keeps, and 100 the rest of the process"
    ) in found["answers"]["What takes the memory?"]
    assert "in its runs (1,000 while loading)" in where_table(results, [])
    late = {"sampled_load_mib": 500.0, "sampled_end_mib": 1000.0}
    assert "in its runs (1,000 after the last run)" in where_table(
        replace(small, summary={cell: row | late}), []
    )


def test_a_pool_that_counts_whole_buffers_has_no_parts(small):
    row = next(iter(small.summary.values()))
    assert parts_of(row | {"pool_rule": "candle,cap:4x"}, []) is None
    assert parts_of(row | {"pool_rule": "mlx,backend:cpu"}, []) == parts_of(row, [])


def test_a_variant_is_told_by_what_differs_in_its_options():
    before = {"loop": "mlx-lm", "prefill_chunk": "2048", "prompt_tokens": 8193, "loop_mib": 43.7}
    after = {"loop": "own", "prefill_chunk": "whole", "prompt_tokens": 8193, "loop_mib": 0.0}
    assert differences(before, after) == (
        "mlx-lm's loop → this project's loop; the prompt 2048 tokens at a time → the prompt whole; "
        "importing the loop takes 44 MiB less"
    )
    short = {"prompt_tokens": 513, "loop_mib": None}
    assert differences(before | short, after | short) == "mlx-lm's loop → this project's loop"
    turns = {"prompt_tokens": 13_000, "longest_prompt": 65, "loop_mib": None}
    assert differences(before | turns, after | turns) == "mlx-lm's loop → this project's loop"
    one = {"prompt_tokens": 513, "recorded": "yes", "repeat_penalty": "1.1"}
    assert differences(one, {"prompt_tokens": 513, "repeat_penalty": "1"}) == (
        "a repeat penalty of 1.1 → no repeat penalty; recorded → not recorded"
    )


def test_of_a_stock_cell_that_is_in_no_comparison_nothing_is_said_to_lower_it_or_not(small):
    cell, row = next(iter(small.summary.items()))
    alone = (*cell[:2], "batch-8", *cell[3:])
    more = row | STOCK | {"prompt": "batch-8", "workload": "batch 8", "peak_mib": 7_000.0}
    results = replace(small, summary=small.summary | {alone: more})
    answers = answered(results, ("cap", "none", "32MiB"))
    assert answers["What would lower it?"] == (
        "Not known from these data. No cell of this prompt was measured with one other setting "
        "only."
    )


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
    assert "A row is the process with the median peak" in text
    once = replace(small, summary={cell: row | {"parts": [900.0, 0.0, 0.0, 0.0], "rounds": 1}})
    assert "A row is the process" not in where_table(once, [])
    takes = opening(results, [], leading([compare(small, "cap", "32MiB", "2x")]), {})["answers"]
    assert (
        "Of the 850 MiB of one process with the median peak 100 MiB are weights"
        in (takes["What takes the memory?"])
    )


def test_a_finding_on_two_machines_that_measured_all_of_its_plan_left_nothing_out():
    found = {"single": {}, "not_here": [], "planned": 4, "machines": ["a"]}
    assert not_measured(found) == "Here: other machines."
    assert not_measured(found | {"machines": ["a", "b"]}) == ""


def test_a_cell_that_was_measured_in_some_rounds_is_not_one_that_was_left_out(small):
    cells = [dict(zip(AXES, cell, strict=True)) for cell in list(small.summary)[:2]]
    runs = {"runs_here": "yes", "reason": ""}
    misses = {"runs_here": "no", "reason": "needs a GPU"}
    plan = [cells[0] | runs, cells[0] | misses, cells[1] | misses, cells[1] | misses]
    assert not_here(plan) == [{"reason": "needs a GPU", "cells": 1}]


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
    assert "`stock`: mlx-lm's loop; `naive`: this project's loop, naive attention; " in text
    assert "`quiet`: mlx-lm's loop, A=0. `cat`: keys" in text
    assert names_line(rows[:1]) == ""
    assert "`new`: not known to this version" in names_line(
        [rows[0], rows[0] | {"kv_cache": "new"}]
    )
    more = {"recorded": "yes", "repeat_penalty": "1.1"}
    assert "`naive`: this project's loop, naive attention, a repeat penalty of 1.1, recorded" in (
        names_line([row | more if row["variant"] == "naive" else row for row in rows])
    )
    ratios = [rows[0] | {"cap": cap, "pool_rule": f"candle,cap:{cap}"} for cap in ("2x", "4x")]
    other = rows[1] | {"pool_rule": "torch,max_split_size_mb:32"}
    text = names_line([*ratios, other])
    assert "`stock`: mlx-lm's loop, the pool's rule candle; " in text
    assert "naive attention, the pool's rule torch,max\\_split\\_size\\_mb:32" in text
    assert text.endswith(
        "`2x`, `4x`: a free buffer is reused if its size class is at most so many times the "
        "request's."
    )


@pytest.mark.parametrize(
    ("seen", "missed"),
    [
        (
            [(2426, 1920), (2302, 1792), (2458, 1920), (2462, 1920), (2426, 2016)],
            [542 - 506, 542 - 510, 542 - 538, 0, 542 - 410],
        ),
        ([(1630, 1056), (1598, 1024), (1662, 1088)], [0, 0, 0]),  # 574 beside the pool in each
        ([(1630, None)], []),
        ([], []),
    ],
)
def test_what_samples_missed_is_told_by_the_reserve_that_is_counted_exactly(seen, missed):
    """Processes of the H200 finding: device and pool's reserve, MiB."""
    names = ("peak_device_mib", "peak_reserved_mib")
    processes = [dict(zip(names, each, strict=True)) for each in seen]
    assert missed_mib(CUDA, processes) == missed
    assert missed_mib(CUDA | {"accelerator": "cpu"}, processes) == []


def test_a_sampled_peak_is_a_lower_bound_where_it_is_printed(small):
    source = {"peak_source": "NVML, the process, sampled (a lower bound)"}
    missed = {"missed_mib": 132.0, "missed_in": 3}
    results = stock_before(small, **source, **missed)
    compared = [compare(results, "cap", "none", "32MiB")]
    found = opening(results, compared, leading(compared), effects(compared))
    assert "at least 1,000 MiB (sampled median)" in found["title"]
    assert (
        "peaks at 1,000 MiB or more (median; 998 to 1,001"
        in found["answers"]["What takes the memory?"]
    )
    assert caution(leading(compared).pair) == [
        "Both peaks were sampled: either may be higher, and the ratio off.",
        "Samples are known to miss peaks here: in 3 of 4 processes of the cell with 1,000 MiB, in "
        "one of them by 132 MiB or more.",
    ]


def test_a_release_of_mlx_lm_whose_penalty_does_not_see_the_prompt_is_told():
    row = {"loop": "mlx-lm", "versions": "mlx 0.30.0, mlx-lm 0.28.4"}
    assert prompt_unseen(row)
    assert not prompt_unseen(row | {"versions": "mlx 0.32.4, mlx-lm 0.32.2"})
    assert not prompt_unseen(row | {"versions": "mlx 0.26.5, mlx-lm 0.26.0"})
    assert not prompt_unseen(row | {"loop": "own"})
    assert not prompt_unseen({"versions": None})


@pytest.mark.parametrize(
    ("rule", "why"),
    [("torch", "its pool counts reserved pages too"), ("", "a counter is not known")],
)
def test_a_row_without_parts_says_why(small, rule, why):
    split, whole, *_ = small.summary
    rows = {
        split: small.summary[split] | STOCK | {"parts": [100.0, 200.0, 300.0, 250.0]},
        whole: small.summary[whole] | STOCK | {"pool_rule": rule, "parts": None, "commit": "x"},
    }
    assert f"–: {why}." in where_table(replace(small, summary=rows), [])


def test_a_pool_that_keeps_nothing_is_not_named_among_the_parts(small):
    cell = next(iter(small.summary))
    for kept, named in ((0.4, False), (3.0, True)):
        row = small.summary[cell] | STOCK | {"parts": [100.0, 200.0, kept, 250.0]}
        results = replace(small, summary={cell: row})
        found = opening(results, [], leading([compare(small, "cap", "32MiB", "2x")]), {})
        assert ("free memory" in found["answers"]["What takes the memory?"]) == named
