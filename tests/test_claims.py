"""The claims: what expected.yaml may say, which cells a claim is about, and its verdict.

tests/data/small is a hand-made result set: alice-512 with 4 processes of cat, alice-2048 where cat
without a cap ran out of memory, and a model that needs a GPU which is not there.
"""

import csv
import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml

from kvpeak.analysis import claims, growth, judging
from kvpeak.analysis.comparisons import compare
from kvpeak.analysis.results import Results, read_results
from kvpeak.analysis.verdicts import Verdict
from kvpeak.base.axes import AXES
from kvpeak.base.columns import SPEEDS
from kvpeak.experiment.config_file import ConfigError
from kvpeak.experiment.matrix import load_matrix

ROOT = Path(__file__).parents[1]
SMALL = ROOT / "tests/data/small"
SPREAD = {
    "claim": "the caches need the same",
    "kind": "spread",
    "source": "this test",
    "of": {"model": "tiny", "cap": "32MiB"},
    "across": "kv_cache",
    "column": "peak_footprint_mib",
    "tolerance_pct": 5,
}


@pytest.fixture(scope="module")
def small():
    return read_results(*(SMALL / name for name in ("plan.csv", "summary.csv", "runs.csv")))


@pytest.fixture
def load(tmp_path, small):
    def load(*entries, plan=small.plan):
        file = tmp_path / "expected.yaml"
        file.write_text(yaml.safe_dump({"claims": entries}), encoding="utf-8")
        return claims.load_claims(file, plan)

    return load


@pytest.fixture
def judge(load, small):
    """The verdicts of one claim on the small result set: cells → (verdict, detail)."""

    def judge(entry, results=small):
        (claim,) = load({"claim": "a claim", "source": "this test"} | entry)
        return {v.cells: (v.verdict, v.detail) for v in judging.evaluate(claim, results)}

    return judge


# What expected.yaml may say.


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (
            {"toleranze_pct": 5},
            "claims[0].toleranze_pct: unknown key (did you mean tolerance_pct?)",
        ),
        ({"kind": "spred"}, 'claims[0].kind: "spred": expected one of value, ratio,'),
        (
            {"column": "peak"},
            'claims[0].column: "peak": expected a memory column: one of peak_mib,',
        ),
        ({"column": "decode_tok_s"}, 'claims[0].column: "decode_tok_s": expected a memory column'),
        ({"tolerance_pct": "5 %"}, 'claims[0].tolerance_pct: "5 %": expected how far, in percent'),
        ({"across": "cache"}, 'claims[0].across: "cache": expected the axis, or list of axes,'),
        ({"of": {"modell": "tiny"}}, "claims[0].of.modell: unknown key (did you mean model?)"),
        ({"margin_pct": 5}, "claims[0].margin_pct: unknown key"),
        (
            {"requires": {"machin": "M*"}},
            "claims[0].requires.machin: unknown key (did you mean machine?)",
        ),
    ],
)
def test_a_mistake_is_one_line_that_says_where_and_what_was_expected(load, change, expected):
    with pytest.raises(ConfigError) as error:
        load(SPREAD | change)
    assert expected in str(error.value)
    assert "expected.yaml: claims[0]." in str(error.value)
    assert "\n" not in str(error.value)


def test_a_missing_key_is_named(load):
    entry = {key: value for key, value in SPREAD.items() if key != "across"}
    with pytest.raises(ConfigError, match=r"claims\[0\]: key across is missing"):
        load(entry)


@pytest.mark.parametrize(
    ("bounds", "expected"),
    [
        ({}, "give either expected with tolerance_pct, or at_least"),
        ({"expected": 1}, "give expected and tolerance_pct together"),
        ({"expected": 1, "tolerance_pct": 1, "at_most": 2}, "give either expected with"),
    ],
)
def test_a_ratio_needs_one_kind_of_bound(load, bounds, expected):
    ratio = {"claim": "a", "kind": "ratio", "source": "b", "of": {"cap": "32MiB"}}
    with pytest.raises(ConfigError, match=expected):
        load(ratio | {"to": {"cap": "none"}, "column": "peak_mib"} | bounds)


def test_a_key_given_twice_and_a_claim_made_twice_are_refused(load, tmp_path, small):
    file = tmp_path / "expected.yaml"
    file.write_text("claims: []\nclaims: []\n", encoding="utf-8")
    with pytest.raises(ConfigError, match="given twice"):
        claims.load_claims(file, small.plan)
    with pytest.raises(ConfigError, match="is claimed 2 times"):
        load(SPREAD, SPREAD)


