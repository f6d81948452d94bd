"""Seen columns: the values of one column as `inspect` looks at them, and of all together."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import blake2b

import numpy as np
import polars as pl
from numpy.typing import NDArray
from polars import selectors

from ..columns import Kind
from .findings import Finding, header_name, row_findings
from .schema import infer, present_text
from .source import MOST_ROWS, SAMPLE_ROWS, Source


@dataclass(frozen=True)
class SeenColumn:
    """A column as it is looked at.

    Attributes:
        name: The name of the column.
        values: Its values, null where they are missing; without a name, which polars might take
            for a pattern.
        kind: The kind that it would be to a model.
    """

    name: str
    values: pl.Series
    kind: Kind

    @cached_property
    def hashes(self) -> pl.Series:
        """A hash of each value."""
        return self.values.hash().alias("hash")

    @cached_property
    def first(self) -> NDArray[np.uint32]:
        """For each row the first row with the same value, whatever the values are called."""
        rows = self.hashes.to_frame().with_row_index("row")
        return rows.select(pl.col("row").min().over("hash")).to_series().to_numpy()

    @cached_property
    def counts(self) -> NDArray[np.int64]:
        """The number of rows with the value of each row; 0 if an earlier row has it."""
        return np.bincount(self.first, minlength=len(self.first))

    @cached_property
    def distinct(self) -> int:
        """The number of different values, without missing ones."""
        return int(np.count_nonzero(self.counts)) - (self.values.null_count() > 0)

    @property
    def one_of_each(self) -> NDArray[np.int64]:
        """One row for each different value."""
        return np.flatnonzero(self.counts)

    @property
    def most(self) -> int:
        """The number of rows with the most common value, which may be a missing one."""
        return int(self.counts.max())

    @property
    def is_constant(self) -> bool:
        """Whether all rows have the same value, which may be a missing one."""
        return self.most == len(self.values)

    @cached_property
    def numbers(self) -> pl.Series:
        """The values as numbers, null where they are not."""
        return self.values.to_physical().cast(pl.Float64, strict=False)

    @property
    def is_measured(self) -> bool:
        """Whether it holds fractions, which seldom repeat."""
        return self.kind == "numeric" and bool((self.numbers % 1 != 0).any())

    def identity(self) -> bytes:
        """Return a digest that is equal for columns that differ in the names of values alone."""
        # where only the most common value repeats, as with measured numbers, any two columns are
        # renamings of each other, so that the values themselves have to be the same
        others = np.count_nonzero(self.counts) - 1
        values_count = others + self.counts.max() == len(self.first)
        content = self.hashes.to_numpy() if values_count else self.first
        return blake2b(content.tobytes()).digest()

    def has_value(self, name: str) -> bool:
        """Return whether a text could stand in one of the rows, as a value or as a number."""
        if self.values.dtype != pl.String:
            return False
        numbers = self.numbers.drop_nulls()
        try:
            number = float(name)
        except ValueError:
            return bool((self.values == name).any())
        if not len(numbers):
            return False
        return float(numbers.min()) <= number <= float(numbers.max())  # type: ignore[arg-type]


def column_of(source: Source, name: str) -> pl.Series:
    """Return a column of a source as it is in the file."""
    chosen = replace(source, frame=source.frame.select(selectors.by_name(name)))
    return chosen.head(MOST_ROWS).to_series()


def see(source: Source, name: str) -> SeenColumn:
    """Return a column of a source, with null for all missing values."""
    given = column_of(source, name)
    first_rows = given.head(SAMPLE_ROWS).to_frame()
    kind = infer(first_rows, [name], text=source.text)[name].kind
    values = given
    if source.text:
        values = given.to_frame().select(present_text(name)).to_series()
    if values.dtype.is_float():
        values = values.fill_nan(None)
    return SeenColumn(name, values.alias(""), kind)


class AllColumns:
    """All columns together: which rows repeat, and whether the first line is one of them.

    Args:
        rows: The number of rows.
    """

    def __init__(self, rows: int) -> None:
        self._hashes = np.zeros(rows, dtype=np.uint64)
        self._same_by_chance = 1.0  # the chance that two rows are equal if columns are independent
        self.named_like_values = 0  # columns whose name could be one of their values

    def add(self, seen: SeenColumn) -> None:
        """Take a column into account."""
        self._hashes = self._hashes * np.uint64(0x9E3779B97F4A7C15) + seen.hashes.to_numpy()
        rows = len(self._hashes)
        counts = seen.counts.astype(np.float64)
        equal_pairs = float((counts * (counts - 1)).clip(0).sum())
        self._same_by_chance *= equal_pairs / max(1, rows * (rows - 1))
        self.named_like_values += seen.has_value(header_name(seen.name).strip())

    def findings(self) -> Iterator[Finding]:
        """Yield a finding if rows repeat."""
        rows = len(self._hashes)
        repeated = rows - len(np.unique(self._hashes))
        return row_findings(rows, repeated, rows * rows / 2 * self._same_by_chance)
