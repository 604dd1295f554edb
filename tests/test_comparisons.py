"""Before → after on the small result set (tests/data/small), and on changes made up in the
tests.
"""

import csv
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from kvpeak.analysis.comparisons import (
    Pair,
    compare,
    compare_results,
    has_peak,
    peak_range,
    ranges_meet,
)
from kvpeak.analysis.results import Results, headline, read_results
from kvpeak.analysis.verdicts import Verdict
from kvpeak.base.axes import AXES
from kvpeak.base.columns import SPEEDS
from kvpeak.report import sections

SMALL = Path(__file__).parent / "data/small"


@pytest.fixture(scope="module")
def small():
    return read_results(*(SMALL / name for name in ("plan.csv", "summary.csv", "runs.csv")))


def two_cells(before, after, column="decode_tok_s", peaks=(1000.0, 400.0)) -> Results:
    """One pair of cells with these process means of a speed."""
    cells = [("mlx", "tiny", "p", "cat", cap, "default") for cap in ("none", "32MiB")]
    summary = {
        cell: {
            "outcome": "ok",
            "peak_mib": peak,
            "peak_min_mib": peak - 5,
            "flags": None,
            "method": "live",
            "prompt_tokens": 513,
        }
        for cell, peak in zip(cells, peaks, strict=True)
    }
    processes = {name: {} for name in SPEEDS}
    processes[column] = {cells[0]: np.array(before), cells[1]: np.array(after)}
    return Results(dict.fromkeys(cells, ""), summary, processes)


def the_change(*speeds, **more):
    (pair,) = compare(two_cells(*speeds, **more), "cap", "none", "32MiB").pairs
    (change,) = pair.speeds.values()
    return change


def test_pairs_differ_on_the_compared_axis_only(small):
    found = compare(small, "cap", "none", "32MiB").pairs
    assert [(pair.names["prompt"], pair.names["kv_cache"]) for pair in found] == [
        ("alice-512", "cat"),
        ("alice-512", "prealloc"),
        ("alice-2048", "cat"),
        ("alice-2048", "prealloc"),
    ]  # the model that needs a GPU was not measured on either side
    assert all("cap" not in pair.names for pair in found)


def test_a_pair_shows_peaks_ratio_and_speeds(small):
    pair = compare(small, "cap", "none", "32MiB").pairs[0]
    assert (pair.before["peak_mib"], pair.after["peak_mib"]) == (1000, 440)
    assert (pair.peak_ratio, pair.peak_change_mib, pair.above_noise) == (0.44, -560, True)
    decode = pair.speeds["decode_tok_s"]
    assert (decode.before, decode.after, decode.ratio.n) == (100.0, 100.25, (4, 4))
    assert decode.verdict == Verdict.SAME


def test_an_outcome_is_data_and_has_no_ratio(small):
    pair = compare(small, "cap", "none", "32MiB").pairs[2]
    assert (pair.before["outcome"], pair.after["outcome"]) == ("oom", "ok")
    assert (pair.complete, pair.peak_ratio, pair.above_noise) == (False, None, False)
    assert pair.flags == ("none: on battery",)


def test_a_side_that_was_not_run_is_none(small):
    cell = ("mlx-0.32.4", "tiny", "alice-512", "cat", "32MiB", "default")
    fewer = {name: row for name, row in small.summary.items() if name != cell}
    pair = compare(replace(small, summary=fewer), "cap", "none", "32MiB").pairs[0]
    assert pair.after is None
    assert not pair.complete


def test_ranges_that_meet_are_noise():
    apart = two_cells([1.0], [1.0], peaks=(1000.0, 900.0))
    assert compare(apart, "cap", "none", "32MiB").pairs[0].above_noise
    for row in apart.summary.values():
        row["peak_min_mib"] = row["peak_mib"] - 150
    assert not compare(apart, "cap", "none", "32MiB").pairs[0].above_noise
    near = two_cells([1.0], [1.0], peaks=(1000.0, 960.0))
    assert not compare(near, "cap", "none", "32MiB").pairs[0].above_noise


