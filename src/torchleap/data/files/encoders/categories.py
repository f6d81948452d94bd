"""Encoders of categories: ids of a vocabulary, hashed ids, and lists of ids."""

import numpy as np
import polars as pl

from ...columns import Column, Learned
from ..codes import new_codes
from ..schema import default_width
from .base import Array, Chunks, Encoder, Place
from .hashes import stable_hash

MISSING = 0  # the id of a missing value
UNSEEN = 1  # the id of a value that train rows lack, or nearly
FIRST = 2  # the id of the first category


class Categories(Encoder):
    """Categories as ids of a vocabulary: the most frequent comes first."""

    dtype = np.int32
    slots = 1

    def __init__(self, column: Column, *, text: bool) -> None:
        super().__init__(column, text=text)
        self.codes = new_codes()

    def expression(self) -> pl.Expr:
        given = self.without_nan(pl.col(self.column.name))
        return self.codes.expression(given.cast(pl.String))

    def read(self, values: pl.Series, given: pl.Series, place: Place) -> Array:
        return self.codes.read(values, self.without_nan(given)).reshape(-1, 1)

    def learn(self, chunks: Chunks, rows: int) -> Learned:
        counts = np.zeros(self.codes.count + 1, dtype=np.int64)
        filled = 0  # rows with a value
        for raw in chunks():
            counts += np.bincount(raw.ravel(), minlength=len(counts))
            filled += int((raw[:, 0] > 0).sum())
        self.vocabulary = self._learn_vocabulary(counts)
        most = max(int(counts[1:].max(initial=0)), rows - filled)
        categories = len(self.vocabulary)
        return Learned(
            width=self.column.width or default_width(categories),
            slots=self.slots,
            categories=FIRST + categories,
            missing=1 - filled / rows,
            common=min(most / rows, 1.0),
        )

    def _learn_vocabulary(self, counts: Array) -> pl.DataFrame:
        """Return the values with enough train rows, and number them.

        Args:
            counts: The number of train rows of each code; the first is of missing values.
        """
        codes = np.arange(1, len(counts), dtype=np.int32)
        known = pl.DataFrame({"value": self.codes.values(), "count": counts[1:], "code": codes})
        frequent = known.filter(pl.col("count") >= self.column.min_count)
        ordered = frequent.sort(["count", "value"], descending=[True, False])
        self.number(ordered["code"].to_numpy(), len(counts))
        return ordered.select("value", "count")

    def number(self, codes: Array, count: int) -> None:
        """Number the categories in the order of their codes; other codes are unseen.

        Args:
            codes: The code of each category, in the order of their ids.
            count: The number of all codes, including 0 for missing values.
        """
        self.id_of = np.full(count, UNSEEN, dtype=np.int32)
        self.id_of[0] = MISSING
        self.id_of[codes] = np.arange(FIRST, FIRST + len(codes), dtype=np.int32)

    def encode(self, raw: Array, learned: Learned) -> Array:
        return self.id_of[raw[:, : learned.slots]]


class HashedCategories(Encoder):
    """Categories as ids from their hash: no vocabulary, and categories may share an id."""

    dtype = np.int32
    slots = 1

    def expression(self) -> pl.Expr:
        given: pl.Expr = self.without_nan(pl.col(self.column.name))
        return given.cast(pl.String)

    def read(self, values: pl.Series, given: pl.Series, place: Place) -> Array:
        ids = stable_hash(values) % np.uint64(self.column.buckets or 1) + np.uint64(FIRST)
        with_missing = np.where(values.is_null().to_numpy(), MISSING, ids)
        return with_missing.astype(np.int32).reshape(-1, 1)

    def learn(self, chunks: Chunks, rows: int) -> Learned:
        buckets = self.column.buckets or 1
        counts = np.zeros(FIRST + buckets, dtype=np.int64)
        for raw in chunks():
            counts += np.bincount(raw.ravel(), minlength=len(counts))
        return Learned(
            width=self.column.width or default_width(buckets),
            slots=1,
            categories=FIRST + buckets,
            missing=float(counts[MISSING]) / rows,
            common=float(counts.max()) / rows,
        )

    def encode(self, raw: Array, learned: Learned) -> Array:
        return raw


class Lists(Categories):
    """Several categories per row, (rows, longest) with zeros behind the last."""

    def __init__(self, column: Column, *, text: bool) -> None:
        super().__init__(column, text=text)
        self.slots = column.max_length

    def expression(self) -> pl.Expr:
        lists = pl.col(self.column.name)
        if self.column.separator:
            parts = lists.cast(pl.String).str.split(self.column.separator)
            lists = parts.list.filter(pl.element() != "")
        if self.floats:
            lists = lists.cast(pl.List(pl.Float64)).list.eval(pl.element().fill_nan(None))
        return lists.cast(pl.List(pl.String)).list.drop_nulls()

    def read(self, values: pl.Series, given: pl.Series, place: Place) -> Array:
        lengths = values.list.len().fill_null(0).to_numpy().astype(np.int64)
        filled = values.filter(pl.Series(lengths > 0)).explode()
        computed = filled.to_frame("").select(self.codes.expression(pl.col("")))[""]
        codes = self.codes.read(computed, filled)
        starts = np.cumsum(lengths) - lengths
        place_in_row = np.arange(len(codes)) - np.repeat(starts, lengths)
        row = np.repeat(np.arange(len(lengths)), lengths)
        fits = place_in_row < self.slots
        raw = np.zeros((len(lengths), self.slots), dtype=np.int32)
        raw[row[fits], place_in_row[fits]] = codes[fits]
        return raw

    def learn(self, chunks: Chunks, rows: int) -> Learned:
        longest = max(int((raw > 0).sum(axis=1).max(initial=0)) for raw in chunks())
        self.slots = max(1, longest)
        return super().learn(chunks, rows)
