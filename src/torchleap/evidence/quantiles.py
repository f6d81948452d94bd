"""Quantiles of Student's t, also for fractional degrees of freedom, without SciPy."""

import math
from statistics import NormalDist

import numpy as np

LIKE_NORMAL = 1e6  # degrees of freedom from which t is the normal distribution
PIECES = 512  # of an integral by Simpson's rule
STEPS = 60  # of a bisection


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
    high = math.pi / 2
    for _ in range(STEPS):
        middle = (low + high) / 2
        if 0.5 + _upper_half(middle, freedom) < probability:
            low = middle
        else:
            high = middle
    return math.sqrt(freedom) * math.tan(low)


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
    half = _upper_half(math.atan(abs(value) / math.sqrt(freedom)), freedom)
    return 0.5 - half if value >= 0 else 0.5 + half


def _upper_half(angle: float, freedom: float) -> float:
    """Return the probability of t between 0 and sqrt(freedom) * tan(angle)."""
    points = np.linspace(0.0, angle, PIECES + 1)
    heights = np.cos(points) ** (freedom - 1)
    weights = np.ones(PIECES + 1)
    weights[1:-1:2] = 4
    weights[2:-1:2] = 2
    area = float(weights @ heights) * angle / (3 * PIECES)
    log_scale = math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2)
    return area * math.exp(log_scale) / math.sqrt(math.pi)