@pytest.mark.parametrize(
    ("peaks", "spread", "above"),
    [
        ((1000.0, 400.0), 0, True),
        ((400.0, 1000.0), 0, True),
        ((400.0, 1000.0), 250, True),  # 400 to 650 and 750 to 1,250
        ((400.0, 1000.0), 300, False),  # both have 700
        ((1000.0, 400.0), 300, False),
        ((1000.0, 400.0), 350, False),
        ((400.0, 1000.0), 350, False),
        ((1000.0, 951.0), 0, False),
        ((1000.0, 1049.0), 0, False),
        ((1000.0, 1051.0), 0, True),
        ((1000.0, 949.0), 0, True),
    ],
)
def test_a_difference_counts_beyond_5_percent_where_the_ranges_are_apart(peaks, spread, above):
    results = two_cells([1.0], [1.0], peaks=peaks)
    for row in results.summary.values():
        ends = {"min": row["peak_mib"] - spread, "max": row["peak_mib"] + spread}
        row |= {f"peak_{end}_mib": value for end, value in ends.items()}
    (pair,) = compare(results, "cap", "none", "32MiB").pairs
    assert pair.above_noise is above
    assert pair.peak_change_mib == peaks[1] - peaks[0]
    assert pair.peak_ratio == peaks[1] / peaks[0]


@pytest.mark.parametrize(
    ("one", "other", "meet"),
    [
        ({}, {}, False),  # 90 to 110 and 120 to 140
        ({"missed_mib": 9}, {}, False),
        ({"missed_mib": 10}, {}, True),
        ({}, {"missed_mib": 50}, False),
        ({"peak_max_mib": 119.5}, {}, False),
        ({"peak_max_mib": 120}, {}, True),
    ],
)
def test_ranges_meet_where_samples_may_have_missed_what_lies_between(one, other, meet):
    low = {"peak_mib": 100.0, "peak_min_mib": 90.0, "peak_max_mib": 110.0} | one
    high = {"peak_mib": 130.0, "peak_min_mib": 120.0, "peak_max_mib": 140.0} | other
    assert ranges_meet(low, high) is ranges_meet(high, low) is meet


def test_a_peak_is_that_of_a_cell_that_ended_well():
    row = {"outcome": "ok", "peak_mib": 5.0}
    assert has_peak(row)
    assert not has_peak(None)
    assert not has_peak(row | {"peak_mib": None})
    for outcome in ("guard", "oom", "timeout"):
        assert not has_peak(row | {"outcome": outcome})
    assert peak_range(row) == (5, 5)
    assert peak_range(row | {"peak_min_mib": 0.0, "peak_max_mib": 9.0}) == (0, 9)


@pytest.mark.parametrize("axis", AXES)
def test_cells_are_paired_on_every_axis(axis):
    """Beside the pair a cell of a third name, in the alphabet before or after the two."""
    names = dict(zip(AXES, ("c", "m", "p", "k", "a", "v"), strict=True))
    cells = [tuple((names | {axis: name}).values()) for name in ("b1", "b2", "a0", "z9")]
    other = tuple((names | {"commit": "other", "cap": "other"} | {axis: "b1"}).values())
    row = {"outcome": "ok", "peak_mib": 10.0, "flags": None, "method": "live"}
    summary = {cell: row | {"peak_mib": 10.0 + n} for n, cell in enumerate(cells)}
    plan = dict.fromkeys([*cells, other], "")
    found = compare(Results(plan, summary, {name: {} for name in SPEEDS}), axis, "b1", "b2")
    (pair,) = found.pairs
    assert pair.names == {other: names[other] for other in AXES if other != axis}
    assert found.axes == [name for name in AXES if name != axis]
    assert (pair.before["peak_mib"], pair.after["peak_mib"]) == (10, 11)
    assert (found.axis, found.before, found.after) == (axis, "b1", "b2")
    assert found.slug == f"{axis}-b1-b2"


def test_the_axes_on_which_pairs_differ(small):
    assert compare(small, "cap", "none", "32MiB").several == {"prompt", "kv_cache"}
    assert compare(small, "prompt", "alice-512", "alice-2048").several == {"kv_cache", "cap"}
    nothing = compare(small, "cap", "none", "64MiB")
    assert (nothing.pairs, nothing.axes, nothing.several) == ([], [], set())


