"""The figures, drawn from the small result set (tests/data/small) and from a made-up timeline."""

import xml.etree.ElementTree as xml
from dataclasses import replace
from pathlib import Path

import matplotlib
import pytest

from kvpeak.analysis.comparisons import Comparison, compare
from kvpeak.analysis.lead import lead
from kvpeak.analysis.results import read_results
from kvpeak.report import figures, replay_figures, style, timelines

SMALL = Path(__file__).parent / "data/small"
TIMELINE = timelines.Timeline(
    label="cat, no cap",
    t_s=[0.0, 1.0, 2.0, 3.0],
    mib=[10.0, 250.5, 900.0, 880.0],
    phases=[
        {"phase": "start", "start_s": 0.0, "end_s": 0.4},
        {"phase": "load", "start_s": 0.4, "end_s": 0.9},
        {"phase": "prefill-0", "start_s": 1.0, "end_s": 1.1},
        {"phase": "decode-0", "start_s": 1.1, "end_s": 2.0},
        {"phase": "prefill-1", "start_s": 2.0, "end_s": 2.2},
        {"phase": "decode-1", "start_s": 2.2, "end_s": 3.0},
    ],
    warmup=1,
)


@pytest.fixture(scope="module")
def cap():
    results = read_results(*(SMALL / name for name in ("plan.csv", "summary.csv", "runs.csv")))
    return compare(results, "cap", "none", "32MiB")


def draw_all(cap):
    return [
        figures.peak_by_length(cap),
        timelines.memory_over_time([TIMELINE, replace(TIMELINE, label="cat, cap")]),
        figures.peak_by_counter(cap, lead(cap).pair),
        figures.speed_ratios(cap),
    ]


def texts(figure) -> list[str]:
    """Every text in the SVG; it fails on SVG that is not well formed."""
    root = xml.fromstring(figure.svg)
    return [
        "".join(node.itertext()).strip() for node in root.iter("{http://www.w3.org/2000/svg}text")
    ]


def test_figures_are_small_and_the_same_each_time(cap):
    first = draw_all(cap)
    matplotlib.rcParams["font.size"] = 20  # what else the process draws does not matter
    try:
        second = draw_all(cap)
    finally:
        matplotlib.rcdefaults()
    assert [figure.svg for figure in first] == [figure.svg for figure in second]
    assert all(len(figure.svg) < 60_000 for figure in first)
    assert "<dc:date>" not in first[0].svg


def test_nothing_is_drawn_without_data():
    empty = Comparison("cap", "none", "32MiB", [])
    assert figures.peak_by_length(empty) is None
    assert figures.speed_ratios(empty) is None
    assert timelines.memory_over_time([]) is None
    assert timelines.memory_over_time([replace(TIMELINE, t_s=[], mib=[])]) is None


def test_peak_by_length_shows_lengths_units_and_both_sides(cap):
    figure = figures.peak_by_length(cap)
    shown = texts(figure)
    for text in ("prompt tokens", "peak memory (MiB)", "513", "2,049", "tiny"):
        assert text in shown
    for label in ("cat, no cap", "cat, cap 32MiB", "prealloc, no cap", "prealloc, cap 32MiB"):
        assert label in shown
    assert "tiny alice-512 cat 1,000 → 440 MiB" in figure.alt
    assert "tiny alice-2048 cat oom → 660 MiB" in figure.alt


def test_a_caption_says_what_the_peak_of_a_replayed_cell_is(cap):
    assert "replayed" not in figures.peak_by_length(cap).caption
    pairs = [replace(pair, before=pair.before | {"method": "replayed: real"}) for pair in cap.pairs]
    replayed = replace(cap, pairs=pairs)
    for figure in (
        figures.peak_by_length(replayed),
        figures.peak_by_counter(replayed, pairs[0]),
    ):
        assert figure.caption.endswith("without the engine's runtime and the host's mask.")


