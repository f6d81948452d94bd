"""One encoder a kind of column: how it is read, what it learns from train rows, and the numbers that a model gets.

A column is encoded in two steps. `read` turns blocks of the file into a raw array as they come, before it is known which rows
train. Then `learn` looks at the raw train rows alone, and `encode` makes the final array from any raw rows.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from ..._common.errors import DataError
from .codes import new_codes
from .schema import MISSING_TEXT, Column, default_width
from .splits import scattered

MISSING, UNSEEN, FIRST = 0, 1, 2  # ids; a category's own follow
KNOTS = 1001  # of the quantile scale
SAMPLE = 1 << 17  # values from which quantiles and the most common value are found
LARGEST = float(np.finfo(np.float32).max)
ROUNDING = 64 * float(
    np.finfo(np.float64).eps
)  # of a mean, a deviation below which is that of a constant

Array = NDArray[Any]
Chunks = Callable[[], Iterable[Array]]  # the raw train rows, as often as one likes
Place = Callable[[int], str]  # how to call a row of the block in a message


@dataclass(frozen=True)
class Learnt:
    """What train rows have taught about a column.

    Attributes:
        width: Its dimensions in the model.
        slots: How many numbers a row of it has in a batch.
        categories: How many ids there are, with the two for missing and unseen; 0 for numbers.
        missing: The share of train rows without a value.
        common: The share of train rows at the most common value.
        numbers: Means, deviations and the like, by name.
    """

    width: int
    slots: int
    categories: int
    missing: float
    common: float
    numbers: dict[str, list[float]] = field(default_factory=dict)
    vocabulary: pl.DataFrame | None = field(
        default=None, compare=False, repr=False
    )  # value and count by id; type, see `typed`


class Encoder:
    """The steps that every kind of column has in common."""

    dtype: type[np.generic]  # of the raw array
    slots: int  # of a raw row

    def __init__(self, column: Column, *, text: bool) -> None:
        self.column = column
        self.text = text
        self.floats = False  # which have NaN for a missing value
        self.given: pl.DataType | None = None  # the type of the column in train rows

    def begin(self, dtype: pl.DataType) -> None:
        """Called before the first block of a source, with the type that its column has there."""
        self.text = is_text(dtype)
        self.floats = _element(dtype).is_float()
        self.given = self.given or (pl.String() if self.text else dtype)

    def typed(self, vocabulary: pl.DataFrame) -> pl.DataFrame:
        """With a column of nothing that has the type of the train rows' column: new rows are made like it."""
        return vocabulary.with_columns(pl.lit(None, dtype=self.given).alias("type"))

    def expression(self) -> pl.Expr:
        """What to compute of a block, for all columns at once."""
        return pl.col(self.column.name)

    def read(self, values: pl.Series, given: pl.Series, place: Place) -> Array:
        """The raw rows of a block, from the computed expression and the column as it was given."""
        raise NotImplementedError

    def learn(self, chunks: Chunks, rows: int) -> Learnt:
        """Learn from the raw train rows, of which there are `rows`."""
        raise NotImplementedError

    def encode(self, raw: Array, learnt: Learnt) -> Array:
        """The final rows, (rows, learnt.slots): int32 ids or float32 numbers."""
        raise NotImplementedError


class Categories(Encoder):
    """Categories as ids of a vocabulary: the most frequent comes first."""

    dtype, slots = np.int32, 1

    def __init__(self, column: Column, *, text: bool) -> None:
        super().__init__(column, text=text)
        self.codes = new_codes()

    def expression(self) -> pl.Expr:
        given = pl.col(self.column.name)
        return self.codes.expression(
            (given.fill_nan(None) if self.floats else given).cast(pl.String)
        )

    def read(self, values: pl.Series, given: pl.Series, place: Place) -> Array:
        return self.codes.read(values, given.fill_nan(None) if self.floats else given).reshape(
            -1, 1
        )

    def learn(self, chunks: Chunks, rows: int) -> Learnt:
        counts = np.zeros(self.codes.count + 1, dtype=np.int64)
        filled = 0  # rows with a value
        for raw in chunks():
            counts += np.bincount(raw.ravel(), minlength=len(counts))
            filled += int((raw[:, 0] > 0).sum())
        vocabulary = (
            pl.DataFrame(
                {
                    "value": self.codes.values(),
                    "count": counts[1:],
                    "code": np.arange(1, len(counts), dtype=np.int32),
                }
            )
            .filter(pl.col("count") >= self.column.min_count)
            .sort(["count", "value"], descending=[True, False])
        )
        self.id_of = np.full(len(counts), UNSEEN, dtype=np.int32)
        self.id_of[0] = MISSING
        self.id_of[vocabulary["code"].to_numpy()] = np.arange(
            FIRST, FIRST + len(vocabulary), dtype=np.int32
        )
        most = max(int(counts[1:].max(initial=0)), rows - filled)
        return self.learnt(
            len(vocabulary),
            1 - filled / rows,
            most / rows,
            self.typed(vocabulary.select("value", "count")),
        )

    def learnt(
        self, categories: int, missing: float, common: float, vocabulary: pl.DataFrame | None
    ) -> Learnt:
        """The same for all columns with ids."""
        width = self.column.width or default_width(categories)
        return Learnt(
            width, self.slots, FIRST + categories, missing, min(common, 1.0), vocabulary=vocabulary
        )

    def encode(self, raw: Array, learnt: Learnt) -> Array:
        return self.id_of[raw[:, : learnt.slots]]


