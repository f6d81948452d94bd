"""Numbers that sum up many: polarisation, rank correlation, and which of many points to draw."""

from collections.abc import Sequence

import numpy as np

NEAR = 0.05  # a gate this close to 0 or 1 has decided


def thinned(length: int, most: int) -> list[int]:
    """At most so many places, evenly, with both ends.

    >>> thinned(5, 3), thinned(3, 10)
    ([0, 2, 4], [0, 1, 2])
    """
    return sorted({round(place) for place in np.linspace(0, length - 1, min(length, max(2, most)))})


def polarisation(gates: Sequence[float]) -> tuple[float, float]:
    """The share of gates within 0.05 of 0 or 1, and the mean of |2g - 1|: both are 1 once all have decided.

    >>> polarisation([0.0, 1.0, 0.5, 0.98])
    (0.75, 0.74)
    """
    values = np.asarray(gates, dtype=float)
    decided = float((np.minimum(values, 1 - values) <= NEAR).mean())
    return decided, round(float(np.abs(2 * values - 1).mean()), 6)


def rank_correlation(first: Sequence[float], second: Sequence[float]) -> float | None:
    """Spearman's, ties at their mean rank; None where one side is constant.

    >>> rank_correlation([1, 2, 3], [10, 20, 30]), rank_correlation([1, 1], [1, 2])
    (1.0, None)
    """
    ranks = []
    for values in (first, second):
        _, place, counts = np.unique(
            np.asarray(values, dtype=float), return_inverse=True, return_counts=True
        )
        ranks.append((np.cumsum(counts) - (counts - 1) / 2)[place])
    if len(first) < 2 or ranks[0].std() == 0 or ranks[1].std() == 0:
        return None
    return round(float(np.corrcoef(ranks[0], ranks[1])[0, 1]), 6)
