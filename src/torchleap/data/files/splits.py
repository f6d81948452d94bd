"""Splits: which rows train, which validate and which test."""

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ..._common.checks import is_number
from ..._common.errors import DataError

Split = Literal["random", "order", "time", "group"]
Codes = NDArray[np.int8]  # of each row: 0 trains, 1 validates, 2 tests


def check_shares(shares: Sequence[float]) -> None:
    """Refuse the sizes of the parts unless they are three fractions that sum to 1."""
    found = tuple(shares) if hasattr(shares, "__iter__") else ()
    are_numbers = len(found) == 3 and all(map(is_number, found))
    if not are_numbers or not _are_parts_of_one(found):
        raise DataError(
            "shares must be three numbers for train, valid and test that sum to 1, "
            f"but are {shares!r}."
        )


def _are_parts_of_one(found: Sequence[Any]) -> bool:
    """Return whether fractions sum to 1 and the first is above 0; with NaN they do not."""
    return bool(min(found) >= 0 and found[0] > 0 and abs(sum(found) - 1) <= 1e-6)


def by_order(rows: int, shares: Sequence[float]) -> Codes:
    """Split rows by their order: the first train, the last test."""
    return np.repeat(np.arange(3, dtype=np.int8), _sizes(rows, shares))


def at_random(rows: int, shares: Sequence[float], seed: int) -> Codes:
    """Split rows at random, with exact sizes."""
    codes = by_order(rows, shares)
    np.random.default_rng(seed).shuffle(codes)
    return codes


def by_time(times: NDArray[np.float64 | np.int64], shares: Sequence[float]) -> Codes:
    """Split rows by time: the earliest train, the latest test; rows of one time stay together."""
    ordered = np.sort(times)
    codes = np.zeros(len(times), dtype=np.int8)
    for edge in np.cumsum(_sizes(len(times), shares))[:2]:
        if edge < len(times):
            codes += times >= ordered[edge]
    return codes


def by_group(
    hashes: NDArray[np.uint64], group_of_row: NDArray[np.int32], shares: Sequence[float], seed: int
) -> Codes:
    """Split rows so that all rows of a group are in one part.

    The part depends on the hash of the group and the seed alone, so that a group stays in its
    part when rows are added.

    Args:
        hashes: A hash of each group.
        group_of_row: The number of each row's group.
        shares: The fractions of train, valid and test rows.
        seed: The seed of the split.
    """
    seeds = np.array([seed % (1 << 64)], np.uint64)
    key = scattered(seeds + np.uint64(0x9E3779B97F4A7C15))
    uniform = scattered(hashes ^ key).astype(np.float64) / 2.0**64
    edges = np.cumsum(shares)[:2]
    of_group = np.searchsorted(edges, uniform, side="right").astype(np.int8)
    return of_group[group_of_row]


def scattered(numbers: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return numbers that look random, even for numbers that differ in one bit (splitmix64)."""
    with np.errstate(over="ignore"):
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
            numbers = (numbers ^ (numbers >> np.uint64(shift))) * np.uint64(factor)
    return numbers ^ (numbers >> np.uint64(31))


def _sizes(rows: int, shares: Sequence[float]) -> list[int]:
    """Return the number of rows of each part; without a test share, the rest validates."""
    train = _rounded_down(rows * shares[0])
    valid = _rounded_down(rows * (shares[0] + shares[1])) - train
    if not shares[2]:
        return [train, rows - train, 0]
    return [train, valid, rows - train - valid]


def _rounded_down(count: float) -> int:
    return int(count + 1e-6)  # 0.7 + 0.2 is below 0.9