def test_a_cell_that_cannot_apply_is_not_planned(tmp_path):
    plan = (SMALL / "plan.csv").read_text()
    absent = "mlx-0.32.4,tiny,alice-512,cat,4x,default,1,no,not applicable: no cap 4x,path\n"
    (tmp_path / "plan.csv").write_text(plan + absent)
    results = read_results(tmp_path / "plan.csv", SMALL / "summary.csv", SMALL / "runs.csv")
    assert "4x" not in {cell[4] for cell in results.plan}


# Verdicts.


def test_value(judge):
    cell = {"model": "tiny", "prompt": "alice-512", "kv_cache": "cat", "cap": "none"}
    entry = {"kind": "value", "of": cell, "column": "peak_footprint_mib", "expected": 980}
    found = judge(entry | {"tolerance_pct": 3})
    assert found == {
        "": ("holds", "1,000.0 (998.0 to 1,001.0 in 4 processes), expected 980.0 (+2.0 %); ± 3 %")
    }
    assert judge(entry | {"tolerance_pct": 1})[""][0] == "fails"
    speed = judge(entry | {"column": "decode_tok_s", "expected": 100, "tolerance_pct": 1})
    assert speed[""] == ("holds", "100.0 (n = 4), expected 100.0 (0.0 %); ± 1 %")


def test_a_claim_is_judged_once_for_each_combination_of_the_open_axes(judge):
    found = judge(SPREAD | {"of": {"cap": "32MiB"}})
    assert found["tiny, alice-512"] == (
        "holds",
        "428.0 (prealloc) to 440.0 (cat): 2.8 % apart; at most 5 %",
    )
    assert found["tiny, alice-2048"][0] == "holds"
    assert found["large, alice-512"] == (
        "not measured here",
        "needs a GPU (Metal or CUDA): this machine has none",
    )


def test_groups_that_were_not_measured_share_a_row_for_each_reason(load, small):
    (claim,) = load(SPREAD | {"of": {}, "across": "kv_cache"})
    rows = [v for v in judging.evaluate(claim, small) if v.verdict == Verdict.NOT_MEASURED]
    assert [(row.cells, row.detail, row.groups) for row in rows] == [
        ("tiny, alice-2048, none", "ended with oom (cat)", 1),
        (
            "large, alice-512, none; large, alice-512, 32MiB",
            "needs a GPU (Metal or CUDA): this machine has none",
            2,
        ),
    ]


def test_of_many_groups_the_first_are_named():
    names = [f"p{number}" for number in range(45)]
    assert judging._first(names)[-2:] == ["p19", "and 25 more"]


def test_a_name_that_is_not_in_the_matrix_is_not_measured_here(load, small):
    (claim,) = load(SPREAD | {"of": {"model": "tinny", "cap": "64MiB"}})
    (row,) = judging.evaluate(claim, small)
    assert (row.verdict, row.groups) == ("not measured here", 0)
    assert row.detail == "not in this matrix: cap 64MiB, model tinny"
    lines = claims.spell_absent("expected.yaml", [claim], claims.planned_names(small.plan))
    assert lines == [
        'expected.yaml: claims[0].of.cap: "64MiB" is not in this matrix (did you mean 32MiB?): '
        "not measured here (1 claim)",
        'expected.yaml: claims[0].of.model: "tinny" is not in this matrix (did you mean tiny?): '
        "not measured here (1 claim)",
    ]


def test_a_claim_is_judged_on_the_names_that_the_matrix_still_has(judge):
    found = judge(SPREAD | {"of": {"prompt": "alice-512", "kv_cache": ["cat", "prealloc", "cut"]}})
    assert found["tiny, 32MiB"][0] == "holds"
    assert found[""] == ("not measured here", "not in this matrix: kv_cache cut")


def test_a_selector_without_a_pair_to_compare_is_not_measured_here(judge):
    assert judge(SPREAD | {"of": {"kv_cache": "cat"}}) == {
        "": ("not measured here", "not in this matrix: none of its cells")
    }


def test_a_spread_may_allow_what_a_cap_keeps(judge):
    narrow = SPREAD | {"of": {"cap": "32MiB", "prompt": "alice-512"}, "tolerance_pct": 1}
    assert judge(narrow)["tiny"][0] == "fails"
    assert judge(narrow | {"allowance_mib": 7})["tiny"][0] == "fails"  # 440 > 1.01 × 428 + 7
    verdict, detail = judge(narrow | {"allowance_mib": 8})["tiny"]
    assert (verdict, detail) == (
        "holds",
        "428.0 (prealloc) to 440.0 (cat): 2.8 %, 12 MiB apart, "
        "at most 12.28 allowed (1 % and 8 MiB)",
    )


