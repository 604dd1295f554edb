"""Which cells a claim is about: the groups that its selectors, or the rows of its table, leave."""

from pathlib import Path

import pytest
import yaml

from kvpeak.analysis.claims import load_claims, planned_names, spell_absent
from kvpeak.base.axes import AXES
from kvpeak.experiment.config_file import ConfigError

CELLS = [
    ("mlx", model, prompt, cache, cap, "default")
    for model in ("tiny", "large")
    for prompt in ("p9", "p17", "p33")
    for cache in ("cat", "prealloc")
    for cap in ("none", "1MiB")
]
PLAN = dict.fromkeys(CELLS, "")
BASE = {"claim": "a claim", "source": "this test", "column": "peak_mib"}
KINDS = {
    "value": {"expected": 1, "tolerance_pct": 5},
    "ratio": {"at_most": 1},
    "difference": {"at_least": 1},
    "equivalence": {"column": "decode_tok_s", "margin_pct": 5},
    "pool-growth": {"tolerance_pct": 5},
    "spread": {"tolerance_pct": 5},
    "growth-law": {"leading": "T2"},
}


@pytest.fixture
def groups(tmp_path):
    """The groups of one claim of a kind: the cells of each, by its names on the open axes."""

    def groups(kind: str, plan=PLAN, **entry) -> dict[tuple[str, ...], list[tuple[str, ...]]]:
        (claim,) = load(tmp_path, BASE | {"kind": kind} | KINDS.get(kind, {}) | entry, plan=plan)
        assert (claim.kind, claim.text, claim.source) == (kind, "a claim", "this test")
        return {tuple(group.open_axes.values()): list(group.cells) for group in claim.groups}

    return groups


def load(folder: Path, *entries: dict, plan=PLAN):
    file = folder / "expected.yaml"
    file.write_text(yaml.safe_dump({"claims": entries}), encoding="utf-8")
    return load_claims(file, plan)


def cell(**names: str) -> tuple[str, ...]:
    default = ("mlx", "tiny", "p9", "cat", "none", "default")
    return tuple((dict(zip(AXES, default, strict=True)) | names).values())


def test_a_value_is_of_one_cell_each(groups):
    found = groups("value", of={"model": "tiny", "kv_cache": "cat", "cap": "none"})
    assert found == {
        ("mlx", prompt, "default"): [cell(prompt=prompt)] for prompt in ("p9", "p17", "p33")
    }


def test_several_names_of_an_axis_leave_it_open(groups):
    of = {"model": "tiny", "kv_cache": "cat", "cap": "none", "prompt": ["p17", "p9"]}
    assert list(groups("value", of=of)) == [("mlx", "p9", "default"), ("mlx", "p17", "default")]


@pytest.mark.parametrize("kind", ["ratio", "difference", "equivalence", "pool-growth"])
@pytest.mark.parametrize(("of", "to"), [("none", "1MiB"), ("1MiB", "none")])
def test_a_pair_is_the_cell_and_the_one_with_the_other_names(groups, kind, of, to):
    found = groups(kind, of={"model": "tiny", "prompt": "p9", "cap": of}, to={"cap": to})
    assert found == {
        ("mlx", cache, "default"): [cell(kv_cache=cache, cap=of), cell(kv_cache=cache, cap=to)]
        for cache in ("cat", "prealloc")
    }


@pytest.mark.parametrize("kind", ["ratio", "difference", "equivalence", "pool-growth"])
def test_pairs_of_each_length_are_told_apart(groups, kind):
    found = groups(kind, of={"model": "tiny", "kv_cache": "cat", "cap": "none"}, to={"cap": "1MiB"})
    assert list(found) == [("mlx", prompt, "default") for prompt in ("p9", "p17", "p33")]


def test_no_cell_is_paired_with_itself_or_with_one_that_is_not_planned(groups):
    both = {"model": "tiny", "prompt": "p9", "kv_cache": "cat"}
    assert groups("ratio", of=both, to={"cap": "none"}) == {
        ("mlx", "1MiB", "default"): [cell(cap="1MiB"), cell()]
    }
    plan = {name: "" for name in CELLS if name != cell(cap="1MiB")}
    assert groups("ratio", of=both, to={"cap": "1MiB"}, plan=plan) == {}


def test_two_axes_may_change_at_once(groups):
    found = groups(
        "ratio", of=dict(zip(AXES, cell(), strict=True)), to={"cap": "1MiB", "prompt": "p33"}
    )
    assert list(found.values()) == [[cell(), cell(cap="1MiB", prompt="p33")]]


def test_a_set_is_what_differs_on_the_axes_across(groups):
    of = {"model": "tiny", "prompt": ["p9", "p17"]}
    assert groups("spread", of=of, across="kv_cache") == {
        ("mlx", prompt, cap, "default"): [
            cell(prompt=prompt, cap=cap, kv_cache=cache) for cache in ("cat", "prealloc")
        ]
        for prompt in ("p9", "p17")
        for cap in ("none", "1MiB")
    }
    two = groups("spread", of=of, across=["kv_cache", "cap"])
    assert {names: len(cells) for names, cells in two.items()} == {
        ("mlx", "p9", "default"): 4,
        ("mlx", "p17", "default"): 4,
    }


def test_a_set_of_one_cell_is_none(groups):
    assert groups("spread", of={"kv_cache": "cat"}, across="kv_cache") == {}


def test_a_law_is_of_all_lengths(groups):
    of = {"model": "tiny", "kv_cache": "cat", "cap": "none"}
    lengths = [cell(prompt=prompt) for prompt in ("p9", "p17", "p33")]
    assert groups("growth-law", of=of) == {("mlx", "default"): lengths}
    pairs = groups("growth-law", of=of, to={"cap": "1MiB"})
    assert pairs == {
        ("mlx", "default"): [
            each for name in lengths for each in (name, (*name[:4], "1MiB", name[5]))
        ]
    }


