"""Statistics that numbers are scaled by: means, deviations, ranks and the most common value."""

from collections.abc import Iterable
from functools import lru_cache

import numpy as np

from .base import Array

SAMPLE = 1 << 17  # values from which quantiles and the most common value are found
VECTORS = 10_000  # vectors in which the most common one is looked for: rows take longer to sort


@lru_cache(maxsize=1)  # the same for all columns
def some_of(rows: int) -> Array:
    """Return rows to look at, in order: at random, since every n-th row may miss a pattern."""
    if rows <= SAMPLE:
        return np.arange(rows)
    return np.unique(np.random.default_rng(0).integers(0, rows, SAMPLE))


def any_of_row(mask: Array) -> Array:
    """Return for each row whether any of its values is true, (rows, slots) -> (rows,)."""
    if mask.shape[1] == 1:
        return np.asarray(mask[:, 0])  # a reduction over one column takes long
    return np.asarray(mask.any(axis=1))


def moments(chunks: Iterable[Array]) -> tuple[Array, Array, int]:
    """Return the mean and standard deviation of each column, and how many rows have no value.

    The sums of squares are taken around the mean so far, so that large means do no harm.
    """
    count = 0
    missing = 0
    mean = np.zeros(1)
    spread = np.zeros(1)
    for raw in chunks:
        lacks = any_of_row(np.isnan(raw))
        gaps = int(lacks.sum())
        missing += gaps
        present = raw[~lacks] if gaps else raw
        present = present.astype(np.float64, copy=False)
        if not len(present):
            continue
        step = len(present)
        with np.errstate(over="ignore", invalid="ignore"):  # the caller checks for infinity
            own = present.mean(axis=0)
            distance = own - mean
            within = ((present - own) ** 2).sum(axis=0)
            spread = spread + within + distance**2 * count * step / (count + step)
            mean = mean + distance * step / (count + step)
        count += step
    return mean, np.sqrt(spread / max(count, 1)), missing


def common_fraction(sample: Array, missing: float) -> float:
    """Return the fraction of rows at the most common value.

    Args:
        sample: Some of the rows, (rows, slots), NaN where there is no value.
        missing: The fraction of all rows that have no value.
    """
    present = sample[~np.isnan(sample).any(axis=1)]
    if not len(present):
        return missing
    if present.shape[1] > 1:
        first = np.ascontiguousarray(present[:VECTORS])
        _, counts = np.unique(first, axis=0, return_counts=True)
    else:
        first = np.ascontiguousarray(present[:, 0])
        _, counts = np.unique(first, return_counts=True)
    return max(missing, float(counts.max()) / len(first) * (1 - missing))


def rank(values: Array, knots: Array) -> Array:
    """Return the rank of values among train values, from -1 to 1.

    Equal values get the middle of their ranks.

    Args:
        values: The values; NaN stays.
        knots: Quantiles of the train values, in equal steps from 0 to 1.
    """
    places = np.linspace(-1, 1, len(knots))
    known, first = np.unique(knots, return_index=True)
    last = np.append(first[1:], len(knots)) - 1
    ranked = np.interp(values, known, (places[first] + places[last]) / 2)
    return np.where(np.isnan(values), np.nan, ranked)