def test_a_spread_shows_every_cell_that_it_is_about(judge):
    """Not only the two that decide it: a claim may be about one between them."""
    of = {"prompt": "alice-512", "model": "tiny"}
    _, detail = judge(SPREAD | {"of": of, "across": ["kv_cache", "cap"]})[""]
    assert detail.startswith(
        "428.0 (prealloc 32MiB) to 430.0 (prealloc none) to 440.0 (cat 32MiB) to 1,000.0 (cat none)"
    )


def test_a_folded_claim_has_one_verdict_the_worst(judge):
    found = judge(SPREAD | {"of": {"model": "tiny"}, "across": ["kv_cache", "cap"], "fold": True})
    ((verdict, detail),) = found.values()
    assert verdict == "fails"
    assert detail.startswith("of 2: 1 fails, 1 holds; first: alice-512: 428.0")


def test_cells_that_ended_otherwise_are_named_and_the_rest_is_judged(judge):
    found = judge(SPREAD | {"of": {"prompt": "alice-2048"}, "across": ["kv_cache", "cap"]})
    verdict, detail = found["tiny"]
    assert verdict == "holds"
    assert detail.endswith("not counted: ended with oom (cat none)")


def test_a_pair_with_a_missing_side_is_not_measured_here(judge):
    entry = {"kind": "ratio", "of": {"prompt": "alice-2048", "cap": "32MiB"}, "to": {"cap": "none"}}
    found = judge(entry | {"column": "peak_mib", "at_most": 1})
    assert found["tiny, prealloc"] == ("holds", "640.0 / 640.0 = 1.000; at most 1")
    assert found["tiny, cat"] == ("not measured here", "ended with oom (none)")


def test_difference(judge):
    entry = {"kind": "difference", "of": {"model": "tiny", "kv_cache": "cat", "cap": "none"}}
    found = judge(entry | {"to": {"cap": "32MiB"}, "column": "peak_mib", "at_least": 600})
    assert found["alice-512"] == ("fails", "1,000.0 − 440.0 = 560.0; at least 600")


@pytest.mark.parametrize(
    ("bounds", "verdict", "said"),
    [  # 1,000 / 440 = 2.273, 1,000 − 440 = 560
        ({"at_most": 2.27}, "fails", "at most 2.27"),
        ({"at_most": 2.28}, "holds", "at most 2.28"),
        ({"at_least": 2.27}, "holds", "at least 2.27"),
        ({"at_least": 2.28}, "fails", "at least 2.28"),
        ({"at_least": 2, "at_most": 2.1}, "fails", "at least 2, at most 2.1"),
        ({"at_least": 2, "at_most": 3}, "holds", "at least 2, at most 3"),
        ({"expected": 2.3, "tolerance_pct": 1.5}, "holds", "expected 2.3 ± 1.5 %"),
        ({"expected": 2.3, "tolerance_pct": 1}, "fails", "expected 2.3 ± 1 %"),
        ({"expected": 2.2, "tolerance_pct": 3}, "fails", "expected 2.2 ± 3 %"),
    ],
)
def test_both_bounds_of_a_ratio(judge, bounds, verdict, said):
    entry = {"kind": "ratio", "of": {"model": "tiny", "kv_cache": "cat", "cap": "none"}}
    found = judge(entry | {"to": {"cap": "32MiB"}, "column": "peak_mib"} | bounds)
    assert found["alice-512"] == (verdict, f"1,000.0 / 440.0 = 2.273; {said}")


def test_a_difference_may_be_below_zero(judge):
    entry = {"kind": "difference", "of": {"model": "tiny", "kv_cache": "cat", "cap": "32MiB"}}
    entry |= {"to": {"cap": "none"}, "column": "peak_mib"}
    said = "440.0 − 1,000.0 = −560.0"
    assert judge(entry | {"at_most": -560})["alice-512"] == ("holds", f"{said}; at most -560")
    assert judge(entry | {"at_most": -561})["alice-512"][0] == "fails"


