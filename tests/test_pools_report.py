"""Several buffer pools in one finding: what each is compared with, and where."""

import pytest

from kvpeak.report.pools import Measured, pooled, sentence

SHORT, LONG = ("mlx", "tiny", "alice-512", "cat"), ("mlx", "tiny", "alice-2048", "cat")


def cell(place, name, peak, *, setting="", cap="default", decode=100.0) -> Measured:
    return Measured(place, name, setting, cap, peak, peak / 2, 1000.0, decode)


OWN = [
    cell(SHORT, "MLX's own, cap none", 300.0, cap="none"),
    cell(SHORT, "MLX's own, cap default", 100.0),
]


def test_pools_are_held_against_mlxs_own_under_its_own_limit():
    found = [*OWN, cell(SHORT, "torch", 80.0, setting="torch", decode=90.0)]
    assert {pool.name: pool.peak for pool in pooled(found)} == {
        "torch": pytest.approx(0.8),
        "MLX's own, cap none": pytest.approx(3.0),
    }
    assert pooled(found)[0].decode == pytest.approx(0.9)


def test_without_a_cell_under_its_own_limit_the_one_that_is_there_is_the_measure():
    found = [OWN[0], cell(SHORT, "torch", 150.0, setting="torch")]
    assert [(pool.name, pool.peak) for pool in pooled(found)] == [("torch", pytest.approx(0.5))]


def test_pools_are_ranked_by_the_places_where_all_were_measured():
    found = [
        *OWN,
        cell(LONG, "MLX's own, cap default", 100.0),
        cell(LONG, "MLX's own, cap none", 400.0, cap="none"),
        cell(SHORT, "torch", 80.0, setting="torch"),
        cell(SHORT, "candle", 90.0, setting="candle"),
        cell(LONG, "candle", 10.0, setting="candle"),  # where torch was not measured
    ]
    assert [(pool.name, pool.places) for pool in pooled(found)] == [
        ("torch", 1),
        ("candle", 1),
        ("MLX's own, cap none", 1),
    ]
    assert sentence(pooled(found)).startswith("Of the buffer pools, torch takes least")


def test_without_a_common_place_each_pool_has_its_own():
    found = [
        *OWN[1:],
        cell(LONG, "MLX's own, cap default", 100.0),
        cell(SHORT, "torch", 80.0, setting="torch"),
        cell(LONG, "candle", 50.0, setting="candle"),
    ]
    assert [(pool.name, pool.places) for pool in pooled(found)] == [("candle", 1), ("torch", 1)]
