"""Numbers that sum up many: polarisation, rank correlation, and which of many points to draw."""

from collections.abc import Sequence

import numpy as np

NEAR = 0.05  # a gate this close to 0 or 1 has decided


def thinned(length: int, most: int) -> list[int]:
    """Return at most `most` places of a list, evenly spaced, with both ends.

    >>> thinned(5, 3), thinned(3, 10)
    ([0, 2, 4], [0, 1, 2])
    """
    places = np.linspace(0, length - 1, min(length, max(2, most)))
    return sorted({round(place) for place in places})


def polarisation(gates: Sequence[float]) -> tuple[float, float]:
    """Return two measures of how decided gates are; both are 1 once all have decided.

    The first is the fraction of gates within 0.05 of 0 or 1, the second the mean of |2g - 1|.

    >>> polarisation([0.0, 1.0, 0.5, 0.98])
    (0.75, 0.74)
    """
    values = np.asarray(gates, dtype=float)
    decided = np.minimum(values, 1 - values) <= NEAR
    return float(decided.mean()), round(float(np.abs(2 * values - 1).mean()), 6)


def rank_correlation(first: Sequence[float], second: Sequence[float]) -> float | None:
    """Return Spearman's rank correlation, with ties at their mean rank; None if one is constant.

    >>> rank_correlation([1, 2, 3], [10, 20, 30]), rank_correlation([1, 1], [1, 2])
    (1.0, None)
    """
    if len(first) < 2:
        return None
    ranks = [_mean_ranks(values) for values in (first, second)]
    if any(own.std() == 0 for own in ranks):
        return None
    return round(float(np.corrcoef(ranks[0], ranks[1])[0, 1]), 6)


def _mean_ranks(values: Sequence[float]) -> np.ndarray:
    numbers = np.asarray(values, dtype=float)
    _, place, counts = np.unique(numbers, return_inverse=True, return_counts=True)
    ranks: np.ndarray = (np.cumsum(counts) - (counts - 1) / 2)[place]
    return ranks