def test_lines_differ_without_their_colour(cap):
    """Each cache has a marker of its own, each side a fill and a dash pattern of its own."""
    assert len(set(style.MARKERS)) == len(style.COLOURS)
    root = xml.fromstring(figures.peak_by_length(cap).svg)
    styles = [node.get("style", "") for node in root.iter("{http://www.w3.org/2000/svg}path")]
    assert any("stroke-dasharray" in style for style in styles)
    uses = {node.get("style") for node in root.iter("{http://www.w3.org/2000/svg}use")}
    assert any("fill: #ffffff" in style for style in uses)


def test_memory_over_time_marks_every_turn_and_numbers_those_with_room():
    starts = [0.5, 1.0, 1.05, 1.5]
    phases = [
        {"phase": f"{name}-0", "turn": turn, "start_s": start + later, "end_s": start + later}
        for turn, start in enumerate(starts, 17)
        for name, later in (("prefill", 0.0), ("decode", 0.01))
    ]
    shown = texts(timelines.memory_over_time([replace(TIMELINE, phases=phases, warmup=0)]))
    assert [number in shown for number in ("17", "18", "19", "20")] == [True, True, False, True]


def test_memory_over_time_marks_load_warm_up_and_runs():
    figure = timelines.memory_over_time([TIMELINE])
    shown = texts(figure)
    for text in ("load", "warm-up", "run 1", "memory (MiB)", "time since the process started (s)"):
        assert text in shown
    assert "start" not in shown
    assert figure.alt.endswith("cat, no cap: up to 900 MiB in 3.0 s.")


def test_peak_by_counter_shows_every_counter_that_was_read(cap):
    figure = figures.peak_by_counter(cap, lead(cap).pair)
    shown = texts(figure)
    assert "1,000" in shown and "900" in shown and "440" in shown
    assert "operating system 1,000 → 440" in figure.alt
    assert "device" not in figure.alt  # no device, no bar


def test_where_bytes_are_adds_up_to_the_peak(cap):
    figure = figures.where_bytes_are(cap, lead(cap).pair)
    shown = texts(figure)
    for text in ("weights", "free, kept in the pool", "cat, no cap", "1,000", "440"):
        assert text in shown
    # live + cached 900 of which live 300, the process 1,000
    assert cap.pairs[0].before["parts"] == [20, 280, 600, 100]
    assert "cat, no cap: 600 of 1,000 MiB" in figure.alt
    assert "loading" not in figure.caption


def test_a_bar_of_the_runs_says_what_loading_took(cap):
    loaded = {"sampled_load_mib": 1200.0, "sampled_run_mib": 1000.0, "peak_mib": 1200.0}
    pairs = [replace(pair, before=pair.before | loaded) for pair in cap.pairs[:1]]
    figure = figures.where_bytes_are(replace(cap, pairs=pairs), pairs[0])
    assert (
        "). Of a cell that takes more outside its runs (1,200 MiB while loading) it is that of the "
        "runs. Each" in figure.caption
    )


def test_the_replays_captures_are_stacked_by_tensor():
    holders = [
        {"kv_cache": "cat", "cap": "none", "role": "k_cache", "excess_mib": "10200"},
        {"kv_cache": "cat", "cap": "none", "role": "v_cache", "excess_mib": "138"},
        {"kv_cache": "cat", "cap": "4x", "role": "k_cache", "excess_mib": "144"},
    ]
    figure = replay_figures.captured_bytes(holders)
    assert {"cat, no cap", "cat, 4x", "k_cache", "10,338"} <= set(texts(figure))
    assert figure.alt.endswith("cat, no cap: 10,338 MiB; cat, 4x: 144 MiB.")
    assert replay_figures.captured_bytes([]) is None


