"""One roof for all engines of one machine, and none for what fits into the cache."""

import pytest

from kvpeak.analysis.roof import is_foreign, roofs, shares_of
from kvpeak.base.numbers import MIB


def calibration(machine="A", cache=32 * MIB, **figures) -> dict:
    return {
        "machine": machine,
        "blas": "OpenBLAS, 2 threads",
        "last_level_cache_bytes": cache,
        "dtypes": {"float32": {"matmul_rows": 1024, "flops": 100e9} | figures},
    }


def row(**more) -> dict:
    return {
        "machine": "A",
        "blas": "OpenBLAS, 2 threads",
        "prompt_tokens": 500,
        "prefill_tok_s": 1000.0,
        "prefill_flops": 10e9,
        "decode_tok_s": 50.0,
        "decode_bytes": 100 * MIB,
    } | more


def test_the_fastest_kernel_of_any_engine_is_the_machine_s_roof():
    found = roofs(
        {
            "old": calibration(copy=6e9, matvec=7e9),
            "new": calibration(copy=9e9, sgemv=20e9, reduction=15e9, flops=150e9),
            "elsewhere": calibration(machine="B", copy=99e9),
        }
    )
    assert (found["A"].bytes_s, found["A"].kernel) == (20e9, "sgemv")
    assert found["A"].flops == {"float32": 150e9}
    assert found["A"].cache_bytes == 32 * MIB
    assert found["B"].bytes_s == 99e9


def test_shares_are_of_that_roof():
    roof = roofs({"a": calibration(copy=20e9)})["A"]
    shares = shares_of(row(), "float32", roof)
    assert shares.flop_s == pytest.approx(20e9)  # 10 GFLOP in half a second
    assert shares.flop_share == pytest.approx(0.2)
    assert shares.byte_share == pytest.approx(50 * 100 * MIB / 20e9)
    assert not shares.in_cache


def test_a_working_set_that_fits_into_the_cache_has_no_share():
    roof = roofs({"a": calibration(copy=20e9)})["A"]
    shares = shares_of(row(decode_bytes=20 * MIB), "float32", roof)
    assert shares.in_cache
    assert shares.byte_share is None
    assert shares.byte_s == pytest.approx(50 * 20 * MIB)


def test_an_unknown_cache_hides_no_share():
    roof = roofs({"a": calibration(cache=None, copy=20e9)})["A"]
    assert shares_of(row(decode_bytes=20 * MIB), "float32", roof).byte_share is not None


@pytest.mark.parametrize(
    "damaged",
    [
        {},
        {"machine": "A"},
        {"machine": 3, "dtypes": {}},
        {"machine": "A", "dtypes": {"float32": 1}},
    ],
)
def test_a_damaged_calibration_is_left_out(damaged):
    assert roofs({"damaged": damaged}) == {}
    assert roofs({"damaged": damaged, "a": calibration(copy=1e9)})["A"].bytes_s == 1e9


def test_another_blas_or_machine_is_foreign_and_an_unknown_one_is_not():
    assert not is_foreign(row(), calibration())
    assert not is_foreign(row(blas=None), calibration())
    assert is_foreign(row(machine="B"), calibration())
    assert is_foreign(row(blas="OpenBLAS, 1 threads"), calibration())
