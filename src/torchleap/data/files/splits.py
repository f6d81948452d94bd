"""Which rows train, which validate and which test."""

from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ..._common.checks import is_number
from ..._common.errors import DataError

Split = Literal["random", "order", "time", "group"]
PARTS = ("train", "valid", "test")
Codes = NDArray[np.int8]  # of each row: 0 trains, 1 validates, 2 tests


def check_shares(shares: Sequence[float]) -> None:
    """Refuse shares that are no three parts of a whole."""
    found = tuple(shares) if hasattr(shares, "__iter__") else ()
    numbers = len(found) == 3 and all(map(is_number, found))
    if (
        not numbers or not min(found) >= 0 or not found[0] > 0 or not abs(sum(found) - 1) <= 1e-6
    ):  # so that NaN is refused
        raise DataError(
            f"shares must be three numbers for train, valid and test that sum to 1, but are {shares!r}."
        )


def by_order(rows: int, shares: Sequence[float]) -> Codes:
    """The first rows train, the last test."""
    return np.repeat(np.arange(3, dtype=np.int8), _sizes(rows, shares))


def at_random(rows: int, shares: Sequence[float], seed: int) -> Codes:
    """Every row by lot, with exact sizes."""
    codes = by_order(rows, shares)
    np.random.default_rng(seed).shuffle(codes)
    return codes


def by_time(times: NDArray[np.float64 | np.int64], shares: Sequence[float]) -> Codes:
    """The earliest train, the latest test; rows of one moment stay together."""
    first, second = (int(edge) for edge in np.cumsum(_sizes(len(times), shares))[:2])
    ordered = np.sort(times)
    codes = np.zeros(len(times), dtype=np.int8)
    for edge in (first, second):
        if edge < len(times):
            codes += times >= ordered[edge]
    return codes


def by_group(
    hashes: NDArray[np.uint64], group_of_row: NDArray[np.int32], shares: Sequence[float], seed: int
) -> Codes:
    """All rows of a group in one part; which one is a matter of the group's hash, so it stays there when rows are added."""
    lot = scattered(np.array([seed % (1 << 64)], np.uint64) + np.uint64(0x9E3779B97F4A7C15))
    rng = scattered(hashes ^ lot).astype(np.float64) / 2.0**64
    of_group = np.searchsorted(np.cumsum(shares)[:2], rng, side="right").astype(np.int8)
    return of_group[group_of_row]


def scattered(numbers: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The finaliser of splitmix64: numbers that differ in a bit become numbers that have nothing to do with each other."""
    with np.errstate(over="ignore"):
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
            numbers = (numbers ^ (numbers >> np.uint64(shift))) * np.uint64(factor)
    return numbers ^ (numbers >> np.uint64(31))


def _sizes(rows: int, shares: Sequence[float]) -> list[int]:
    first, second = (
        int(rows * share + 1e-6) for share in (shares[0], shares[0] + shares[1])
    )  # 0.7 + 0.2 is below 0.9
    train, valid = first, second - first
    return [train, valid, rows - train - valid] if shares[2] else [train, rows - train, 0]