@pytest.mark.parametrize(
    ("bounds", "verdict", "said"),
    [
        ({"at_most": 560}, "holds", "at most 560"),
        ({"at_most": 559}, "fails", "at most 559"),
        ({"at_least": 560}, "holds", "at least 560"),
        ({"expected": 550, "tolerance_pct": 2}, "holds", "expected 550.0 ± 2 %"),
        ({"expected": 570, "tolerance_pct": 1}, "fails", "expected 570.0 ± 1 %"),
    ],
)
def test_both_bounds_of_a_difference(judge, bounds, verdict, said):
    entry = {"kind": "difference", "of": {"model": "tiny", "kv_cache": "cat", "cap": "none"}}
    found = judge(entry | {"to": {"cap": "32MiB"}, "column": "peak_mib"} | bounds)
    assert found["alice-512"] == (verdict, f"1,000.0 − 440.0 = 560.0; {said}")


def test_same_tokens(judge, small):
    entry = {"kind": "same-tokens", "of": {"prompt": "alice-512", "model": "tiny"}}
    entry |= {"across": ["kv_cache", "cap"]}
    assert judge(entry)[""] == ("holds", "4 cells, one hash of 128 tokens: abababababab")
    cell = ("mlx-0.32.4", "tiny", "alice-512", "prealloc", "none", "default")

    def judged(entry, **changes):
        changed = small.summary | {cell: small.summary[cell] | changes}
        return judge(entry, Results(small.plan, changed, small.processes))

    verdict, detail = judged(entry, tokens_sha256="cd" * 32)[""]
    assert verdict == "fails"
    assert "cdcdcdcdcdcd: prealloc none" in detail

    unstable = {"tokens_sha256": "differs", "outputs": 8, "runs": 18}
    said = "prealloc none does not repeat: 8 different answers in 18 runs"
    assert judged(entry, **unstable)[""] == ("does not repeat", said)
    peak = {"kind": "spread", "of": entry["of"], "across": ["kv_cache", "cap"]}
    peak |= {"column": "peak_mib", "tolerance_pct": 200}
    verdict, detail = judged(peak, **unstable)[""]
    assert verdict == "holds"
    assert detail.endswith(f"; {said}")


def test_equivalence_needs_processes_enough(judge):
    entry = {"kind": "equivalence", "of": {"model": "tiny", "prompt": "alice-512", "cap": "32MiB"}}
    entry |= {"to": {"cap": "none"}, "column": "decode_tok_s"}
    found = judge(entry | {"margin_pct": 5})
    verdict, detail = found["cat"]
    assert verdict == "holds"
    assert detail.startswith("ratio 1.002 (0.9")
    assert detail.endswith("n = 4 and 4; margin 0.950 to 1.050")
    assert found["prealloc"] == (
        "not testable",
        "ratio 1.000, n = 1 and 1; margin 0.950 to 1.050; needs at least 4 processes a side",
    )


def test_a_speed_beyond_the_margin_fails_and_one_across_it_is_not_testable(judge, small):
    cell = ("mlx-0.32.4", "tiny", "alice-512", "cat", "32MiB", "default")
    entry = {
        "kind": "equivalence",
        "of": {"prompt": "alice-512", "kv_cache": "cat", "model": "tiny"},
    }
    entry |= {"to": {"cap": "none"}, "column": "decode_tok_s", "margin_pct": 5}

    def verdict_with(speeds):
        decode = small.processes["decode_tok_s"] | {cell: np.array(speeds)}
        processes = small.processes | {"decode_tok_s": decode}
        (found,) = judge(entry, Results(small.plan, small.summary, processes)).values()
        return found

    verdict, detail = verdict_with([80.0, 81, 79, 80])
    assert verdict == "fails"
    assert re.search(r"; p = 0\.02\d+$", detail)
    for speeds in ([100.0, 108, 92, 101], [94.0, 98, 90, 95]):
        verdict, detail = verdict_with(speeds)
        assert verdict == "not testable"
        assert re.search(r"; needs at least \d+ processes a side$", detail)


def test_the_groups_of_a_claim_are_corrected_together_as_a_comparison_is(load, small):
    """Two pairs that are 20 % slower, 4 processes a side: with two at once a rank test of 4
    against 4 says nothing.
    """
    cells = [cell for cell in small.plan if cell[1] == "tiny" and cell[4] == "32MiB"][:2]
    quiet = np.array([100.0, 101, 99, 100])
    speeds = {cell: quiet * 0.8 for cell in cells}
    speeds |= {(*cell[:4], "none", *cell[5:]): quiet for cell in cells}
    processes = {name: {} for name in SPEEDS} | {"decode_tok_s": speeds}
    entry = {"claim": "a", "source": "b", "kind": "equivalence", "of": {"cap": "32MiB"}}
    entry |= {"to": {"cap": "none"}, "column": "decode_tok_s", "margin_pct": 5}
    plan = dict.fromkeys(speeds, "")
    results = Results(plan, {cell: small.summary[cell] for cell in speeds}, processes)

    (claim,) = load(entry, plan=plan)
    verdicts = judging.evaluate(claim, results)
    assert [found.verdict for found in verdicts] == ["not testable"] * 2
    assert all(found.detail.endswith("needs at least 5 processes a side") for found in verdicts)
    pairs = compare(results, "cap", "none", "32MiB").pairs
    assert [pair.speeds["decode_tok_s"].verdict for pair in pairs] == ["not testable"] * 2


