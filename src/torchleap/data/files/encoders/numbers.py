"""Encoders of numbers: one number or one vector per row, scaled by what train rows teach."""

from collections.abc import Iterator

import numpy as np
import polars as pl

from ...._common.errors import DataError
from ...columns import Column, Learned
from ..schema import MISSING_TEXT
from .base import Array, Chunks, Encoder, Place, is_text
from .scales import any_of_row, common_fraction, moments, rank, some_of

KNOTS = 1001  # of the quantile scale
LARGEST = float(np.finfo(np.float32).max)
ROUNDING = 64 * float(np.finfo(np.float64).eps)  # a deviation below this times the mean is 0


class Numbers(Encoder):
    """One number per row, and a second one if train rows lack values, which is 1 where one is.

    Attributes:
        plain: Whether all numbers in the first rows can be parsed as they are.
    """

    dtype: type[np.generic] = np.float64  # float32 would round large numbers, such as times
    slots = 1
    plain = False

    def expression(self) -> pl.Expr:
        given = pl.col(self.column.name)
        if self.text:
            given = given.cast(pl.String)
        return given.cast(pl.Float64, strict=False)

    def read(self, values: pl.Series, given: pl.Series, place: Place) -> Array:
        if values.null_count() > given.null_count():  # rare, so blanks are looked for only then
            if is_text(given.dtype):
                texts = given.cast(pl.String).str.strip_chars()
                values = texts.cast(pl.Float64, strict=False)
            self._refuse_text(values, given, place)
        raw = values.to_numpy()
        infinite = np.isinf(raw)
        if infinite.any():
            row = int(infinite.argmax())
            raise DataError(
                f"{place(row)}, column {self.column.name!r}: expected a finite number, "
                f"but found {given[row]!r:.80}. Make it empty where there is no value."
            )
        return raw.reshape(-1, 1)

    def _refuse_text(self, values: pl.Series, given: pl.Series, place: Place) -> None:
        missing = given.cast(pl.String).str.strip_chars().is_in(MISSING_TEXT)
        wrong = (values.is_null() & given.is_not_null() & ~missing).arg_true()
        if len(wrong):
            row = int(wrong[0])
            raise DataError(
                f"{place(row)}, column {self.column.name!r}: expected a number, as in the first "
                f"rows, but found {given[row]!r:.80}. If it holds categories, say so: "
                f"columns={{{self.column.name!r}: 'categorical'}}."
            )

    def learn(self, chunks: Chunks, rows: int) -> Learned:
        chosen = some_of(rows)
        samples: list[Array] = []

        def transformed() -> Iterator[Array]:
            start = 0
            for raw in chunks():
                values = self._transform(raw)
                first, last = np.searchsorted(chosen, (start, start + len(raw)))
                samples.append(values[chosen[first:last] - start])
                start += len(raw)
                yield values

        shift, deviations, missing = moments(transformed())
        sample = np.concatenate(samples)
        width = self.slots + (missing > 0)
        return Learned(
            width=width,
            slots=width,
            categories=0,
            missing=missing / rows,
            common=common_fraction(sample, missing / rows),
            numbers=self._numbers(shift, deviations, sample) if missing < rows else {},
        )

    def _numbers(self, shift: Array, deviations: Array, sample: Array) -> dict[str, list[float]]:
        """Return the numbers that values are scaled by.

        Args:
            shift: The mean of each number of a row.
            deviations: The standard deviation of each number of a row.
            sample: Some of the train rows.
        """
        present = sample[~np.isnan(sample).any(axis=1)]
        if self.column.scale == "none":
            return {"shift": [0.0] * self.slots, "scale": [1.0]}
        if self.column.scale == "quantile" and len(present):
            return {"knots": np.quantile(present[:, 0], np.linspace(0, 1, KNOTS)).tolist()}
        scale = float(np.sqrt((deviations**2).mean()))
        if not np.isfinite(scale) or not np.isfinite(shift).all():
            raise DataError(
                f"Column {self.column.name!r} holds numbers that are too large to be scaled by "
                "their mean and deviation. Use another scale: "
                f"columns={{{self.column.name!r}: {{'scale': 'log'}}}}."
            )
        if scale <= ROUNDING * float(np.abs(shift).max()):  # the column is constant
            scale = 1.0
        return {"shift": shift.tolist(), "scale": [scale]}

    def _transform(self, raw: Array) -> Array:
        if self.column.scale == "log":
            return np.asarray(np.sign(raw) * np.log1p(np.abs(raw)))
        return raw

    def encode(self, raw: Array, learned: Learned) -> Array:
        values = self._scaled(self._transform(raw), learned.numbers)
        found = np.empty((len(raw), learned.slots), dtype=np.float32)
        lacks = np.isnan(values)
        with np.errstate(over="ignore"):
            found[:, : self.slots] = values
        if lacks.any():
            found[:, : self.slots][lacks] = 0
        np.clip(found, -LARGEST, LARGEST, out=found)  # else numbers beyond float32 are infinite
        if learned.slots > self.slots:
            found[:, -1] = any_of_row(lacks)
        return found

    def _scaled(self, values: Array, numbers: dict[str, list[float]]) -> Array:
        if "knots" in numbers:
            return rank(values, np.array(numbers["knots"], dtype=np.float64))
        if "shift" in numbers:
            shift = np.array(numbers["shift"], dtype=np.float64)
            with np.errstate(over="ignore"):
                return np.asarray((values - shift) / numbers["scale"][0])
        # no train row has a value, so nothing is known about those of others
        return np.where(np.isnan(values), np.nan, 0.0)


