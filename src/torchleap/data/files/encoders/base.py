"""Encoder: the steps from the column of a file to the numbers that a model gets.

A column is encoded in two steps. `read` turns blocks of the file into a raw array as they come,
before it is known which rows train. Then `learn` looks at the raw train rows alone, and `encode`
makes the final array from any raw rows.
"""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from ...columns import Column, Learned

Array = NDArray[Any]
Chunks = Callable[[], Iterable[Array]]  # returns the raw train rows, as often as it is called
Place = Callable[[int], str]  # returns the name of a row of the block, for a message


class Encoder:
    """The steps that every kind of column has in common.

    Attributes:
        dtype: The type of the raw array.
        slots: The number of values of a raw row.
        vocabulary: The values and their counts, in the order of their ids; empty for columns
            without a vocabulary.
    """

    dtype: type[np.generic]
    slots: int

    def __init__(self, column: Column, *, text: bool) -> None:
        self.column = column
        self.text = text
        self.floats = False  # which have NaN for a missing value
        self.given: pl.DataType | None = None  # the type of the column in train rows
        self.vocabulary = pl.DataFrame()

    def begin(self, dtype: pl.DataType) -> None:
        """Prepare for the first block of a source, whose column has this type."""
        self.text = is_text(dtype)
        self.floats = element_of(dtype).is_float()
        if self.given is None:
            self.given = pl.String() if self.text else dtype

    def stored(self) -> pl.DataFrame:
        """Return the vocabulary and a column "type", empty but of the type of the train rows.

        New rows are converted to that type before they are encoded.
        """
        return self.vocabulary.with_columns(pl.lit(None, dtype=self.given).alias("type"))

    def expression(self) -> pl.Expr:
        """Return what polars computes of a block, for all columns at once."""
        return pl.col(self.column.name)

    def read(self, values: pl.Series, given: pl.Series, place: Place) -> Array:
        """Return the raw rows of a block.

        Args:
            values: The computed expression.
            given: The column as it is in the file.
            place: Returns the name of a row of the block, for a message.
        """
        raise NotImplementedError

    def learn(self, chunks: Chunks, rows: int) -> Learned:
        """Return the facts that the raw train rows teach.

        Args:
            chunks: Returns the raw train rows, some at a time.
            rows: The number of train rows.
        """
        raise NotImplementedError

    def encode(self, raw: Array, learned: Learned) -> Array:
        """Return the final rows, (rows, learned.slots): int32 ids or float32 numbers."""
        raise NotImplementedError

    def without_nan(self, values: Any) -> Any:
        """Return a series or expression with null instead of NaN, which only floats have."""
        if self.floats:
            return values.fill_nan(None)
        return values


def is_text(dtype: pl.DataType) -> bool:
    """Return whether a column of this type holds text."""
    return isinstance(dtype, pl.String | pl.Categorical | pl.Enum)


def is_nested(dtype: pl.DataType) -> bool:
    """Return whether a column of this type holds several values per row."""
    return isinstance(dtype, pl.List | pl.Array)


def element_of(dtype: pl.DataType) -> pl.DataType:
    """Return the type of a list's elements; of any other column the type itself."""
    if isinstance(dtype, pl.List | pl.Array):
        return dtype.inner  # type: ignore[return-value]
    return dtype


def is_plain(dtype: pl.DataType) -> bool:
    """Return whether a value of this type is one number, text or moment."""
    if dtype.is_numeric() or dtype.is_temporal() or is_text(dtype):
        return True
    return dtype in (pl.Boolean, pl.Null)
