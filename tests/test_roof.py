"""One roof for all engines of one machine, and none for what fits into the cache."""

import pytest

from kvpeak.analysis.roof import is_foreign, roofs, shares_of
from kvpeak.base.axes import AXES
from kvpeak.base.numbers import MIB
from kvpeak.report.limits import limits_section
from kvpeak.report.tables import SHOWN


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


def cell(cache="cat", **more) -> dict:
    axes = {"commit": "mlx", "model": "tiny", "prompt": "p", "cap": "none", "variant": "default"}
    return row() | axes | {"kv_cache": cache} | more


def named(row: dict) -> tuple:
    return tuple(row[axis] for axis in AXES)


def limits(*cells: dict, **calibrations) -> dict | None:
    calibrations = calibrations or {"mlx": calibration(copy=20e9)}
    return limits_section(list(cells), calibrations, dict.fromkeys(map(named, cells), "float32"))


def body(section: dict) -> list[list[str]]:
    lines = section["table"].splitlines()[2:]
    return [[field.strip() for field in line.strip("|").split("|")] for line in lines]


def test_the_limits_are_shown_as_work_speed_and_share():
    """10 GFLOP in half a second of 100 GFLOP/s; 50 times 100 MiB a second of 20 GB/s."""
    section = limits(cell(), cell("prealloc", decode_tok_s=100.0))
    assert section["table"].splitlines()[0] == (
        "| kv cache | prefill, GFLOP | GFLOP/s | of the roof | decode, MiB a token | GB/s | "
        "of the roof |"
    )
    assert body(section) == [
        ["`cat`", "10.00", "20", "20 %", "100.0", "5.2", "26 %"],
        ["`prealloc`", "10.00", "20", "20 %", "100.0", "10.5", "52 %"],
    ]
    assert (section["left_out"], section["foreign"], section["in_cache"]) == (0, 0, 0)
    ((machine, roof),) = section["roofs"]
    assert (machine, roof.bytes_s, roof.flops) == ("A", 20e9, {"float32": 100e9})


def test_a_share_of_what_is_in_the_cache_is_not_shown():
    section = limits(cell(decode_bytes=20 * MIB), cell("prealloc"))
    assert [fields[-1] for fields in body(section)] == ["in cache", "26 %"]
    assert section["in_cache"] == 1


def test_a_speed_that_is_not_known_has_no_share():
    section = limits(cell(prefill_tok_s=None), cell("prealloc", decode_tok_s=None))
    assert body(section) == [
        ["`cat`", "10.00", "–", "–", "100.0", "5.2", "26 %"],
        ["`prealloc`", "10.00", "20", "20 %", "100.0", "–", "–"],
    ]
    assert limits(cell(prefill_tok_s=None, decode_tok_s=None)) is None


def test_cells_of_another_machine_or_without_a_calibration_are_left_out():
    elsewhere, other = cell("prealloc", machine="B"), cell("mlx-lm", blas="Accelerate")
    section = limits(cell("fixed", commit="old"), elsewhere, other, cell())
    assert (section["foreign"], len(body(section))) == (2, 1)
    alone = limits(elsewhere)
    assert (alone["foreign"], alone["table"], alone["roofs"]) == (1, "", [])
    assert limits(cell(commit="old")) is None
    assert limits(cell(prefill_flops=None)) is None


def test_figures_are_shown_with_the_digits_of_their_unit():
    """12.346 GFLOP, of which 493.8 in a second; 100.5 MiB, 50 times a second."""
    work = {"prefill_flops": 12.346e9, "prefill_tok_s": 19_998.0, "decode_bytes": 100.5 * MIB}
    (shown,) = body(limits(cell(**work)))
    assert shown == ["`cat`", "12.35", "494", "494 %", "100.5", "5.3", "26 %"]


def test_speeds_are_not_whole_numbers():
    roof = roofs({"a": calibration(copy=20e9)})["A"]
    small = row(prefill_flops=7, prefill_tok_s=1.0, prompt_tokens=2)
    assert shares_of(small, "float32", roof).flop_s == 3.5


def test_a_type_without_a_matrix_product_has_no_roof_of_arithmetic():
    measured = {"machine": "A", "dtypes": {"float32": {"copy": 0.25}, "bfloat16": 1}}
    roof = roofs({"a": measured})["A"]
    assert (roof.bytes_s, roof.kernel, roof.flops.get("float32") or 0) == (0.25, "copy", 0)
    assert shares_of(row(), "float32", roof).flop_share is None


def test_a_damaged_type_costs_the_others_nothing():
    measured = {"machine": "A", "dtypes": {"bfloat16": 1, "float32": {"copy": 5.0, "flops": 7.0}}}
    roof = roofs({"a": measured})["A"]
    assert (roof.bytes_s, roof.flops) == (5, {"float32": 7})


def test_a_machine_is_known_by_its_name():
    name = " ".join(("Some", "CPU"))
    assert not is_foreign(row(machine=name), calibration(machine="Some CPU"))


def test_of_many_cells_the_first_are_shown():
    section = limits(*(cell(f"c{number}") for number in range(SHOWN + 3)))
    assert (section["left_out"], len(body(section))) == (3, SHOWN)


@pytest.mark.parametrize("size", [0, -5, "32 MiB", None])
def test_a_cache_whose_size_is_no_number_above_zero_is_not_known(size):
    assert roofs({"a": calibration(cache=size, copy=1e9)})["A"].cache_bytes is None


def test_the_largest_cache_of_a_machine_s_calibrations_counts():
    found = roofs({"a": calibration(cache=5, copy=1e9), "b": calibration(cache=9, copy=1e9)})
    assert found["A"].cache_bytes == 9


def test_a_working_set_as_large_as_the_cache_is_in_it():
    roof = roofs({"a": calibration(copy=20e9)})["A"]
    assert shares_of(row(decode_bytes=32 * MIB), "float32", roof).in_cache
    assert not shares_of(row(decode_bytes=32 * MIB + 1), "float32", roof).in_cache


def test_a_type_that_was_not_calibrated_has_no_share_of_the_arithmetic():
    roof = roofs({"a": calibration(copy=20e9)})["A"]
    shares = shares_of(row(), "bfloat16", roof)
    assert (shares.flop_s, shares.flop_share) == (20e9, None)