def test_pool_growth_is_predicted_from_the_shapes(judge):
    entry = {"kind": "pool-growth", "of": {"model": "tiny", "kv_cache": "cat", "cap": "none"}}
    entry |= {"to": {"kv_cache": "prealloc"}, "column": "peak_mib", "tolerance_pct": 10}
    # 8,192 bytes a token, 127 decode steps from 513 tokens: 571.5 MiB
    assert judge(entry)["alice-512"] == (
        "holds",
        "1,000.0 − 430.0 = 570.0, predicted 571.5 (−0.3 %); ± 10 %",
    )


def as_batches(results):
    summary = {cell: row | {"workload": "batch 4"} for cell, row in results.summary.items()}
    return replace(results, summary=summary)


def test_what_is_predicted_of_one_prompt_is_not_held_against_a_workload(judge, small):
    entry = {"kind": "pool-growth", "of": {"model": "tiny", "kv_cache": "cat", "cap": "none"}}
    entry |= {"to": {"kv_cache": "prealloc"}, "column": "peak_mib", "tolerance_pct": 10}
    assert judge(entry, as_batches(small))["alice-512"] == (
        "not testable",
        "the prediction is of one prompt, and this is a batch of 4 sequences",
    )
    law = {"kind": "growth-law", "of": {"model": "tiny", "kv_cache": "prealloc", "cap": "none"}}
    law |= {"column": "peak_mib", "leading": "T2"}
    verdict, detail = judge(law, as_batches(small))[""]
    assert (verdict, detail[:27]) == ("not testable", "not testable with 0 lengths")


def test_pool_growth_of_the_published_prototype():
    # 4 layers, 14 KV heads of 64, float32, 1,024 tokens and 128 generated: 3,775 MiB were measured
    assert growth.pool_growth_mib(2 * 4 * 14 * 64 * 4, 1024, 128) == pytest.approx(3775, abs=0.5)


def test_a_claim_of_another_setting_is_not_measured_here(judge, load, small):
    required = {"requires": {"machine": "Apple M*"}}
    assert judge(SPREAD | required)["alice-512; alice-2048"] == (
        "not measured here",
        "belongs to machine Apple M*; this is Test CPU",
    )
    assert (
        judge(SPREAD | {"requires": {"machine": ["Apple M*", "Test *"]}})["alice-512"][0] == "holds"
    )
    unplanned = SPREAD | {"of": {"commit": "fornace-bd42949"}} | required
    assert judge(unplanned) == {
        "": ("not measured here", "not in this matrix: commit fornace-bd42949")
    }


def test_growth_law(judge, small):
    entry = {"kind": "growth-law", "of": {"model": "tiny", "kv_cache": "prealloc", "cap": "none"}}
    entry |= {"column": "peak_mib", "leading": "T2"}
    assert judge(entry)[""] == (
        "not testable",
        "not testable with 2 lengths for 3 terms; needs at least 4 lengths",
    )


def test_growth_law_of_five_lengths(load):
    plan, summary = {}, {}
    for tokens in (500, 1000, 2000, 4000, 8000):
        for cap, mib in (("none", 100 + 1e-3 * tokens**2), ("32MiB", 100 + 0.1 * tokens)):
            cell = ("mlx-0.32.4", "tiny", f"p{tokens}", "prealloc", cap, "default")
            plan[cell] = ""
            summary[cell] = {"outcome": "ok", "prompt_tokens": tokens, "peak_mib": mib}
    entry = {"claim": "a", "source": "b", "kind": "growth-law", "column": "peak_mib"}

    def judge(**more):
        (claim,) = load(entry | {"leading": "T2"} | more, plan=plan)
        (verdict,) = judging.evaluate(claim, Results(plan, summary, {}))
        return verdict.verdict, verdict.detail

    verdict, detail = judge(of={"cap": "none"})
    assert verdict == "holds"
    assert "T2: 0.001 (0.001 to 0.001); T2 makes up 100 % of what grows at 8,000 tokens" in detail
    assert judge(of={"cap": "32MiB"})[0] == "fails"
    verdict, detail = judge(of={"cap": "none"}, to={"cap": "32MiB"}, terms=["T", "T2"])
    assert verdict == "holds"
    assert detail.startswith("T: -0.1 (-0.1 to -0.1); T2: 0.001")


