"""Encoder of times, by which rows are split."""

from collections.abc import Callable

import numpy as np
import polars as pl

from ...._common.errors import DataError, shown
from .base import Array, Encoder, Place, is_text

EXACT = 2**53  # the largest whole number up to which a float holds all


class Times(Encoder):
    """The time of each row: a number, a date, or either as text; the first block decides which."""

    dtype: type[np.generic] = np.float64
    slots = 1
    first: pl.Series | None = None  # a value of the first block, which shows how dates are written
    parse: Callable[[pl.Series], pl.Series]

    def read(self, values: pl.Series, given: pl.Series, place: Place) -> Array:
        found = given
        if is_text(given.dtype):
            found = given.cast(pl.String).str.strip_chars()
        if self.first is None:
            self._recognise(found)
        kind = pl.Int64 if self.dtype == np.int64 else pl.Float64
        times = self.parse(found).cast(kind, strict=False)
        wrong = (times.is_null() | ~times.is_finite()).arg_true()
        if len(wrong):
            row = int(wrong[0])
            raise DataError(
                f"{place(row)}, column {self.column.name!r}: expected a time or a number, "
                f"but found {shown(given[row])}."
            )
        return times.to_numpy().reshape(-1, 1)

    def _recognise(self, found: pl.Series) -> None:
        """Choose how times are parsed, by the first block."""
        self.first = found.drop_nulls().head(1)
        self.parse = _physical
        if is_text(found.dtype) and _are_dates(found):
            self.parse = self._dates
        whole = found.dtype.is_signed_integer() or found.dtype.is_temporal()
        if whole or _are_long(found):
            self.dtype = np.int64  # a float would round nanoseconds

    def _dates(self, found: pl.Series) -> pl.Series:
        assert self.first is not None
        try:
            return pl.concat([self.first, found]).str.to_datetime(strict=False)[1:].to_physical()
        except pl.exceptions.PolarsError:  # not one of them is a date
            return pl.Series([None] * len(found), dtype=pl.Int64)


def _physical(found: pl.Series) -> pl.Series:
    if found.dtype.is_temporal():
        return found.to_physical()
    return found


def _are_long(found: pl.Series) -> bool:
    """Return whether a column holds whole numbers as text that a float cannot hold."""
    if found.dtype != pl.String:
        return False
    numbers = found.cast(pl.Int64, strict=False)
    return len(numbers) > 0 and not numbers.null_count() and bool((numbers > EXACT).any())


def _are_dates(found: pl.Series) -> bool:
    texts = found.drop_nulls()
    return texts.cast(pl.Float64, strict=False).null_count() > len(texts) / 2