class HashedCategories(Encoder):
    """Categories as ids from their hash: no vocabulary, and different categories may share an id."""

    dtype, slots = np.int32, 1

    def expression(self) -> pl.Expr:
        given = pl.col(self.column.name)
        return (given.fill_nan(None) if self.floats else given).cast(pl.String)

    def read(self, values: pl.Series, given: pl.Series, place: Place) -> Array:
        ids = stable_hash(values) % np.uint64(self.column.buckets or 1) + np.uint64(FIRST)
        return np.where(values.is_null().to_numpy(), MISSING, ids).astype(np.int32).reshape(-1, 1)

    def learn(self, chunks: Chunks, rows: int) -> Learnt:
        buckets = self.column.buckets or 1
        counts = np.zeros(FIRST + buckets, dtype=np.int64)
        for raw in chunks():
            counts += np.bincount(raw.ravel(), minlength=len(counts))
        width = self.column.width or default_width(buckets)
        missing, common = float(counts[MISSING]) / rows, float(counts.max()) / rows
        return Learnt(
            width, 1, FIRST + buckets, missing, common, vocabulary=self.typed(pl.DataFrame())
        )

    def encode(self, raw: Array, learnt: Learnt) -> Array:
        return raw


class Lists(Categories):
    """Several categories a row, (rows, longest) with zeros behind the last."""

    def __init__(self, column: Column, *, text: bool) -> None:
        super().__init__(column, text=text)
        self.slots = column.max_length

    def expression(self) -> pl.Expr:
        lists = pl.col(self.column.name)
        if self.column.separator:
            lists = (
                lists.cast(pl.String)
                .str.split(self.column.separator)
                .list.filter(pl.element() != "")
            )
        if self.floats:
            lists = lists.cast(pl.List(pl.Float64)).list.eval(pl.element().fill_nan(None))
        return lists.cast(pl.List(pl.String)).list.drop_nulls()

    def read(self, values: pl.Series, given: pl.Series, place: Place) -> Array:
        lengths = values.list.len().fill_null(0).to_numpy().astype(np.int64)
        filled = values.filter(pl.Series(lengths > 0)).explode()
        codes = self.codes.read(
            filled.to_frame("").select(self.codes.expression(pl.col("")))[""], filled
        )
        place_in_row = np.arange(len(codes)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        row = np.repeat(np.arange(len(lengths)), lengths)
        fits = place_in_row < self.slots
        raw = np.zeros((len(lengths), self.slots), dtype=np.int32)
        raw[row[fits], place_in_row[fits]] = codes[fits]
        return raw

    def learn(self, chunks: Chunks, rows: int) -> Learnt:
        self.slots = max(1, max(int((raw > 0).sum(axis=1).max(initial=0)) for raw in chunks()))
        found = super().learn(chunks, rows)
        return self.learnt(found.categories - FIRST, found.missing, found.common, found.vocabulary)


class Numbers(Encoder):
    """A number a row: 1 wide; 2 where train rows lack values, the second being 1 where there is none."""

    dtype: type[np.generic] = (
        np.float64
    )  # float32 would round large numbers, such as times, before their mean is taken off
    slots = 1
    plain = False  # all numbers that were looked at can be parsed as they are

    def expression(self) -> pl.Expr:
        given = pl.col(self.column.name)
        return (given.cast(pl.String) if self.text else given).cast(pl.Float64, strict=False)

    def read(self, values: pl.Series, given: pl.Series, place: Place) -> Array:
        if (
            values.null_count() > given.null_count()
        ):  # rarely, so only then it is worth while to look for blanks
            values = (
                given.cast(pl.String).str.strip_chars().cast(pl.Float64, strict=False)
                if is_text(given.dtype)
                else values
            )
            self._refuse_text(values, given, place)
        raw = values.to_numpy()
        infinite = np.isinf(raw)
        if infinite.any():
            raise DataError(
                f"{place(int(infinite.argmax()))}, column {self.column.name!r}: expected a finite number, but found "
                f"{given[int(infinite.argmax())]!r:.80}. Make it empty where there is no value."
            )
        return raw.reshape(-1, 1)

    def _refuse_text(self, values: pl.Series, given: pl.Series, place: Place) -> None:
        missing = given.cast(pl.String).str.strip_chars().is_in(MISSING_TEXT)
        wrong = (values.is_null() & given.is_not_null() & ~missing).arg_true()
        if len(wrong):
            row = int(wrong[0])
            raise DataError(
                f"{place(row)}, column {self.column.name!r}: expected a number, as in the first rows, "
                f"but found {given[row]!r:.80}. "
                f"If it holds categories, say so: columns={{{self.column.name!r}: 'categorical'}}."
            )

    def learn(self, chunks: Chunks, rows: int) -> Learnt:
        chosen = _some_of(rows)
        samples: list[Array] = []

        def transformed() -> Iterable[Array]:
            start = 0
            for raw in chunks():
                values = self._transform(raw)
                first, last = np.searchsorted(chosen, (start, start + len(raw)))
                samples.append(values[chosen[first:last] - start])
                start += len(raw)
                yield values

        shift, scale, missing = _moments(transformed())
        sample = np.concatenate(samples)
        numbers = self._numbers(shift, scale, sample) if missing < rows else {}
        width = self.slots + (missing > 0)
        common = _share_of_most_common(sample, missing / rows)
        return Learnt(width, width, 0, missing / rows, common, numbers, self.typed(pl.DataFrame()))

    def _numbers(self, shift: Array, scales: Array, sample: Array) -> dict[str, list[float]]:
        """What the values are to be scaled by."""
        present = sample[~np.isnan(sample).any(axis=1)]
        if self.column.scale == "none":
            return {"shift": [0.0] * self.slots, "scale": [1.0]}
        if self.column.scale == "quantile" and len(present):
            return {"knots": np.quantile(present[:, 0], np.linspace(0, 1, KNOTS)).tolist()}
        scale = float(np.sqrt((scales**2).mean()))
        if not np.isfinite(scale) or not np.isfinite(shift).all():
            raise DataError(
                f"Column {self.column.name!r} holds numbers that are too large to be scaled by their mean and deviation. "
                f"Use another scale: columns={{{self.column.name!r}: {{'scale': 'log'}}}}."
            )
        return {
            "shift": shift.tolist(),
            "scale": [scale if scale > ROUNDING * float(np.abs(shift).max()) else 1.0],
        }

    def _transform(self, raw: Array) -> Array:
        if self.column.scale == "log":
            return np.asarray(np.sign(raw) * np.log1p(np.abs(raw)))
        return raw

    def encode(self, raw: Array, learnt: Learnt) -> Array:
        values = self._transform(raw)
        if "knots" in learnt.numbers:
            values = _rank(values, np.array(learnt.numbers["knots"], dtype=np.float64))
        elif "shift" in learnt.numbers:
            with np.errstate(over="ignore"):
                values = (
                    values - np.array(learnt.numbers["shift"], dtype=np.float64)
                ) / learnt.numbers["scale"][0]
        else:  # no train row has a value, so nothing is known about those of others
            values = np.where(np.isnan(values), np.nan, 0.0)
        found = np.empty((len(raw), learnt.slots), dtype=np.float32)
        lacks = np.isnan(values)
        with np.errstate(over="ignore"):
            found[:, : self.slots] = values
        if lacks.any():
            found[:, : self.slots][lacks] = 0
        np.clip(found, -LARGEST, LARGEST, out=found)  # what float32 cannot hold would be infinite
        if learnt.slots > self.slots:
            found[:, -1] = _any_of_row(lacks)
        return found


class Vectors(Numbers):
    """A vector a row, all of one length: one wide field. It is scaled as a whole, so that its directions stay what they are."""

    def __init__(self, column: Column, *, text: bool, length: int, exact: bool) -> None:
        super().__init__(column, text=text)
        self.slots = length
        self.dtype = (
            np.float64 if exact else np.float32
        )  # half as much to write where the file has no more digits
        if length < 1:
            raise DataError(
                f"Column {column.name!r} is to be a vector, but is empty. Leave it out: drop=[{column.name!r}]."
            )
        if column.scale == "quantile":
            raise DataError(
                f"Column {column.name!r}: a vector has no quantiles. Use scale='standard', 'log' or 'none'."
            )

    def expression(self) -> pl.Expr:
        vectors = pl.col(self.column.name)
        if self.column.separator:
            texts = vectors.cast(pl.String)
            return pl.when(texts != "").then(texts.str.split(self.column.separator))
        return vectors

    def read(self, values: pl.Series, given: pl.Series, place: Place) -> Array:
        lists = values.arr.to_list() if isinstance(values.dtype, pl.Array) else values
        lengths = lists.list.len().to_numpy()
        wrong = np.flatnonzero(~np.isnan(lengths.astype(np.float64)) & (lengths != self.slots))
        if len(wrong):
            raise DataError(
                f"{place(int(wrong[0]))}, column {self.column.name!r}: expected a vector of {self.slots} numbers, as in the "
                f"first row, but found {int(lengths[wrong[0]])}."
            )
        raw = np.full((len(values), self.slots), np.nan, dtype=self.dtype)
        rows = np.flatnonzero(values.is_not_null().to_numpy())
        raw[rows] = self._elements(lists.drop_nulls().explode(), given, rows, place).reshape(
            -1, self.slots
        )
        infinite = np.isinf(raw).any(axis=1)
        if infinite.any():
            raise DataError(
                f"{place(int(infinite.argmax()))}, column {self.column.name!r}: expected finite numbers, but found inf."
            )
        return raw

    def _elements(self, flat: pl.Series, given: pl.Series, rows: Array, place: Place) -> Array:
        """All numbers of a block, one after the other; refuses text that is none."""
        texts = flat.str.strip_chars() if flat.dtype == pl.String else flat
        numbers = texts.cast(pl.Float64 if self.dtype == np.float64 else pl.Float32, strict=False)
        if numbers.null_count() > flat.null_count():
            wrong = (
                numbers.is_null() & flat.is_not_null() & ~texts.cast(pl.String).is_in(MISSING_TEXT)
            ).arg_true()
            if len(wrong):
                row = int(rows[int(wrong[0]) // self.slots])
                raise DataError(
                    f"{place(row)}, column {self.column.name!r}: expected a vector of numbers, but found "
                    f"{flat[int(wrong[0])]!r:.80} in it. If it holds categories, say so: "
                    f"columns={{{self.column.name!r}: 'list'}}."
                )
        return numbers.to_numpy()


def is_text(dtype: pl.DataType) -> bool:
    """Whether a column of this type holds text."""
    return isinstance(dtype, pl.String | pl.Categorical | pl.Enum)


def _element(dtype: pl.DataType) -> pl.DataType:
    """The type of a list's elements; of anything else the type itself."""
    return dtype.inner if isinstance(dtype, pl.List | pl.Array) else dtype  # type: ignore[return-value]


def is_plain(dtype: pl.DataType) -> bool:
    """Whether a value of this type is one number, word or moment."""
    return (
        dtype.is_numeric()
        or dtype.is_temporal()
        or is_text(dtype)
        or dtype in (pl.Boolean, pl.Null)
    )


def encoder_for(column: Column, sample: pl.Series, *, text: bool) -> Encoder:
    """The encoder of a column's kind; checks that the column can be of that kind."""
    dtype = sample.dtype
    nested = isinstance(dtype, pl.List | pl.Array)
    durations = (
        isinstance(dtype, pl.Duration) and column.kind == "categorical"
    )  # polars has no text for them
    if not is_plain(_element(dtype)) or durations or (nested and _element(dtype).is_temporal()):
        raise DataError(
            f"Column {column.name!r} holds {dtype}, which cannot be read. Leave it out: drop=[{column.name!r}]."
        )
    if nested and column.separator:
        raise DataError(
            f"Column {column.name!r} has separator={column.separator!r}, but holds {dtype} already. Leave it out."
        )
    if column.kind in ("list", "vector") and not nested and not column.separator:
        raise DataError(
            f"Column {column.name!r} is to be a {column.kind}, but holds {dtype}. Name the separator of its values: "
            f"columns={{{column.name!r}: {{'kind': {column.kind!r}, 'separator': '|'}}}}."
        )
    if column.kind in ("numeric", "categorical") and nested:
        raise DataError(
            f"Column {column.name!r} is to be {column.kind}, but holds {dtype}. Make it a 'list' or a 'vector'."
        )
    if column.kind == "vector":
        exact = not (nested and _element(dtype) in (pl.Float32, pl.Float16))
        return Vectors(column, text=text, length=_vector_length(column, sample), exact=exact)
    if column.kind == "numeric":
        numbers = Numbers(column, text=text or dtype == pl.String)
        sample = sample.cast(pl.String) if is_text(dtype) else sample
        numbers.plain = sample.cast(pl.Float64, strict=False).null_count() == sample.null_count()
        return numbers
    if column.kind == "list":
        return Lists(column, text=text)
    return HashedCategories(column, text=text) if column.buckets else Categories(column, text=text)


def _vector_length(column: Column, sample: pl.Series) -> int:
    if isinstance(sample.dtype, pl.Array):
        return int(sample.dtype.size)
    present = sample.drop_nulls()
    if column.separator:
        present = present.cast(pl.String).replace("", None).drop_nulls()
    if len(present) == 0:
        raise DataError(
            f"Column {column.name!r} is to be a vector, but its first rows are empty, so its length is unknown."
        )
    lists = present.str.split(column.separator) if column.separator else present
    return int(lists.list.len()[0])


@lru_cache(maxsize=1)  # the same for all columns
def _some_of(rows: int) -> Array:
    """Rows to look at, in order; by lot, for every n-th row would miss what comes in turns."""
    return (
        np.arange(rows)
        if rows <= SAMPLE
        else np.unique(np.random.default_rng(0).integers(0, rows, SAMPLE))
    )


def _any_of_row(mask: Array) -> Array:
    return np.asarray(
        mask[:, 0] if mask.shape[1] == 1 else mask.any(axis=1)
    )  # a reduction over one column takes long


def _moments(chunks: Iterable[Array]) -> tuple[Array, Array, int]:
    """Mean and standard deviation of each column, and how many rows have no value; added up so that large means do no harm."""
    count, mean, spread, missing = 0, np.zeros(1), np.zeros(1), 0
    for raw in chunks:
        lacks = _any_of_row(np.isnan(raw))
        gaps = int(lacks.sum())
        present = (raw[~lacks] if gaps else raw).astype(np.float64, copy=False)
        missing += gaps
        if len(present):
            with np.errstate(
                over="ignore", invalid="ignore"
            ):  # who asks for them looks whether they are finite
                own, step = present.mean(axis=0), len(present)
                distance = own - mean
                spread = (
                    spread
                    + ((present - own) ** 2).sum(axis=0)
                    + distance**2 * count * step / (count + step)
                )
                mean = mean + distance * step / (count + step)
            count += step
    return mean, np.sqrt(spread / max(count, 1)), missing


def _share_of_most_common(sample: Array, missing: float) -> float:
    present = sample[~np.isnan(sample).any(axis=1)]
    if not len(present):
        return missing
    first = np.ascontiguousarray(present[:10_000] if present.shape[1] > 1 else present[:, 0])
    _, counts = np.unique(
        first, axis=0 if first.ndim > 1 else None, return_counts=True
    )  # whole rows take ten times as long
    return max(missing, float(counts.max()) / len(first) * (1 - missing))


def _rank(values: Array, knots: Array) -> Array:
    """The share of train values below, from -1 to 1; equal values get the middle of their ranks."""
    places = np.linspace(-1, 1, len(knots))
    known, first = np.unique(knots, return_index=True)
    last = np.append(first[1:], len(knots)) - 1
    ranked = np.interp(values, known, (places[first] + places[last]) / 2)
    return np.where(np.isnan(values), np.nan, ranked)


def stable_hash(values: pl.Series) -> NDArray[np.uint64]:
    """A 64-bit hash of each text, the same on every machine and in every version; missing ones hash as empty."""
    texts = values.fill_null("")
    lengths = texts.str.len_bytes().to_numpy().astype(np.int64)
    content = np.frombuffer(str(texts.str.join("").item()).encode(), dtype=np.uint8).astype(
        np.uint64
    )
    starts = np.cumsum(lengths) - lengths
    place = np.arange(len(content)) - np.repeat(starts, lengths)
    with np.errstate(over="ignore"):
        powers = np.cumprod(
            np.full(int(lengths.max(initial=0)) + 1, 0x100000001B3, dtype=np.uint64)
        )
        sums = np.concatenate(
            [
                np.zeros(1, np.uint64),
                np.cumsum((content + np.uint64(1)) * powers[place], dtype=np.uint64),
            ]
        )
        found = sums[starts + lengths] - sums[starts] + lengths.astype(np.uint64)
    return scattered(found)