def test_an_allowance_that_nearly_every_spread_meets_tells_nothing(judge):
    narrow = SPREAD | {"of": {"cap": "32MiB", "prompt": "alice-512"}, "allowance_mib": 200}
    verdict, detail = judge(narrow)["tiny"]
    assert verdict == "not testable"
    assert detail.endswith(
        "the allowance alone is 47 % of the smallest, so that it can hardly fail"
    )


def test_growth_law_beside_large_constants(load):
    """Weights of 18,000 MiB and 1,335 MiB for each 16k tokens: the constant is not in the law."""
    plan, summary = {}, {}
    for number, tokens in enumerate((2048, 4096, 8192, 12288, 16384)):
        cell = ("mlx-0.32.4", "large", f"p{tokens}", "mlx-lm", "default", "stock")
        noise = (3, -4, 2, -2, 1)[number]
        plan[cell] = ""
        mib = 18_000 + 1335 * tokens / 16384 + noise
        summary[cell] = {"outcome": "ok", "prompt_tokens": tokens, "peak_mib": mib}
    entry = {"claim": "a", "source": "b", "kind": "growth-law", "column": "peak_mib"}
    entry |= {"of": {"model": "large"}, "terms": ["1", "T"]}
    for leading, verdict in (("T", "holds"), ("1", "holds")):
        (claim,) = load(entry | {"leading": leading}, plan=plan)
        (found,) = judging.evaluate(claim, Results(plan, summary, {}))
        assert found.verdict == verdict, found.detail
    (claim,) = load(entry | {"leading": "T2", "terms": ["1", "T", "T2"]}, plan=plan)
    assert judging.evaluate(claim, Results(plan, summary, {}))[0].verdict == "fails"


def law_results(cells: dict[int, float], other: dict[int, float] | None = None) -> Results:
    """Peaks by prompt tokens of one kind of cell, without a cap; with `other` those at 32MiB."""
    summary = {}
    for cap, peaks in (("none", cells), ("32MiB", other or {})):
        for tokens, mib in peaks.items():
            cell = ("mlx-0.32.4", "tiny", f"p{tokens}", "cat", cap, "default")
            ended = {"outcome": "oom"} if mib is None else {"outcome": "ok", "peak_mib": mib}
            summary[cell] = ended | {"prompt_tokens": tokens}
    return Results(dict.fromkeys(summary, ""), summary, {})


@pytest.fixture
def judge_law(load):
    """The verdict of a law on such results."""

    def judge(results: Results, **entry):
        entry = {"claim": "a", "source": "b", "kind": "growth-law", "column": "peak_mib"} | entry
        (claim,) = load({"of": {"cap": "none"}} | entry, plan=results.plan)
        (found,) = judging.evaluate(claim, results)
        return found.verdict, found.detail

    return judge


LENGTHS = (1000, 2000, 3000, 4000, 5000)


@pytest.mark.parametrize(
    ("peaks", "leading", "verdict", "part"),
    [
        # 0.1 T and 1e-5 T²: at 5,000 tokens 500 and 250 MiB
        ([0.1 * t + 1e-5 * t * t for t in LENGTHS], "T2", "fails", "33 %"),
        ([0.1 * t + 1e-5 * t * t for t in LENGTHS], "T", "holds", "67 %"),
        # a noise of 100 MiB: what grows is all T2, and its interval has zero in it
        ([400, 180, 410, 200, 430], "T2", "not testable", None),
        # falls: the interval lies below zero
        ([900 - 1e-5 * t * t for t in LENGTHS], "T2", "fails", None),
    ],
)
def test_a_law_holds_where_its_leading_term_is_sure_and_makes_up_most(
    judge_law, peaks, leading, verdict, part
):
    terms = ["1", "T2"] if part is None else ["T", "T2"]
    results = law_results(dict(zip(LENGTHS, map(float, peaks), strict=True)))
    found, detail = judge_law(results, leading=leading, terms=terms)
    assert found == verdict, detail
    if part:
        assert f"; {leading} makes up {part} of what grows at 5,000 tokens" in detail
    assert detail.endswith("; needs at least 6 lengths") == (verdict == "not testable")


