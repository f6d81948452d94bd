"""Columns of two sources made alike: valid, test or new rows get the types of the train rows."""

from collections.abc import Mapping

import polars as pl

from ..._common.errors import DataError
from ..columns import Kind
from .encoders.base import element_of, is_nested, is_text
from .source import Source

NUMBERS = ("whole", "fraction")


def made_alike(source: Source, ours: pl.Schema, kinds: Mapping[str, Kind]) -> Source:
    """Return a source whose columns can be compared with those of train rows.

    Args:
        source: Rows whose file may have other types.
        ours: The types of the train rows.
        kinds: The kind of each column that is read.
    """
    theirs = source.schema()
    changes = []
    for name, kind in kinds.items():
        if theirs[name] != ours[name]:
            found = _cast(pl.col(name), kind, theirs[name], ours[name])
            if found is None:
                raise DataError(
                    f"{source.name}: column {name!r} holds {theirs[name]}, "
                    f"but {ours[name]} in the train rows. Give both the same type."
                )
            changes.append(found.alias(name))
    if not changes:
        return source
    return source.changed(lambda frame: frame.with_columns(changes))


def _cast(column: pl.Expr, kind: Kind, theirs: pl.DataType, ours: pl.DataType) -> pl.Expr | None:
    """Return a column of one type as one of another; None if there is no safe way."""
    if pl.Null in (theirs, ours):
        return column
    if not is_nested(theirs) and not is_nested(ours):
        return _cast_value(column, kind, theirs, ours)
    if not is_nested(theirs) or not is_nested(ours):
        return None
    if kind == "vector":
        return column
    element = _cast_value(pl.element(), "categorical", element_of(theirs), element_of(ours))
    if element is None:
        return None
    return column.cast(pl.List(element_of(theirs))).list.eval(element)


def _cast_value(
    value: pl.Expr, kind: Kind, theirs: pl.DataType, ours: pl.DataType
) -> pl.Expr | None:
    """Return a value of one type as one of another that it can be compared with, else None."""
    their_sort = _sort(theirs)
    our_sort = _sort(ours)
    sorts = {their_sort, our_sort}
    if theirs == ours:
        return value
    if kind == "numeric" and not sorts & {"moment", "other"}:
        return value  # numbers are parsed from either, and other text is reported with its row
    if sorts == {"moment"} and type(theirs) is type(ours):
        return value.cast(ours)
    if sorts <= {"text", "whole"}:
        return value.cast(pl.String)
    if our_sort == "whole" and their_sort == "fraction":
        return _as_whole_text(value)
    if our_sort == "fraction" and their_sort in NUMBERS:
        return value.cast(ours)
    return None


def _as_whole_text(value: pl.Expr) -> pl.Expr:
    """Return fractions as text, whole ones as whole numbers.

    So pandas writes whole numbers of which some are missing.
    """
    number = value.cast(pl.Float64)
    whole = number.cast(pl.Int64, strict=False)
    as_fraction = number.fill_nan(None).cast(pl.String)
    return pl.when(whole == number).then(whole.cast(pl.String)).otherwise(as_fraction)


def _sort(dtype: pl.DataType) -> str:
    if is_text(dtype):
        return "text"
    if dtype.is_integer():
        return "whole"
    if dtype.is_numeric():
        return "fraction"
    if dtype.is_temporal():
        return "moment"
    if dtype == pl.Boolean:
        return "truth"
    return "other"
