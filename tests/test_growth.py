"""The growth law's fit, against SciPy's."""

import numpy as np
import pytest
from scipy import stats
from scipy.optimize import curve_fit

from kvpeak.analysis.growth import fit_growth


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
