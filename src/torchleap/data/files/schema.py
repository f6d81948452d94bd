"""Schema: the kind of each column, inferred from the first rows or given by the user."""

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import polars as pl
from polars import selectors

from ..._common.errors import DataError, nearest
from ..._common.plain import read_toml
from ..columns import Column, Kind

FEW_VALUES = 10  # whole numbers with at most that many values are categories
MOSTLY_NUMBERS = 0.95  # from this fraction on, text among numbers is an error, not a category
EXACT = 2**53  # the largest whole number up to which a float holds all
MISSING_TEXT = ("", "NA", "N/A", "nan", "NaN", "null", "NULL", "None")
LONG_ID = r"^[+-]?\d{16,}$"  # a whole number of which a float would lose digits
_ID_LIKE = re.compile(r"(^|[_.\s-])(id|ids|uid|code|zip|zipcode|hash|key)$|[a-z]Id$", re.IGNORECASE)

GivenColumn = Column | Kind | Mapping[str, Any]
Given = Mapping[str, GivenColumn]


def given_columns(columns: Given | str | Path | None) -> dict[str, GivenColumn]:
    """Return the settings of columns that the user gives.

    Args:
        columns: Settings by the name of a column, or the path of a TOML file with a table
            [columns.NAME] for each; None gives none.
    """
    if columns is None:
        return {}
    if isinstance(columns, Mapping):
        return dict(columns)
    if not isinstance(columns, str | Path):
        raise DataError(
            f"columns= takes {{name: kind}} or the path of a TOML file, but found {columns!r}."
        )
    try:
        content = read_toml(columns, DataError)
    except FileNotFoundError as error:
        raise DataError(f"There is no schema file {columns}.") from error
    except OSError as error:
        raise DataError(f"The schema file {columns} cannot be read: {error.strerror}.") from error
    unknown = set(content) - {"columns"}
    if unknown or not isinstance(content.get("columns"), dict):
        found = ", ".join(sorted(unknown)) or "none"
        raise DataError(f"{columns}: expected tables [columns.NAME] alone, but found {found}.")
    return dict(content["columns"])


def complete(name: str, given: GivenColumn, inferred: Column) -> Column:
    """Return the settings that the user gives for a column, completed by those inferred."""
    if isinstance(given, Column):
        return replace(given, name=name)
    if isinstance(given, str):
        return replace(inferred, kind=given)
    if not isinstance(given, Mapping):
        raise DataError(
            f"Column {name!r}: expected a kind, a Column or settings such as {{'kind': ...}}, "
            f"but found {given!r}."
        )
    known = {field.name for field in fields(Column)} - {"name"}
    for key in given:
        if key not in known:
            raise DataError(f"Column {name!r} has no setting {key!r}. {nearest(key, known)}")
    return replace(inferred, **given)


def infer(sample: pl.DataFrame, names: Iterable[str], *, text: bool) -> dict[str, Column]:
    """Return a guess of the settings of each column.

    Args:
        sample: The first rows.
        names: The columns to guess.
        text: Whether the columns hold text, whatever it means, as in CSV.
    """
    return {name: Column(name, _kind(sample[name], text=text)) for name in names}


def _kind(values: pl.Series, *, text: bool) -> Kind:
    dtype = values.dtype
    if isinstance(dtype, pl.Array):
        return "vector" if dtype.inner.is_numeric() else "list"
    if isinstance(dtype, pl.List):
        is_vector = dtype.inner.is_float() and _have_one_length(values)
        return "vector" if is_vector else "list"
    if dtype == pl.String and text:
        return _kind_of_text(values)
    if dtype.is_float() or dtype.is_decimal() or dtype.is_temporal() or dtype == pl.Boolean:
        return "numeric"
    if dtype.is_integer():
        return _kind_of_integers(values.drop_nulls())
    return "categorical"


def _have_one_length(lists: pl.Series) -> bool:
    """Return whether all lists have the same length, of at least 2."""
    lengths = lists.drop_nulls().list.len()
    return len(lengths) > 0 and lengths.n_unique() == 1 and int(lengths[0]) > 1


def _kind_of_text(values: pl.Series) -> Kind:
    """Return the kind of a column of CSV."""
    stripped = values.str.strip_chars()
    present = stripped.filter(~stripped.is_in(MISSING_TEXT)).drop_nulls()
    numbers = present.cast(pl.Float64, strict=False).drop_nulls()
    if len(present) == 0 or len(numbers) < MOSTLY_NUMBERS * len(present):
        return "categorical"
    if present.str.contains(LONG_ID).any():
        return "categorical"
    whole = present.cast(pl.Int64, strict=False).drop_nulls()
    if len(whole) < len(numbers):
        return "numeric"
    return _kind_of_whole_numbers(values.name, numbers)


def _kind_of_integers(present: pl.Series) -> Kind:
    if not (present.cast(pl.Float64).abs() <= EXACT).all():
        return "categorical"
    return _kind_of_whole_numbers(present.name, present)


def _kind_of_whole_numbers(name: str, numbers: pl.Series) -> Kind:
    """Return "categorical" for ids by their name, and for a few values but not just two."""
    is_few = 2 < numbers.n_unique() <= FEW_VALUES and len(numbers) > 10 * FEW_VALUES
    if is_few or _ID_LIKE.search(name):
        return "categorical"
    return "numeric"


def present_text(name: str) -> pl.Expr:
    """Return a column of text without blanks around its cells; null where they mean no value."""
    text = selectors.by_name(name).as_expr().str.strip_chars()
    return pl.when(~text.is_in(MISSING_TEXT)).then(text).alias(name)


def default_width(categories: int) -> int:
    """Return the width of an embedding, which grows slowly with the number of categories.

    >>> default_width(10), default_width(1_000), default_width(1_000_000)
    (6, 64, 64)
    """
    return max(2, min(64, round(1.6 * math.pow(categories, 0.56))))
