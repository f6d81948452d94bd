"""Labels: which of two words is the positive one, and the cure for a label that is not a label."""

import re
from collections.abc import Iterator, Sequence
from typing import Any

import polars as pl

from ..._common.checks import is_number
from ..._common.errors import DataError, nearest, shown
from ..._common.text import plural
from ..columns import plain
from .encoders.base import is_plain, is_text
from .schema import MISSING_TEXT
from .source import Source

OPPOSITES = {  # the positive word, and the words that it is the opposite of
    "true": ("false",),
    "t": ("f",),
    "yes": ("no",),
    "y": ("n",),
    "1": ("-1",),
    "pos": ("neg",),
    "positive": ("negative",),
    "on": ("off",),
    "success": ("failure", "fail"),
    "good": ("bad",),
}
_NEGATED = re.compile(r"^(?:no|not|non)[\s_-]+(.+)$")
NAMED = 6  # classes that a message lists, with their counts
MOST_KNOWN = 1_000  # values of a label that a message can find the nearest among
Counts = Sequence[tuple[str, int]]  # the values of a label, and the number of rows of each


def label_problems(threshold: Any, positive: Any) -> Iterator[str]:
    """Yield what is wrong with the settings that make a label, as sentences without a full stop."""
    if threshold is not None and positive is not None:
        yield "Expected threshold= or positive=, but found both"
    if threshold is not None and not is_number(threshold):
        yield f"threshold must be a number, but is {threshold!r}"
    if positive is not None and not isinstance(plain(positive), str | int | float):
        yield f"positive must be a value of the label's column, but is {positive!r}"


def obvious_positive(values: Sequence[str]) -> str | None:
    """Return which of two values is the positive one where nobody would doubt it, else None.

    >>> obvious_positive(["no", "yes"]), obvious_positive(["Click", "no-click"])
    ('yes', 'Click')
    >>> obvious_positive(["red", "blue"]) is None
    True
    """
    if len(values) != 2:
        return None
    for positive, negative in (values, values[::-1]):
        word = _word(positive)
        opposite = _word(negative)
        negated = _NEGATED.match(opposite)
        if opposite in OPPOSITES.get(word, ()) or (negated and negated[1] == word):
            return positive
    return None


def _word(value: str) -> str:
    """Return a value in small letters; 1.0 as 1."""
    return re.sub(r"^([+-]?\d+)\.0+$", r"\1", value.strip().casefold())


def positive_of(
    sources: Sequence[Source], label: str, sample: pl.Series, given: object
) -> str | None:
    """Return the positive value where the label's two values leave no doubt, else None.

    All rows are read, but only if the first ones hold something other than 0 and 1.

    Args:
        sources: All sources of rows.
        label: The name of the label's column.
        sample: The label in the first rows.
        given: The value that the user calls positive, which must be in some row; None if none.
    """
    if not is_plain(sample.dtype):
        return None
    if isinstance(given, str):
        _refuse_absent(sources, label, sample, given)
    if given is not None:
        return None
    texts = sample.to_frame().select(_values(label)).to_series()
    numbers = texts.cast(pl.Float64, strict=False)
    if numbers.is_in([0.0, 1.0]).fill_null(value=False).all():
        return None
    return obvious_positive(_distinct(sources, label, most=3))


def _values(label: str) -> pl.Expr:
    """Return the label's values as text, without those that are missing."""
    text = pl.col(label).cast(pl.String, strict=False).str.strip_chars()
    return text.filter(text.is_not_null() & ~text.is_in(MISSING_TEXT))


def _distinct(sources: Sequence[Source], label: str, most: int) -> list[str]:
    found: set[str] = set()
    for source in sources:
        values = source.changed(lambda frame: frame.select(_values(label).unique()))
        found |= set(values.head(most)[label].to_list())
    return sorted(found)


def _refuse_absent(sources: Sequence[Source], label: str, sample: pl.Series, positive: str) -> None:
    wanted = positive.strip()
    if (sample.cast(pl.String, strict=False).str.strip_chars() == wanted).any():
        return
    known = _distinct(sources, label, most=MOST_KNOWN)
    number = number_of(wanted)
    is_known = wanted in known
    if number is not None:
        is_known = is_known or any(number_of(value) == number for value in known)
    if not is_known:
        raise DataError(f"No row has {shown(positive)} in {label!r}. {nearest(wanted, known)}")


def number_of(text: str) -> float | None:
    """Return the number that a text stands for; None if it does not stand for one."""
    try:
        return float(text)
    except ValueError:
        return None


def cure_of(given: pl.Series, row: int) -> str:
    """Return what to do about a label that is not 0 or 1, from the rows around it.

    Args:
        given: The label's column in a block of rows.
        row: The row of the block whose label is wrong.
    """
    if given[row] != given[row] or str(given[row]).strip() in MISSING_TEXT:
        return "Leave the rows without a label out."
    present = given.drop_nulls()
    texts = present.cast(pl.String) if is_text(given.dtype) else present
    numbers = texts.cast(pl.Float64, strict=False).drop_nulls()
    words = present.cast(pl.String, strict=False).str.strip_chars()
    counts = words.value_counts(sort=True, name="rows").rows()
    if len(numbers) <= len(given) / 2:
        return f"{_classes(counts)} {_choice(counts)}"
    if numbers.n_unique() > NAMED:
        return f"If it is a rating, {_rating(numbers)}."
    ordered = sorted(counts, key=_by_number)
    if len(counts) == 2:
        return f"{_classes(ordered)} {_choice(ordered)}"
    return (
        f"{_classes(ordered)} If it is a rating, {_rating(numbers)}; "
        f"or count one value as 1: positive={shown(ordered[-1][0])}."
    )


def _by_number(value_and_rows: tuple[str, int]) -> tuple[float, str]:
    """Return the key that sorts values by their numbers, and words behind them."""
    value = value_and_rows[0]
    number = number_of(value)
    if number is None:
        number = float("inf")
    return number, value


def _rating(numbers: pl.Series) -> str:
    middle = float(numbers.median())  # type: ignore[arg-type]
    below_the_largest = numbers.filter(numbers < numbers.max()).max()
    middle = min(middle, float(below_the_largest or middle))  # type: ignore[arg-type]
    return f"say from where on it counts as 1: threshold={middle:g} (above it is 1)"


def _classes(counts: Counts) -> str:
    """Return how many values there are, with the counts of the first ones."""
    named = [f"{shown(value, 40)} ({plural(rows, 'row')})" for value, rows in counts[:NAMED]]
    if len(counts) == 1:
        return f"It has the one value {named[0]}."
    if len(counts) == 2:
        return f"It has two values, {named[0]} and {named[1]}:"
    more = ""
    if len(counts) > NAMED:
        more = f" and {len(counts) - NAMED:,} more"
    return f"It has {len(counts):,} values: {', '.join(named)}{more}."


def _choice(counts: Counts) -> str:
    """Return how to make a label of the values, with the last one as the example."""
    value = shown(counts[-1][0])
    if len(counts) == 2:
        return f"say which one is 1: positive={value}."
    return f"Is it the label? If so, say which value is 1: positive={value}."
