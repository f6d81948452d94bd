"""Findings: what looks wrong with a file, the worst first, with what to do about it."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import polars as pl

from ..._common.errors import shown
from ..._common.text import plural

Kind = Literal[
    "leak", "header", "number", "mixed", "date", "renamed", "rows", "id", "twin", "constant"
]
ORDER: tuple[Kind, ...] = get_args(Kind)  # the worst first
MOSTLY = 0.95  # of the values of a column, which may hold a few strays
REPEATED = 0.01  # of the rows, from which on repeated ones are worth a word

_DATE = r"^\d{4}[-/.]\d{1,2}[-/.]\d{1,2}([ T].*)?$|^\d{1,2}[-/.]\d{1,2}[-/.]\d{2,4}([ T].*)?$"
_COMMA = r"^[+-]?\d{1,3}(\.\d{3})*,\d+$|^[+-]?\d+,\d+$"
_SIGN = r"[$€£¥₹%]|(?i:EUR|USD|GBP|CHF|JPY)"
_MONEY = rf"^(?:{_SIGN})?\s*[+-]?\d[\d.,' ]*\s*(?:{_SIGN})?$"
_RENAMED = re.compile(r"^(.*)_duplicated_\d+$", re.DOTALL)


@dataclass(frozen=True)
class Finding:
    """Something about a file that a reader of its results should know.

    Attributes:
        column: The column that it is about; None if it is about the file.
        text: What was found, as a part of a sentence.
        cure: What to do about it, as a sentence.
    """

    kind: Kind
    column: str | None
    text: str
    cure: str


def sorted_findings(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return findings, the worst first."""
    return tuple(sorted(findings, key=lambda found: ORDER.index(found.kind)))


def leave_out(column: str, why: str) -> str:
    """Write the cure that drops a column."""
    return f"{why}: drop=[{column!r}]."


def text_findings(column: str, values: pl.Series) -> Iterator[Finding]:
    """Yield a finding if text that would be categories holds numbers or dates in writing.

    Args:
        values: One of each value of the column, none missing.
    """
    if values.dtype != pl.String or not len(values):
        return
    example = shown(values[0], 40)
    as_number = "As categories their size means nothing: write plain numbers, such as 1234.5."
    if _mostly(values, _COMMA):
        yield Finding(
            "number",
            column,
            f"numbers with a decimal comma, such as {example}, read as categories",
            as_number,
        )
    elif _mostly(values, _MONEY) and _mostly(values, _SIGN):
        yield Finding(
            "number",
            column,
            f"amounts with a sign or unit, such as {example}, read as categories",
            as_number,
        )
    elif _mostly(values, _MONEY) and _mostly(values, r"\d[,']\d{3}|\d \d{3}", least=1):
        yield Finding(
            "number",
            column,
            f"numbers with separators, such as {example}, read as categories",
            as_number,
        )
    elif _mostly(values, _DATE):
        cure = f"Split the rows by it: time={column!r}, or leave it out: drop=[{column!r}]."
        yield Finding("date", column, f"dates, such as {example}, read as categories", cure)


def _mostly(values: pl.Series, pattern: str, least: int | None = None) -> bool:
    matching = int(values.str.contains(pattern).sum())
    return matching >= (MOSTLY * len(values) if least is None else least)


def renamed_findings(names: Sequence[str]) -> Iterator[Finding]:
    """Yield the columns of CSV that have a name twice, of which the second was renamed."""
    for name in names:
        first = _RENAMED.match(name)
        if first and first[1] in names:
            text = f"the file has the name {shown(first[1])} twice, and this is what the second is called"
            yield Finding(
                "renamed", name, text, leave_out(name, "Name the columns apart, or leave one out")
            )


def header_name(name: str) -> str:
    """Return a column's name as the first line of CSV has it."""
    found = _RENAMED.match(name)
    return found[1] if found else name


def header_findings(names: Sequence[str], are_values: int) -> Iterator[Finding]:
    """Yield a finding if the first line of CSV looks like a row.

    Args:
        are_values: The number of columns whose name could be one of their values.
    """
    if are_values >= max(len(names) / 2, min(2, len(names))):
        text = f"the first line, {shown(','.join(map(header_name, names)), 80)}, looks like data, not like names"
        yield Finding("header", None, text, "Name the columns: names=[...].")


def row_findings(rows: int, repeated: int, by_chance: float) -> Iterator[Finding]:
    """Yield a finding if rows repeat that would not do so by chance.

    Args:
        repeated: Rows that an earlier row equals in all columns.
        by_chance: Pairs of equal rows if columns had nothing to do with each other.
    """
    if repeated >= REPEATED * rows and repeated > 2 * by_chance:
        text = f"{plural(repeated, 'row')} of {rows:,} {'is' if repeated == 1 else 'are'} the same as an earlier one"
        yield Finding(
            "rows",
            None,
            text,
            "If they are copies, remove them: a copy among the test rows makes a result look better.",
        )


def looks_like_data(names: Sequence[str]) -> bool:
    """Return whether most names of columns are numbers, as where CSV has no header."""
    numbers = [
        name
        for name in map(header_name, names)
        if re.fullmatch(r"[+-]?\d*\.?\d+(e[+-]?\d+)?", name.strip())
    ]
    return len(numbers) >= max(1, len(names) / 2)
