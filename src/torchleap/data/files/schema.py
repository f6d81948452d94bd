"""Columns: what each column of a user's file is, and how it is to become numbers for a model."""

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import polars as pl

from ..._common.checks import is_whole
from ..._common.errors import DataError, nearest
from ..._common.plain import read_toml

Kind = Literal["numeric", "categorical", "list", "vector"]
Scale = Literal["standard", "quantile", "log", "none"]

FEW_VALUES = 10  # whole numbers with at most that many values are categories
MOSTLY_NUMBERS = (
    0.95  # from that share on, text among numbers is an error to be told, not a category
)
MOST_BUCKETS, LONGEST_LIST = 100_000_000, 10_000
MISSING_TEXT = ("", "NA", "N/A", "nan", "NaN", "null", "NULL", "None")
_ID_LIKE = re.compile(r"(^|[_.\s-])(id|ids|uid|code|zip|zipcode|hash|key)$|[a-z]Id$", re.IGNORECASE)


@dataclass(frozen=True)
class Column:
    """One input column: its kind, and the settings of its kind.

    Args:
        width: Its dimensions in the model: of the embedding of categories. None is by rule; numbers and vectors have their own.
        scale: Of numbers: "standard" subtracts the mean and divides by the standard deviation, "quantile" gives each its rank
            from -1 to 1, "log" standardises sign(x) * log(1 + |x|), "none" leaves them. A vector is scaled as a whole.
        min_count: Categories with fewer train rows share one id with those that train rows do not have.
        buckets: Hash categories into that many ids instead of keeping a vocabulary.
        separator: Between the categories of a list that is given as text, such as "|".
        max_length: Categories of a list beyond that many are left out.
    """

    name: str
    kind: Kind
    width: int | None = None
    scale: Scale = "standard"
    min_count: int = 2
    buckets: int | None = None
    separator: str | None = None
    max_length: int = 20

    def __post_init__(self) -> None:
        for field in fields(self):
            object.__setattr__(self, field.name, plain(getattr(self, field.name)))
        rules = {
            f"kind must be one of {', '.join(get_args(Kind))}, but is {self.kind!r}": self.kind
            in get_args(Kind),
            f"scale must be one of {', '.join(get_args(Scale))}, but is {self.scale!r}": self.scale
            in get_args(Scale),
            f"width must be a whole number of at least 1, but is {self.width!r}": self.width is None
            or _positive(self.width),
            f"min_count must be a whole number of at least 1, but is {self.min_count!r}": _positive(
                self.min_count
            ),
            f"buckets must be a whole number from 1 to {MOST_BUCKETS:,}, but is {self.buckets!r}": self.buckets
            is None
            or _positive(self.buckets, MOST_BUCKETS),
            f"max_length must be a whole number from 1 to {LONGEST_LIST:,}, but is {self.max_length!r}": _positive(
                self.max_length, LONGEST_LIST
            ),
            f"separator must be text, such as '|', but is {self.separator!r}": self.separator
            is None
            or (isinstance(self.separator, str) and self.separator != ""),
            f"buckets are for categories, not for kind={self.kind!r}": self.buckets is None
            or self.kind == "categorical",
        }
        problems = [sentence for sentence, holds in rules.items() if not holds]
        if problems:
            raise DataError(f"Column {self.name!r}: {'; '.join(problems)}.")


def plain(value: Any) -> Any:
    """A number of numpy as one of Python, which JSON knows; anything else as it is."""
    return value.item() if isinstance(value, np.generic) else value


def _positive(value: Any, most: int | None = None) -> bool:
    return is_whole(value) and value >= 1 and (most is None or value <= most)


Given = Mapping[str, "Column | Kind | Mapping[str, Any]"]


def given_columns(
    columns: Given | str | Path | None,
) -> dict[str, Column | Kind | Mapping[str, Any]]:
    """What the user says about columns, as a mapping or in a TOML file with a table [columns.NAME] for each."""
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
        raise DataError(
            f"{columns}: expected tables [columns.NAME] alone, but found {', '.join(sorted(unknown)) or 'none'}."
        )
    return dict(content["columns"])


def complete(name: str, given: Column | Kind | Mapping[str, Any], inferred: Column) -> Column:
    """What the user says of a column, and what was inferred where the user is silent."""
    if isinstance(given, Column):
        return replace(given, name=name)
    if isinstance(given, str):
        return replace(inferred, kind=given)
    if not isinstance(given, Mapping):
        raise DataError(
            f"Column {name!r}: expected a kind, a Column or settings such as {{'kind': ...}}, but found {given!r}."
        )
    known = {field.name for field in fields(Column)} - {"name"}
    for key in given:
        if key not in known:
            raise DataError(f"Column {name!r} has no setting {key!r}. {nearest(key, known)}")
    return replace(inferred, **given)


def infer(sample: pl.DataFrame, names: Iterable[str], *, text: bool) -> dict[str, Column]:
    """Guess the kind of each column from its first rows.

    Args:
        text: The columns hold text, as CSV does, whatever they mean.
    """
    return {name: _infer(sample[name], text=text) for name in names}


def _infer(values: pl.Series, *, text: bool) -> Column:
    name, dtype = values.name, values.dtype
    if isinstance(dtype, pl.Array):
        return Column(name, "vector" if dtype.inner.is_numeric() else "list")
    if isinstance(dtype, pl.List):
        lengths = values.drop_nulls().list.len()
        even = len(lengths) > 0 and lengths.n_unique() == 1 and int(lengths[0]) > 1
        return Column(name, "vector" if dtype.inner.is_float() and even else "list")
    if dtype == pl.String and text:
        stripped = values.str.strip_chars()
        present = stripped.filter(~stripped.is_in(MISSING_TEXT)).drop_nulls()
        numbers = present.cast(pl.Float64, strict=False).drop_nulls()
        if len(numbers) < MOSTLY_NUMBERS * len(present) or len(present) == 0:
            return Column(name, "categorical")
        if present.str.contains(
            r"^[+-]?\d{16,}$"
        ).any():  # an id, of which a float would lose digits
            return Column(name, "categorical")
        whole = len(present.cast(pl.Int64, strict=False).drop_nulls()) >= len(numbers)
        return Column(name, _kind_of_numbers(name, numbers, whole=whole))
    if dtype.is_float() or dtype.is_decimal() or dtype.is_temporal() or dtype == pl.Boolean:
        return Column(name, "numeric")
    if dtype.is_integer():
        present = values.drop_nulls()
        exact = bool((present.cast(pl.Float64).abs() <= 2**53).all())  # a float holds them
        return Column(name, _kind_of_numbers(name, present, whole=True) if exact else "categorical")
    return Column(name, "categorical")


def _kind_of_numbers(name: str, numbers: pl.Series, *, whole: bool) -> Kind:
    """Whole numbers are categories if they are called an id, or take a few values but not just two."""
    if not whole:
        return "numeric"
    few = 2 < numbers.n_unique() <= FEW_VALUES and len(numbers) > 10 * FEW_VALUES
    return "categorical" if few or _ID_LIKE.search(name) else "numeric"


def default_width(categories: int) -> int:
    """The width of an embedding, growing slowly with the number of categories.

    >>> default_width(10), default_width(1_000), default_width(1_000_000)
    (6, 64, 64)
    """
    return max(2, min(64, round(1.6 * math.pow(categories, 0.56))))