@pytest.mark.parametrize(("of", "to", "sign"), [("none", "32MiB", 1), ("32MiB", "none", -1)])
def test_a_law_of_a_difference_is_of_the_cell_less_the_one_it_is_compared_to(
    judge_law, of, to, sign
):
    results = law_results(
        {tokens: 100 + 0.3 * tokens for tokens in LENGTHS},
        {tokens: 60 + 0.1 * tokens for tokens in LENGTHS},
    )
    entry = {"of": {"cap": of}, "to": {"cap": to}, "leading": "T", "terms": ["1", "T"]}
    verdict, detail = judge_law(results, **entry)
    assert verdict == ("holds" if sign > 0 else "fails")
    number = "0.2" if sign > 0 else "-0.2"
    assert f"T: {number} ({number} to {number})" in detail


def test_a_law_of_one_measured_length_is_not_measured(judge_law):
    peaks = {1000: 5.0, 2000: None, 3000: None}
    assert judge_law(law_results(peaks), leading="T2")[0] == "not measured here"
    peaks[2000] = 6.0
    assert judge_law(law_results(peaks), leading="T2") == (
        "not testable",
        "not testable with 2 lengths for 3 terms; needs at least 4 lengths; "
        "not counted: ended with oom (p3000)",
    )


def test_cells_that_are_missing_for_two_reasons_name_both(judge, small):
    cell = ("mlx-0.32.4", "tiny", "alice-2048", "cat", "32MiB", "default")
    fewer = {name: row for name, row in small.summary.items() if name != cell}
    entry = {"kind": "ratio", "of": {"prompt": "alice-2048", "kv_cache": "cat", "cap": "32MiB"}}
    entry |= {"to": {"cap": "none"}, "column": "peak_mib", "at_most": 1}
    found = judge(entry, Results(small.plan, fewer, small.processes))
    assert found["tiny"] == ("not measured here", "not run yet (32MiB); ended with oom (none)")


def test_a_folded_claim_of_nothing_measured_has_no_fold(judge):
    found = judge(SPREAD | {"of": {"model": "large"}, "fold": True})
    assert found == {
        "alice-512, none; alice-512, 32MiB": (
            "not measured here",
            "needs a GPU (Metal or CUDA): this machine has none",
        )
    }


@pytest.mark.parametrize(
    ("peak", "tolerance", "verdict"),
    [
        (428.0, 0, "holds"),  # no spread at all
        (428.5, 0.1, "fails"),  # 0.428 are allowed
        (428.5, 0.2, "holds"),
        (440.5, 2.95, "holds"),  # 12.5 of 12.626
        (440.5, 2.9, "fails"),
    ],
)
def test_a_spread_is_held_against_the_smallest(judge, small, peak, tolerance, verdict):
    cell = ("mlx-0.32.4", "tiny", "alice-512", "cat", "32MiB", "default")
    summary = small.summary | {cell: small.summary[cell] | {"peak_footprint_mib": peak}}
    entry = SPREAD | {"of": {"prompt": "alice-512", "cap": "32MiB"}, "tolerance_pct": tolerance}
    found = judge(entry, Results(small.plan, summary, small.processes))
    assert found["tiny"][0] == verdict


@pytest.mark.parametrize("count", [2, 5, 6, 9])
def test_a_spread_of_up_to_five_cells_shows_each_and_of_more_the_ends(load, count):
    summary = {}
    for number in range(count):
        cell = ("mlx-0.32.4", "tiny", "p", f"c{number}", "none", "default")
        summary[cell] = {"outcome": "ok", "peak_footprint_mib": 110.0 - number}
    plan = dict.fromkeys(summary, "")
    (claim,) = load(SPREAD | {"of": {}, "tolerance_pct": 10}, plan=plan)
    (found,) = judging.evaluate(claim, Results(plan, summary, {}))
    shown = range(count - 1, -1, -1) if count <= 5 else (count - 1, 0)
    figures = " to ".join(f"{110 - number}.0 (c{number})" for number in shown)
    assert found.verdict == "holds"
    assert found.detail.startswith(f"{figures}: ")


def test_two_cells_are_enough_to_compare_tokens(judge):
    entry = {"kind": "same-tokens", "of": {"prompt": "alice-512", "model": "tiny"}}
    found = judge(entry | {"across": "kv_cache"})
    assert (
        found["none"]
        == found["32MiB"]
        == ("holds", "2 cells, one hash of 128 tokens: abababababab")
    )