class Vectors(Numbers):
    """One vector per row, all of one length: one wide field.

    All numbers of a vector are divided by the same deviation, so that directions stay the same.

    Args:
        column: The settings of the column.
        text: Whether all columns of the file hold text.
        length: The length of each vector.
        exact: Whether the file holds more digits than float32 does.
    """

    def __init__(self, column: Column, *, text: bool, length: int, exact: bool) -> None:
        super().__init__(column, text=text)
        self.slots = length
        self.dtype = np.float64 if exact else np.float32  # float32 takes half of the disk
        if length < 1:
            raise DataError(
                f"Column {column.name!r} is to be a vector, but is empty. "
                f"Leave it out: drop=[{column.name!r}]."
            )
        if column.scale == "quantile":
            raise DataError(
                f"Column {column.name!r}: a vector has no quantiles. "
                "Use scale='standard', 'log' or 'none'."
            )

    def expression(self) -> pl.Expr:
        vectors = pl.col(self.column.name)
        if not self.column.separator:
            return vectors
        texts = vectors.cast(pl.String)
        return pl.when(texts != "").then(texts.str.split(self.column.separator))

    def read(self, values: pl.Series, given: pl.Series, place: Place) -> Array:
        lists = values
        if isinstance(values.dtype, pl.Array):
            lists = values.arr.to_list()
        self._refuse_lengths(lists.list.len().to_numpy(), place)
        raw = np.full((len(values), self.slots), np.nan, dtype=self.dtype)
        rows = np.flatnonzero(values.is_not_null().to_numpy())
        elements = self._elements(lists.drop_nulls().explode(), rows, place)
        raw[rows] = elements.reshape(-1, self.slots)
        infinite = np.isinf(raw).any(axis=1)
        if infinite.any():
            raise DataError(
                f"{place(int(infinite.argmax()))}, column {self.column.name!r}: "
                "expected finite numbers, but found inf."
            )
        return raw

    def _refuse_lengths(self, lengths: Array, place: Place) -> None:
        is_there = ~np.isnan(lengths.astype(np.float64))
        wrong = np.flatnonzero(is_there & (lengths != self.slots))
        if len(wrong):
            row = int(wrong[0])
            raise DataError(
                f"{place(row)}, column {self.column.name!r}: expected a vector of {self.slots} "
                f"numbers, as in the first row, but found {int(lengths[row])}."
            )

    def _elements(self, flat: pl.Series, rows: Array, place: Place) -> Array:
        """Return all numbers of a block, one after the other; refuse text that is not a number.

        Args:
            flat: The elements of all vectors.
            rows: The row of the block that each vector is in.
            place: Returns the name of a row of the block.
        """
        texts = flat
        if flat.dtype == pl.String:
            texts = flat.str.strip_chars()
        kind = pl.Float64 if self.dtype == np.float64 else pl.Float32
        numbers = texts.cast(kind, strict=False)
        if numbers.null_count() > flat.null_count():
            is_word = ~texts.cast(pl.String).is_in(MISSING_TEXT)
            wrong = (numbers.is_null() & flat.is_not_null() & is_word).arg_true()
            if len(wrong):
                first = int(wrong[0])
                raise DataError(
                    f"{place(int(rows[first // self.slots]))}, column {self.column.name!r}: "
                    f"expected a vector of numbers, but found {flat[first]!r:.80} in it. "
                    "If it holds categories, say so: "
                    f"columns={{{self.column.name!r}: 'list'}}."
                )
        return numbers.to_numpy()
