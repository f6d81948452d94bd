"""Findings: possible problems of a file, the worst first, with a cure for each."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import polars as pl

from ..._common.errors import shown
from ..._common.text import plural

Kind = Literal[
    "leak",
    "copies",
    "header",
    "number",
    "mixed",
    "date",
    "renamed",
    "rows",
    "id",
    "twin",
    "constant",
]
ORDER: tuple[Kind, ...] = get_args(Kind)  # the worst first
MOSTLY = 0.95  # the fraction of a column's values that fit, since it may hold a few strays
REPEATED = 0.01  # the fraction of the rows from which on repeated ones are reported

_DATE = r"^\d{4}[-/.]\d{1,2}[-/.]\d{1,2}([ T].*)?$|^\d{1,2}[-/.]\d{1,2}[-/.]\d{2,4}([ T].*)?$"
_COMMA = r"^[+-]?\d{1,3}(\.\d{3})*,\d+$|^[+-]?\d+,\d+$"
_SIGN = r"[$€£¥₹%]|(?i:EUR|USD|GBP|CHF|JPY)"
_MONEY = rf"^(?:{_SIGN})?\s*[+-]?\d[\d.,' ]*\s*(?:{_SIGN})?$"
_SEPARATED = r"\d[,']\d{3}|\d \d{3}"
_NUMBER = re.compile(r"[+-]?\d*\.?\d+(e[+-]?\d+)?")
_RENAMED = re.compile(r"^(.*)_duplicated_\d+$", re.DOTALL)


@dataclass(frozen=True)
class Finding:
    """Something about a file that a reader of its results should know.

    Attributes:
        kind: The kind of problem.
        column: The column with the problem; None if it concerns the file.
        text: The problem, as a part of a sentence.
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
    """Return the cure that drops a column."""
    return f"{why}: drop=[{column!r}]."


def text_findings(column: str, values: pl.Series) -> Iterator[Finding]:
    """Yield a finding if text that would be categories holds written numbers or dates.

    Args:
        column: The name of the column.
        values: One of each value of the column, none missing.
    """
    if values.dtype != pl.String or not len(values):
        return
    example = f"such as {shown(values[0], 40)}, read as categories"
    numbers = _written_numbers(values)
    if numbers:
        cure = "As categories their size means nothing: write plain numbers, such as 1234.5."
        yield Finding("number", column, f"{numbers}, {example}", cure)
    elif _mostly(values, _DATE):
        cure = f"Split the rows by it: time={column!r}, or leave it out: drop=[{column!r}]."
        yield Finding("date", column, f"dates, {example}", cure)


def _written_numbers(values: pl.Series) -> str:
    """Return how the values are written if they are numbers, else nothing."""
    if _mostly(values, _COMMA):
        return "numbers with a decimal comma"
    if not _mostly(values, _MONEY):
        return ""
    if _mostly(values, _SIGN):
        return "amounts with a sign or unit"
    if values.str.contains(_SEPARATED).any():
        return "numbers with separators"
    return ""


def _mostly(values: pl.Series, pattern: str) -> bool:
    return int(values.str.contains(pattern).sum()) >= MOSTLY * len(values)


def renamed_findings(names: Sequence[str]) -> Iterator[Finding]:
    """Yield the columns of CSV that polars renamed, since their name occurs twice."""
    for name in names:
        first = header_name(name)
        if first != name and first in names:
            text = f"the file has the name {shown(first)} twice, and the second is called this"
            cure = leave_out(name, "Name the columns apart, or leave one out")
            yield Finding("renamed", name, text, cure)


def header_name(name: str) -> str:
    """Return a column's name as the first line of CSV has it."""
    found = _RENAMED.match(name)
    if found is None:
        return name
    return found[1]


def header_findings(names: Sequence[str], are_values: int) -> Iterator[Finding]:
    """Yield a finding if the first line of CSV looks like a row.

    Args:
        names: The names of all columns.
        are_values: The number of columns whose name could be one of their values.
    """
    if are_values >= max(len(names) / 2, min(2, len(names))):
        line = shown(",".join(map(header_name, names)), 80)
        text = f"the first line, {line}, looks like data, not like names"
        yield Finding("header", None, text, "Name the columns: names=[...].")


def row_findings(rows: int, repeated: int, by_chance: float) -> Iterator[Finding]:
    """Yield a finding if rows repeat that would not do so by chance.

    Args:
        rows: The number of rows.
        repeated: The rows that an earlier row equals in all columns.
        by_chance: The pairs of equal rows to be expected if columns were independent.
    """
    if repeated >= REPEATED * rows and repeated > 2 * by_chance:
        verb = "is" if repeated == 1 else "are"
        text = f"{plural(repeated, 'row')} of {rows:,} {verb} the same as an earlier one"
        cure = (
            "If they are copies, remove them: "
            "a copy among the test rows makes a result look better."
        )
        yield Finding("rows", None, text, cure)


def looks_like_data(names: Sequence[str]) -> bool:
    """Return whether most names of columns are numbers, as where CSV has no header."""
    headers = [header_name(name).strip() for name in names]
    numbers = [name for name in headers if _NUMBER.fullmatch(name)]
    return len(numbers) >= max(1, len(names) / 2)