def test_each_cell_is_paired_with_itself_in_another_folder(small):
    cells = list(small.summary)
    one = replace(small, summary={cell: small.summary[cell] for cell in cells[:3]})
    changed = small.summary[cells[1]] | {"peak_mib": 7.0, "flags": "load: busy"}
    other = replace(small, summary={cells[1]: changed, cells[4]: small.summary[cells[4]]})
    found = compare_results(one, other, "old", "new")
    assert (found.axis, found.before, found.after) == ("results", "old", "new")
    assert [tuple(pair.names.values()) for pair in found.pairs] == [*cells[:3], cells[4]]
    assert [(pair.before is None, pair.after is None) for pair in found.pairs] == [
        *[(False, True), (False, False), (False, True), (True, False)]
    ]
    assert found.pairs[1].peak_ratio == 7 / 440
    assert found.pairs[1].flags == ("new: load: busy",)


def test_a_pair_knows_its_processes_and_whether_both_sides_ran_live(small):
    pair = compare(small, "cap", "none", "32MiB").pairs[0]
    assert (pair.rounds, pair.live) == ((4, 4), True)
    for method in ("replayed: real", "imagined"):  # in the alphabet after and before "live"
        assert not replace(pair, after=pair.after | {"method": method}).live
        assert not replace(pair, before=pair.before | {"method": method}).live
    unknown = replace(pair, before=pair.before | {"rounds": None}, after={"rounds": 3.0})
    assert unknown.rounds == (1, 3)


@pytest.mark.parametrize(
    ("half_widths", "spelled"),
    [
        ((8.1, 2.0), "112 → 91"),
        ((0.2, 0.8), "112.4 → 90.6"),
        ((0.2, None), "110 → 91"),
        ((None, None), "110 → 91"),
    ],
)
def test_speeds_have_the_digits_of_the_wider_interval(half_widths, spelled):
    change = the_change([1.0], [1.0])
    assert replace(change, before=112.37, after=90.62, half_widths=half_widths).spelled == spelled


