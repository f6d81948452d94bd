"""Labels: which of two words is the positive one, and what to do about a label that is not 0 or 1."""

import re
from collections.abc import Sequence

import polars as pl

from ..._common.errors import DataError, nearest, shown
from ..._common.text import plural
from .encoders import is_plain, is_text
from .schema import MISSING_TEXT
from .sources import Source

OPPOSITES = {  # the positive word, and what it is the opposite of
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


def obvious_positive(values: Sequence[str]) -> str | None:
    """Return which of two values is the positive one where nobody would doubt it, else None.

    >>> obvious_positive(["no", "yes"]), obvious_positive(["Click", "no-click"]), obvious_positive(["red", "blue"])
    ('yes', 'Click', None)
    """
    if len(values) != 2:
        return None
    for positive, negative in (values, values[::-1]):
        word = _word(positive)
        negated = _NEGATED.match(_word(negative))
        if _word(negative) in OPPOSITES.get(word, ()) or (negated and negated[1] == word):
            return positive
    return None


def _word(value: str) -> str:
    """Return a value without case; 1.0 as 1."""
    return re.sub(r"^([+-]?\d+)\.0+$", r"\1", value.strip().casefold())


def positive_of(
    sources: Sequence[Source], label: str, sample: pl.Series, given: object
) -> str | None:
    """Return the value that is the positive one where the label's two values leave no doubt.

    All rows are looked at, but only if the first ones hold something else than 0 and 1.

    Args:
        sample: The label in the first rows.
        given: What the user calls positive; it must be there.
    """
    if not is_plain(sample.dtype):
        return None
    if isinstance(given, str):
        _refuse_absent(sources, label, sample, given)
        return None
    plain = sample.to_frame().select(_values(label)).to_series()
    if (
        given is not None
        or plain.cast(pl.Float64, strict=False).is_in([0.0, 1.0]).fill_null(value=False).all()
    ):
        return None
    return obvious_positive(_distinct(sources, label, most=3))


def _values(label: str) -> pl.Expr:
    """Select the label's values as text, without those that are missing."""
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
    known = _distinct(sources, label, most=1_000)
    if wanted not in known and not any(_same_number(wanted, value) for value in known):
        raise DataError(f"No row has {shown(positive)} in {label!r}. {nearest(wanted, known)}")


def _same_number(one: str, other: str) -> bool:
    try:
        return float(one) == float(other)
    except ValueError:
        return False


def cure_of(given: pl.Series, row: int) -> str:
    """Say what to do about a label that is not 0 or 1, from the rows around it."""
    if given[row] != given[row] or str(given[row]).strip() in MISSING_TEXT:
        return "Leave the rows without a label out."
    present = given.drop_nulls()
    plain = present.cast(pl.String) if is_text(given.dtype) else present
    numbers = plain.cast(pl.Float64, strict=False).drop_nulls()
    counts = (
        present.cast(pl.String, strict=False)
        .str.strip_chars()
        .value_counts(sort=True, name="rows")
        .rows()
    )
    if len(numbers) <= len(given) / 2:
        return f"{_classes(counts)} {_choice(counts, counts[-1][0])}"
    if numbers.n_unique() > NAMED:
        return f"If it is a rating, {_rating(numbers)}."
    ordered = sorted(counts, key=lambda pair: (_number(pair[0]), pair[0]))
    if len(counts) == 2:
        return f"{_classes(ordered)} {_choice(ordered, ordered[-1][0])}"
    return f"{_classes(ordered)} If it is a rating, {_rating(numbers)}; or count one value as 1: positive={shown(ordered[-1][0])}."


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return float("inf")


def _rating(numbers: pl.Series) -> str:
    middle = float(numbers.median())  # type: ignore[arg-type]
    middle = min(middle, float(numbers.filter(numbers < numbers.max()).max() or middle))  # type: ignore[arg-type]
    return f"say from where on it counts as 1: threshold={middle:g} (above it is 1)"


def _classes(counts: Sequence[tuple[str, int]]) -> str:
    """Say how many values there are, with the counts of the first ones."""
    named = [f"{shown(value, 40)} ({plural(rows, 'row')})" for value, rows in counts[:NAMED]]
    if len(counts) == 1:
        return f"It has the one value {named[0]}."
    if len(counts) == 2:
        return f"It has two values, {named[0]} and {named[1]}:"
    more = f" and {len(counts) - NAMED:,} more" if len(counts) > NAMED else ""
    return f"It has {len(counts):,} values: {', '.join(named)}{more}."


def _choice(counts: Sequence[tuple[str, int]], value: str) -> str:
    if len(counts) == 2:
        return f"say which one is 1: positive={shown(value)}."
    return f"Is it the label? If so, say which value is 1: positive={shown(value)}."