@pytest.mark.parametrize(
    ("grown_kib", "margin", "verdict"),
    [(64, None, "fails"), (0, None, "holds"), (64, 100, "holds"), (3, None, "holds")],
)
@pytest.mark.parametrize("held", ["rss", "pool"])
def test_memory_that_grows_with_every_request_fails(judge, small, grown_kib, margin, verdict, held):
    cell = ("mlx-0.32.4", "tiny", "alice-512", "cat", "none", "default")
    other = "pool" if held == "rss" else "rss"
    turns = [
        {
            "turn": turn,
            "warmup": False,
            f"held_{held}_mib": 100 + turn * grown_kib / 1024,
            f"held_{other}_mib": 5.0 * turn,
        }
        for turn in range(64)
    ]
    entry = {"kind": "no-growth", "of": {"model": "tiny", "prompt": "alice-512", "cap": "none"}}
    entry |= {"held": held} | ({"margin_kib": margin} if margin else {})
    entry["of"] |= {"kv_cache": "cat"}
    results = Results(small.plan, small.summary, small.processes, turns={cell: turns})
    ((found, detail),) = judge(entry, results).values()
    assert found == verdict
    slope = f"{grown_kib:.2f}"
    assert detail == (
        f"slope {slope} KiB a request (95 % {slope} to {slope}), over the later half of 64; "
        f"margin {margin or 4} KiB"
    )


def test_a_few_requests_do_not_tell_whether_memory_grows(judge):
    entry = {"kind": "no-growth", "of": {"prompt": "alice-512", "kv_cache": "cat", "cap": "none"}}
    assert judge(entry)["tiny"] == ("not testable", "0 requests in a run; needs at least 32")


@pytest.mark.parametrize(
    ("expected", "tolerance", "verdict", "off"),
    [
        (1000, 0, "holds", "0.0 %"),
        (990, 1, "fails", "+1.0 %"),
        (990, 1.02, "holds", "+1.0 %"),
        (1010, 1, "holds", "−1.0 %"),
        (1011, 1, "fails", "−1.1 %"),
    ],
)
def test_a_value_may_lie_on_either_side(judge, expected, tolerance, verdict, off):
    cell = {"model": "tiny", "prompt": "alice-512", "kv_cache": "cat", "cap": "none"}
    entry = {"kind": "value", "of": cell, "column": "peak_mib", "expected": expected}
    found, detail = judge(entry | {"tolerance_pct": tolerance})[""]
    assert found == verdict
    assert detail == (
        f"1,000.0 (998.0 to 1,001.0 in 4 processes), expected {expected:,}.0 ({off}); "
        f"± {tolerance} %"
    )


# The project's own claims.


def fornace_results() -> Results:
    """The finding's 18 cells as if they had been measured here, one process each."""
    axes = {"model": "qwen2.5-0.5b-instruct", "cap": "none", "variant": "default"}
    with (ROOT / "config/fornace/fornace-2026-11-04.csv").open(newline="") as file:
        table = [axes | row for row in csv.DictReader(file)]
    summary, processes = {}, {column: {} for column in SPEEDS}
    for row in table:
        cell = tuple(row[axis] for axis in AXES)
        numbers = {name: float(row[name]) for name in ("peak_footprint_mib", *SPEEDS)}
        tokens = int(row["prompt"].removeprefix("alice-")) + 1
        here = {"outcome": "ok", "machine": "Apple M9", "prompt_tokens": tokens}
        summary[cell] = row | numbers | here
        for column in SPEEDS:
            processes[column][cell] = np.array([numbers[column]])
    return Results(dict.fromkeys(summary, ""), summary, processes)


def test_the_findings_own_data_bear_out_its_claims_about_memory(load, tmp_path):
    shutil.copy(ROOT / "config/fornace/fornace-2026-11-04.csv", tmp_path)
    entries = yaml.safe_load((ROOT / "config/fornace/expected.yaml").read_text())["claims"]
    findings = [entry for entry in entries if "machine" in entry.get("requires", {})]
    results = fornace_results()
    verdicts = {}
    for claim in load(*findings, plan=results.plan):
        for verdict in judging.evaluate(claim, results):
            verdicts.setdefault(verdict.kind, set()).add(verdict.verdict)
    assert verdicts == {
        "value": {"holds", "not measured here"},  # the speeds belong to one chip
        "spread": {"holds"},
        "growth-law": {"holds"},
        "equivalence": {"not testable"},  # one process each
        "ratio": {"not testable"},
    }


@pytest.mark.parametrize("folder", ["config", "config/fornace"])
def test_the_projects_claims_fit_the_projects_matrix(folder):
    plan = {cell.axes: "" for cell in load_matrix(ROOT / folder / "matrix.yaml").combinations}
    found = claims.load_claims(ROOT / folder / "expected.yaml", plan)
    assert [claim.absent for claim in found] == [{}] * len(found)