def on_cuda(tmp_path, smallest: str) -> Results:
    """The small result set under CUDA: device peaks of 1,000 and 900 MiB at most, and 10 MiB of
    every footprint.
    """
    table = tmp_path / "summary.csv"
    with (SMALL / "summary.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))[:2]
    for row, peak in zip(rows, (1000, 900), strict=True):
        row |= {"accelerator": "cuda", "peak_device_mib": peak, "peak_device_min_mib": smallest}
        row |= {"peak_footprint_mib": 10, "peak_footprint_min_mib": 10}
    with table.open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    return read_results(SMALL / "plan.csv", table, SMALL / "runs.csv")


def test_device_peaks_whose_ranges_meet_are_noise(tmp_path):
    assert not compare(on_cuda(tmp_path, "850"), "cap", "none", "32MiB").pairs[0].above_noise
    assert compare(on_cuda(tmp_path, ""), "cap", "none", "32MiB").pairs[0].above_noise


def test_prompts_that_are_compared_may_differ_in_length(small):
    (sentence,) = {
        *sections.mixed(compare(small, "prompt", "alice-512", "alice-2048").pairs, "cap")
    }
    assert sentence.endswith("pairs have prompts of different lengths.")
    assert not sections.mixed(compare(small, "prompt", "alice-512", "alice-2048").pairs, "prompt")


def test_a_loop_that_feeds_a_session_otherwise_has_no_other_prompt(small):
    pairs = compare(small, "prompt", "alice-512", "alice-2048").pairs
    sessions = [
        replace(
            pair,
            **{
                side: getattr(pair, side) | {"workload": "turns 40"} for side in ("before", "after")
            },
        )
        for pair in pairs
    ]
    assert sections.mixed(pairs, "variant")
    assert not sections.mixed(sessions, "variant")


def test_verdicts_on_a_speed():
    quiet = [100.0, 101, 99, 100.5]
    assert the_change(quiet, quiet).verdict == Verdict.SAME
    slower = the_change(quiet, [80.0, 81, 79, 82])
    assert (slower.verdict, slower.p) == (Verdict.SLOWER, pytest.approx(2 / 70))
    assert the_change([80.0, 81, 79, 82], quiet).verdict == Verdict.FASTER
    assert the_change(quiet, [80.0, 81, 79, 82], column="ttft_ms").verdict == Verdict.FASTER
    unclear = the_change(quiet, [100.0, 112, 92, 101])
    assert unclear.verdict == Verdict.UNCLEAR
    assert unclear.needs > 4


def test_a_speed_with_too_few_processes_is_not_testable():
    change = the_change([100.0, 100, 100], [50.0, 50, 50])
    assert (change.verdict, change.needs, change.ratio.low) == (Verdict.NOT_TESTABLE, 4, None)


def test_many_comparisons_need_more_processes():
    results = two_cells([100.0, 101, 99, 100], [80.0, 81, 79, 82])
    for name in SPEEDS:
        results.processes[name] = results.processes["decode_tok_s"]
    (pair,) = compare(results, "cap", "none", "32MiB").pairs
    change = pair.speeds["decode_tok_s"]
    assert (change.verdict, change.p) == (Verdict.NOT_TESTABLE, None)
    assert change.needs == 5  # 2 / C(10, 5) = 0.008 < 0.05 / 3


def test_far_off_runs_are_flagged(tmp_path):
    runs = (SMALL / "runs.csv").read_text().splitlines()
    cat = [line for line in runs if ",alice-512,cat,none,default," in line and ",1,False," in line]
    again = [line.replace(",1,False,", ",2,False,") for line in cat]
    again[2] = again[2].replace(",1.27,99,", ",1.27,40,")
    (tmp_path / "runs.csv").write_text("\n".join(runs + again) + "\n")
    results = read_results(SMALL / "plan.csv", SMALL / "summary.csv", tmp_path / "runs.csv")
    pair = compare(results, "cap", "none", "32MiB").pairs[0]
    assert pair.flags == ("none: run 2 of r3 is far off: decode_tok_s 40.0, median 100.0",)
    assert pair.speeds["decode_tok_s"].before == pytest.approx(np.mean([100, 101, 69.5, 100]))


@pytest.mark.parametrize(
    ("row", "peak"),
    [
        ({"method": "live", "accelerator": "cpu"}, 10),
        ({"method": "live", "accelerator": "cuda"}, 200),
        ({"method": "replayed: real", "accelerator": None}, 200),  # buffers on the device
        ({"method": "replayed: real", "accelerator": None, "peak_device_mib": None}, 10),
        ({"method": "replayed: counted", "accelerator": None}, 3000),
    ],
)
def test_the_headline_is_the_peak_of_where_the_buffers_are(row, peak):
    peaks = {
        "peak_footprint_mib": 10,
        "peak_footprint_min_mib": 10,
        "peak_device_mib": 200,
        "peak_device_min_mib": 200,
        "peak_pool_mib": 3000,
    }
    assert headline(peaks | row) == {"peak_mib": peak, "peak_min_mib": peak, "peak_max_mib": peak}


@pytest.mark.parametrize(
    ("before", "after", "rounds", "noise"),
    [
        ((100, 98, 104), (103, 99, 105), 2, True),  # 3 % apart, and the ranges meet
        ((100, 98, 102), (103, 103, 105), 2, False),  # they do not
        ((100, 90, 112), (110, 100, 120), 2, True),
        ((100, 90, 112), (110, 100, 120), 1, True),  # a range of samples that were missed
        ((100, 98, 104), (103, 99, 105), 1, False),  # one process has no noise below 5 %
        ((100, 98, 104), (97, 96, 105), 1, False),
        ((100, 90, 112), (90, 89, 112), 1, True),
        ((100, 99, 205), (200, 99, 201), 1, True),
    ],
)
def test_a_pair_is_within_the_noise_where_its_processes_are_known_to_differ_as_much(
    before, after, rounds, noise
):
    one, other = (
        {"outcome": "ok", "rounds": rounds}
        | dict(zip(("peak_mib", "peak_min_mib", "peak_max_mib"), peaks, strict=True))
        for peaks in (before, after)
    )
    assert Pair({}, one, other).within_noise is noise
    failed = other | {"outcome": "oom"}
    assert Pair({}, one, failed).within_noise is False
    assert Pair({}, None, other).within_noise is False
    # as many processes on one side alone are no noise of both
    single = Pair({}, one | {"rounds": 1}, other | {"rounds": 6})
    assert single.within_noise is (noise and abs(after[0] / before[0] - 1) > 0.05)
