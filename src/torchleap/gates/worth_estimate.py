"""Estimates of the worth of fields: what was measured, and what the order of closing suggests."""

import statistics
from collections.abc import Sequence

Block = tuple[float, float, int]  # mean, weight, number of values

TRUST = 0.5  # the standard error of the worth that an order suggests, relative to that worth
LEAST = 1e-9  # its standard error at least, in nats
STEP_UP = 1e-12  # nats between two fields that would otherwise have the same worth


def combined(worth: Sequence[float], errors: Sequence[float]) -> list[float]:
    """Return the mean of two estimates of each worth, weighted by their precision.

    One is the measured worth. The other is what the order of closing suggests: under a price that
    rises, a field that closes later is worth no less (`rising`), within a factor. A wide field of
    noise that closed early can have a measured worth far from 0 by chance, but not a combined one;
    a field that is measured precisely keeps its measured worth, whenever it closed.

    Args:
        worth: The measured worth of the fields, the first to close first.
        errors: Their standard errors.

    >>> [round(value, 3) for value in combined([0.0, 0.5, 0.1, 1.0], [0.01, 5.0, 0.01, 0.01])]
    [0.0, 0.1, 0.1, 1.0]
    """
    if not worth:
        return []
    usual = statistics.median(errors) or LEAST
    weights = [1 / (error**2 + usual**2) for error in errors]
    found = []
    suggestions = rising(worth, weights)
    for place, (value, error, suggested) in enumerate(zip(worth, errors, suggestions, strict=True)):
        doubt = (TRUST * max(suggested, 0.0) + LEAST) ** 2
        mean = (value * doubt + suggested * error**2) / (doubt + error**2)
        found.append(mean + STEP_UP * place)
    return found


def rising(values: Sequence[float], weights: Sequence[float]) -> list[float]:
    """Return the values that never fall and are the closest to the given ones by least squares.

    Neighbours in the wrong order are replaced by their weighted mean ("isotonic regression").

    Args:
        values: The given values.
        weights: The weight of the squared distance to each.

    >>> rising([1.0, 3.0, 2.0], [1.0, 1.0, 1.0])
    [1.0, 2.5, 2.5]
    """
    blocks: list[Block] = []
    for value, weight in zip(values, weights, strict=True):
        block = (value, weight, 1)
        while blocks and blocks[-1][0] > block[0]:
            block = _joined(blocks.pop(), block)
        blocks.append(block)
    found: list[float] = []
    for mean, _, count in blocks:
        found += [mean] * count
    return found


def _joined(one: Block, other: Block) -> Block:
    weight = one[1] + other[1]
    mean = (one[0] * one[1] + other[0] * other[1]) / weight
    return mean, weight, one[2] + other[2]
