"""Which rows train, which validate and which test."""

from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ..errors import DataError, is_number

Split = Literal["random", "order", "time", "group"]
PARTS = ("train", "valid", "test")
Codes = NDArray[np.int8]  # of each row: 0 trains, 1 validates, 2 tests


def check_shares(shares: Sequence[float]) -> None:
    """Refuse shares that are no three parts of a whole."""
    if len(shares) != 3 or not all(map(is_number, shares)) or min(shares) < 0 or not shares[0] > 0 or abs(sum(shares) - 1) > 1e-9:
        raise DataError(f"shares must be three numbers for train, valid and test that sum to 1, but are {tuple(shares)}.")


def by_order(rows: int, shares: Sequence[float]) -> Codes:
    """The first rows train, the last test."""
    return np.repeat(np.arange(3, dtype=np.int8), _sizes(rows, shares))


def at_random(rows: int, shares: Sequence[float], seed: int) -> Codes:
    """Every row by lot, with exact sizes."""
    codes = by_order(rows, shares)
    np.random.default_rng(seed).shuffle(codes)
    return codes


def by_time(times: NDArray[np.float64], shares: Sequence[float]) -> Codes:
    """The earliest train, the latest test; rows of one moment stay together."""
    first, second = (int(edge) for edge in np.cumsum(_sizes(len(times), shares))[:2])
    ordered = np.sort(times)
    codes = np.zeros(len(times), dtype=np.int8)
    for edge in (first, second):
        if edge < len(times):
            codes += times >= ordered[edge]
    return codes


def by_group(hashes: NDArray[np.uint64], group_of_row: NDArray[np.int32], shares: Sequence[float], seed: int) -> Codes:
    """All rows of a group in one part; which one is a matter of the group's hash, so it stays there when rows are added."""
    with np.errstate(over="ignore"):
        mixed = (hashes ^ np.uint64(seed % (1 << 64))) * np.uint64(0x9E3779B97F4A7C15)
    dice = (mixed ^ (mixed >> np.uint64(29))).astype(np.float64) / 2.0**64
    of_group = np.searchsorted(np.cumsum(shares)[:2], dice, side="right").astype(np.int8)
    return of_group[group_of_row]


def _sizes(rows: int, shares: Sequence[float]) -> list[int]:
    train, valid = int(rows * shares[0]), int(rows * (shares[0] + shares[1])) - int(rows * shares[0])
    return [train, valid, rows - train - valid] if shares[2] else [train, rows - train, 0]
