"""Encoders, one per kind of column: from the values of a file to the numbers that a model gets."""

import polars as pl

from ...._common.errors import DataError
from ...columns import Column
from .base import Array, Chunks, Encoder, Place, element_of, is_nested, is_plain, is_text
from .categories import Categories, HashedCategories, Lists
from .hashes import stable_hash
from .numbers import Numbers, Vectors

__all__ = [
    "Array",
    "Categories",
    "Chunks",
    "Encoder",
    "HashedCategories",
    "Lists",
    "Numbers",
    "Place",
    "Vectors",
    "encoder_for",
    "is_plain",
    "is_text",
    "stable_hash",
]


def encoder_for(column: Column, sample: pl.Series, *, text: bool) -> Encoder:
    """Return the encoder of a column's kind, after a check that the column can be of that kind.

    Args:
        column: The settings of the column.
        sample: The column in the first rows.
        text: Whether all columns of the file hold text, as in CSV.
    """
    _check(column, sample.dtype)
    if column.kind == "vector":
        exact = not is_nested(sample.dtype) or element_of(sample.dtype) not in (
            pl.Float32,
            pl.Float16,
        )
        return Vectors(column, text=text, length=_vector_length(column, sample), exact=exact)
    if column.kind == "numeric":
        return _numbers(column, sample, text=text)
    if column.kind == "list":
        return Lists(column, text=text)
    if column.buckets:
        return HashedCategories(column, text=text)
    return Categories(column, text=text)


def _check(column: Column, dtype: pl.DataType) -> None:
    """Refuse a column whose type cannot be of its kind."""
    about = f"Column {column.name!r}"
    element = element_of(dtype)
    nested = is_nested(dtype)
    durations = isinstance(dtype, pl.Duration) and column.kind == "categorical"
    if not is_plain(element) or durations or (nested and element.is_temporal()):
        raise DataError(
            f"{about} holds {dtype}, which cannot be read. Leave it out: drop=[{column.name!r}]."
        )
    if nested and column.separator:
        raise DataError(
            f"{about} has separator={column.separator!r}, but holds {dtype} already. Leave it out."
        )
    if column.kind in ("list", "vector") and not nested and not column.separator:
        settings = {"kind": column.kind, "separator": "|"}
        raise DataError(
            f"{about} is to be a {column.kind}, but holds {dtype}. "
            f"Name the separator of its values: columns={ {column.name: settings} }."
        )
    if column.kind in ("numeric", "categorical") and nested:
        raise DataError(
            f"{about} is to be {column.kind}, but holds {dtype}. Make it a 'list' or a 'vector'."
        )


def _numbers(column: Column, sample: pl.Series, *, text: bool) -> Numbers:
    found = Numbers(column, text=text or sample.dtype == pl.String)
    if is_text(sample.dtype):
        sample = sample.cast(pl.String)
    found.plain = sample.cast(pl.Float64, strict=False).null_count() == sample.null_count()
    return found


def _vector_length(column: Column, sample: pl.Series) -> int:
    """Return the length of the vectors, which is that of the first one."""
    if isinstance(sample.dtype, pl.Array):
        return int(sample.dtype.size)
    present = sample.drop_nulls()
    if column.separator:
        present = present.cast(pl.String).replace("", None).drop_nulls()
    if len(present) == 0:
        raise DataError(
            f"Column {column.name!r} is to be a vector, but its first rows are empty, "
            "so its length is unknown."
        )
    if column.separator:
        present = present.str.split(column.separator)
    return int(present.list.len()[0])