def test_every_predicted_line_can_be_told_without_its_colour():
    predictions = [
        {"prompt_tokens": 1024 * k + 1, "kv_cache": cache, "cap": cap, "peak_mib": 1000.0 * k}
        for cache in ("cat", "prealloc")
        for cap in ("none", "4x")
        for k in range(1, 9)
    ]
    published = [{"prompt_tokens": 2049, "fornace_mib": 2010.0}]
    figure = replay_figures.predicted_by_length(predictions, published)
    legend = {
        f"{cache}, {cap}" for cache in ("cat", "prealloc") for cap in ("without a cap", "cap 4x")
    }
    assert legend | {"measured (the finding)"} <= set(texts(figure))
    root = xml.fromstring(figure.svg)
    lines = [node.get("style") for node in root.iter("{http://www.w3.org/2000/svg}path")]
    dashed = [style for style in lines if "stroke-dasharray" in (style or "")]
    assert len(dashed) == 4  # drawn, and in the legend: one a cache


def test_workloads_have_no_place_among_the_lengths(cap):
    batch = [
        replace(pair, before=pair.before | {"workload": "batch 4", "prompt_tokens": 77_777})
        for pair in cap.pairs
        if pair.before
    ]
    assert figures.peak_by_length(replace(cap, pairs=batch)) is None
    both = figures.peak_by_length(replace(cap, pairs=cap.pairs + batch))
    assert texts(both) == texts(figures.peak_by_length(cap))


def test_figures_of_thousands_of_cells_stay_small(cap):
    pair = cap.pairs[0]
    many = [
        replace(pair, names=pair.names | {"model": f"m{i}", "prompt": f"p{j}"})
        for i in range(50)
        for j in range(40)
    ]
    for figure, shown in (
        (figures.peak_by_length(replace(cap, pairs=many)), "6 of 50 panels"),
        (figures.speed_ratios(replace(cap, pairs=many)), "24 of 2,000 pairs of cells"),
    ):
        assert f"Shown are those {shown} that change most." in figure.caption
        assert len(figure.svg) < 200_000
        assert len(figure.alt) < 500
        assert " more." in figure.alt


def test_speed_ratios_show_every_pair_and_its_interval(cap):
    figure = figures.speed_ratios(cap)
    shown = texts(figure)
    assert "tiny, alice-512, cat" in shown
    assert "tok/s, cap 32MiB / no cap" in shown
    assert {"prefill", "decode"} <= set(shown)
    assert (
        "tiny, alice-512, cat: prefill 1.00 (1.00 to 1.00), n = 4 and 4, decode 1.00 (0.99"
        in figure.alt
    )
    assert "tiny, alice-512, prealloc: prefill 1.00, n = 1 and 1" in figure.alt


def test_ratios_that_are_far_apart_have_a_logarithmic_axis(cap):
    def with_ratio(pair, value):
        change = pair.speeds["prefill_tok_s"]
        far = replace(change, ratio=replace(change.ratio, value=value, low=value, high=value))
        return replace(pair, speeds=pair.speeds | {"prefill_tok_s": far})

    pairs = [pair for pair in cap.pairs if pair.speeds]
    near = texts(figures.speed_ratios(cap))
    pairs = [with_ratio(pairs[0], 60.0), *(with_ratio(pair, 0.5) for pair in pairs[1:])]
    assert not {"0.1", "10", "100"} & set(near)
    assert "10" in texts(figures.speed_ratios(replace(cap, pairs=pairs)))


def test_a_cell_that_did_not_finish_makes_no_peak_a_sampled_one(cap):
    pair = next(pair for pair in cap.pairs if pair.complete)
    source = {"peak_source": "VmHWM, last sample (a lower bound)"}
    ended = replace(pair, after=pair.after | source)
    assert figures.sampled([ended])
    assert not figures.sampled([replace(pair, after=ended.after | {"outcome": "unsupported"})])


def test_names_with_signs_of_xml_stay_names(cap):
    pairs = [replace(pair, names=pair.names | {"model": "a<b>&c"}) for pair in cap.pairs]
    assert "a<b>&c" in texts(figures.peak_by_length(replace(cap, pairs=pairs)))
