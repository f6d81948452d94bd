"""Quantiles of Student's t, also for fractional degrees of freedom, without SciPy."""

import math
from statistics import NormalDist

LIKE_NORMAL = 1e6  # degrees of freedom from which t is the normal distribution
STEPS = 200  # of a bisection, at most
TERMS = 10_000  # of a continued fraction, at most
ACCURACY = 1e-14
TINY = 1e-300


def t_quantile(probability: float, freedom: float) -> float:
    """Return the quantile of Student's t.

    >>> round(t_quantile(0.975, 10), 3), round(t_quantile(0.95, math.inf), 3)
    (2.228, 1.645)

    Args:
        probability: How much of the distribution lies below it, between 0 and 1.
        freedom: The degrees of freedom, above 0; infinity is the normal distribution.
    """
    if freedom >= LIKE_NORMAL:
        return NormalDist().inv_cdf(probability)
    if probability < 0.5:
        return -t_quantile(1 - probability, freedom)
    low = 0.0
    high = 1.0
    while t_above(high, freedom) > 1 - probability:
        low = high
        high *= 2
    for _ in range(STEPS):
        middle = (low + high) / 2
        if t_above(middle, freedom) > 1 - probability:
            low = middle
        else:
            high = middle
        if high - low <= ACCURACY * high:
            break
    return high if probability > 0.5 else 0.0


def t_above(value: float, freedom: float) -> float:
    """Return the probability that Student's t is above a value.

    >>> round(t_above(2.228, 10), 4)
    0.025

    Args:
        value: The value.
        freedom: The degrees of freedom, above 0.
    """
    if freedom >= LIKE_NORMAL:
        return NormalDist().cdf(-value)
    square = value**2
    tail = _incomplete_beta(freedom / 2, 0.5, freedom / (freedom + square)) / 2
    return tail if value >= 0 else 1 - tail


def _incomplete_beta(a: float, b: float, x: float) -> float:
    """Return the regularised incomplete beta function, with a small relative error near 0 as well.

    Its continued fraction converges fast below the mean of the distribution; above it, the
    function is 1 minus that with both parameters exchanged.
    """
    if x <= 0 or x >= 1:
        return float(x >= 1)
    if x > (a + 1) / (a + b + 2):
        return 1 - _incomplete_beta(b, a, 1 - x)
    log_scale = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)
    log_scale += a * math.log(x) + b * math.log1p(-x)
    return math.exp(log_scale) * _continued_fraction(a, b, x) / a


def _continued_fraction(a: float, b: float, x: float) -> float:
    """Return the continued fraction of the incomplete beta function, by Lentz's method."""
    upper = 1.0
    lower = _inverse(1 - (a + b) * x / (a + 1))
    found = lower
    for term in range(1, TERMS):
        even = term * (b - term) * x / ((a + 2 * term - 1) * (a + 2 * term))
        odd = -(a + term) * (a + b + term) * x / ((a + 2 * term) * (a + 2 * term + 1))
        for factor in (even, odd):
            lower = _inverse(1 + factor * lower)
            upper = 1 + factor / upper
            if abs(upper) < TINY:
                upper = TINY
            found *= upper * lower
        if abs(upper * lower - 1) < ACCURACY:
            break
    return found


def _inverse(value: float) -> float:
    return 1 / (value if abs(value) > TINY else TINY)
