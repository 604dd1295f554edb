"""The growth law's fit, against SciPy's."""

import numpy as np
import pytest
from scipy import stats
from scipy.optimize import curve_fit

from kvpeak.analysis.growth import Fit, fit_growth, pool_growth_mib, spell_fit
from kvpeak.base.numbers import MIB


def test_the_fit_is_scipys():
    tokens = np.array([128, 512, 1024, 2048, 4096])
    mib = 300 + 0.2 * tokens + 7e-4 * tokens**2 + np.array([3, -5, 4, -2, 1])
    fit = fit_growth(tokens, mib)

    def law(t, a, b, c):
        return a + b * t + c * t**2

    expected, covariance = curve_fit(law, tokens, mib, p0=(1, 1e-3, 1e-6))
    half = stats.t.ppf(0.975, 2) * np.sqrt(np.diag(covariance))
    assert fit.coefficients == pytest.approx(expected, rel=1e-4)
    assert np.array(fit.intervals) == pytest.approx(
        np.stack([expected - half, expected + half], axis=1), rel=1e-3
    )
    assert fit.share("T2", 4096) > 0.8


def test_a_line_through_two_lengths_has_no_interval():
    fit = fit_growth([100, 200], [10, 20], ("1", "T"))
    assert fit.coefficients == pytest.approx([0, 0.1])
    assert fit.intervals is None
    assert fit_growth([100, 200], [10, 20]) is None


def test_a_line_through_three_points_worked_out_by_hand():
    """Through (1, 1), (2, 2) and (3, 2): 2/3 + T/2, residuals −1/6, 1/3, −1/6. The variance is
    their squares' sum, 1/6, for one degree of freedom, whose t is 12.7062.
    """
    fit = fit_growth([1, 2, 3], [1, 2, 2], ("1", "T"))
    assert (fit.terms, fit.lengths) == (("1", "T"), 3)
    assert fit.coefficients == pytest.approx([2 / 3, 1 / 2])
    constant, slope = 12.7062 * np.sqrt(1 / 6 * (1 / 3 + 4 / 2)), 12.7062 * np.sqrt(1 / 6 / 2)
    assert np.array(fit.intervals) == pytest.approx(
        np.array([[2 / 3 - constant, 2 / 3 + constant], [1 / 2 - slope, 1 / 2 + slope]]), rel=1e-5
    )


def test_processes_of_one_length_are_one_length():
    assert fit_growth([100, 100, 200], [1, 2, 3]) is None
    fit = fit_growth([100, 100, 200], [9, 11, 20], ("1", "T"))
    assert (fit.coefficients, fit.intervals, fit.lengths) == (pytest.approx([0, 0.1]), None, 2)
    repeated = fit_growth([1, 1, 2, 2, 3, 3], [1, 1, 2, 2, 2, 2], ("1", "T"))
    assert repeated.coefficients == pytest.approx([2 / 3, 1 / 2])
    low, high = repeated.intervals[1]  # 1/3 for 4 degrees of freedom, whose t is 2.77645
    assert (high - low) / 2 == pytest.approx(2.77645 * np.sqrt(1 / 12 / 4), rel=1e-5)
    assert repeated.lengths == 3


def test_a_share_is_of_what_grows_and_the_constant_s_of_all():
    fit = Fit(("1", "T", "T2"), (300.0, 0.2, 1e-3), None, 5)
    # at 1,000 tokens: 300, 200 and 1,000 MiB
    assert fit.share("T", 1000) == pytest.approx(200 / 1200)
    assert fit.share("T2", 1000) == pytest.approx(1000 / 1200)
    assert fit.share("1", 1000) == pytest.approx(300 / 1500)
    assert Fit(("1", "T"), (300.0, 0.0), None, 5).share("T", 1000) == 0


def test_a_fit_is_spelled_term_by_term():
    fit = Fit(("T", "T2"), (0.25, 6.77e-4), ((0.2, 0.3), (6.661e-4, 6.88e-4)), 5)
    assert spell_fit(fit) == ("T: 0.25 (0.2 to 0.3); T2: 0.000677 (0.000666 to 0.000688)")


def test_a_growing_cache_leaves_each_step_s_tensors_behind():
    """From 10 tokens on, 4 generated: three steps free those of 10, 11 and 12 tokens."""
    assert pool_growth_mib(MIB, 10, 4) == 33
    assert pool_growth_mib(MIB // 2, 10, 4) == 16.5
    assert pool_growth_mib(MIB, 10, 2) == 10
    assert pool_growth_mib(MIB, 10, 1) == 0
