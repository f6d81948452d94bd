import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import t as scipy_t

from torchleap.evidence.quantiles import t_above, t_quantile

FREEDOM = st.one_of(st.floats(1, 50), st.floats(50, 9e5))


@given(FREEDOM, st.sampled_from([0.05, 0.3, 0.5, 0.8, 0.95, 0.975, 1 - 1e-4, 1 - 3e-6, 1 - 1e-9]))
def test_quantiles_equal_those_of_scipy_also_far_out(freedom, probability):
    expected = scipy_t.ppf(probability, freedom)
    assert t_quantile(probability, freedom) == pytest.approx(expected, rel=1e-6, abs=1e-9)


@given(FREEDOM, st.floats(-40, 40))
def test_tails_equal_those_of_scipy_with_a_small_relative_error(freedom, value):
    assert t_above(value, freedom) == pytest.approx(scipy_t.sf(value, freedom), rel=1e-6)


def test_many_degrees_of_freedom_are_the_normal_distribution():
    assert t_quantile(0.975, math.inf) == pytest.approx(1.959964, abs=1e-6)
    assert t_above(1.959964, 1e7) == pytest.approx(0.025, abs=1e-6)
    assert t_above(2.0, 9.99e5) == pytest.approx(t_above(2.0, 1.01e6), rel=1e-5)