def test_names_of_an_empty_plan_are_none():
    assert planned_names({}) == {axis: [] for axis in AXES}
    found = planned_names(PLAN)
    assert found["prompt"] == ["p9", "p17", "p33"]
    assert found["commit"] == ["mlx"]


def test_a_name_that_two_claims_select_is_named_once_with_the_first_place(tmp_path):
    entry = BASE | {"kind": "value"} | KINDS["value"]
    first = entry | {"of": {"model": "tiny"}}
    second = entry | {"claim": "b", "of": {"model": "tiney"}}
    third = entry | {"claim": "c", "of": {"model": ["tiney", "tiny"], "cap": "9GiB"}}
    found = load(tmp_path, first, second, third)
    assert [claim.absent for claim in found] == [
        {},
        {("model", "tiney"): "claims[1].of.model"},
        {("model", "tiney"): "claims[2].of.model", ("cap", "9GiB"): "claims[2].of.cap"},
    ]
    assert spell_absent("e.yaml", found, planned_names(PLAN)) == [
        'e.yaml: claims[1].of.model: "tiney" is not in this matrix (did you mean tiny?): '
        "not measured here (2 claims)",
        'e.yaml: claims[2].of.cap: "9GiB" is not in this matrix: not measured here (1 claim)',
    ]


def test_each_claim_is_made_once(tmp_path):
    entry = BASE | {"kind": "value", "of": {}} | KINDS["value"]
    assert len(load(tmp_path, entry, entry | {"claim": "another"})) == 2
    with pytest.raises(ConfigError, match='"a claim" is claimed 3 times; keep one'):
        load(tmp_path, entry, entry, entry | {"claim": "another"}, entry)


def test_a_name_to_compare_with_may_be_absent_too(tmp_path):
    entry = BASE | {"kind": "ratio", "at_most": 1, "of": {"cap": "none"}, "to": {"cap": "2MiB"}}
    (claim,) = load(tmp_path, entry)
    assert claim.absent == {("cap", "2MiB"): "claims[0].to.cap"}
    assert claim.groups == []


TABLE = "model,prompt,peak_mib\ntiny,p9,100\nlarge,p17,250.5\nhuge,p9,7\n"


def test_each_row_of_a_table_is_a_value_to_expect(tmp_path):
    (tmp_path / "published.csv").write_text(TABLE)
    entry = BASE | {"kind": "value", "table": "published.csv", "tolerance_pct": 5}
    (claim,) = load(tmp_path, entry | {"of": {"kv_cache": "cat", "cap": "none"}})
    assert [(group.cells, group.expected) for group in claim.groups] == [
        ((cell(),), 100),
        ((cell(model="large", prompt="p17"),), 250.5),
    ]
    assert [list(group.open_axes.items()) for group in claim.groups] == [
        [("model", "tiny"), ("prompt", "p9"), ("commit", "mlx"), ("variant", "default")],
        [("model", "large"), ("prompt", "p17"), ("commit", "mlx"), ("variant", "default")],
    ]
    assert claim.absent == {("model", "huge"): "claims[0].table.of.model"}


@pytest.mark.parametrize(
    ("table", "column", "said"),
    [
        (None, "peak_mib", '.table: "t.csv" cannot be read: '),
        (TABLE, "peak_footprint_mib", '.column: "peak_footprint_mib" is no column of '),
    ],
)
def test_a_table_that_does_not_fit_is_one_line(tmp_path, table, column, said):
    if table:
        (tmp_path / "t.csv").write_text(table)
    entry = {"kind": "value", "of": {}, "table": "t.csv", "column": column, "tolerance_pct": 5}
    with pytest.raises(ConfigError) as error:
        load(tmp_path, BASE | entry)
    assert f"claims[0]{said}" in str(error.value)
    assert "\n" not in str(error.value)
    if table:
        assert str(error.value).endswith("expected one of model, prompt, peak_mib")


@pytest.mark.parametrize(
    ("kind", "given", "said"),
    [
        ("value", {}, "give either expected or table"),
        ("value", {"expected": 1, "table": "t.csv"}, "give either expected or table"),
        ("ratio", {"tolerance_pct": 1}, "give expected and tolerance_pct together"),
        ("ratio", {"expected": 1, "at_least": 1}, "give expected and tolerance_pct together"),
        ("difference", {"expected": 1}, "give expected and tolerance_pct together"),
        ("difference", {}, "give either expected with tolerance_pct, or at_least, at_most or both"),
        (
            "difference",
            {"expected": 1, "tolerance_pct": 1, "at_least": 1},
            "give either expected with tolerance_pct, or at_least, at_most or both",
        ),
    ],
)
def test_what_is_expected_is_said_in_one_way(tmp_path, kind, given, said):
    entry = BASE | {"kind": kind, "of": {"cap": "none"}} | given
    entry |= {"tolerance_pct": 1} if kind == "value" else {"to": {"cap": "1MiB"}}
    with pytest.raises(ConfigError, match=f"claims.0.: {said}"):
        load(tmp_path, entry)


@pytest.mark.parametrize(
    ("kind", "given"),
    [
        ("ratio", {"at_least": 1}),
        ("ratio", {"at_least": 1, "at_most": 2}),
        ("difference", {"expected": 1, "tolerance_pct": 1}),
    ],
)
def test_either_way_is_accepted(tmp_path, kind, given):
    entry = BASE | {"kind": kind, "of": {"cap": "none"}, "to": {"cap": "1MiB"}} | given
    (claim,) = load(tmp_path, entry)
    assert len(claim.groups) == len(CELLS) / 2
