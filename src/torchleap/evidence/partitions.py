"""Partitions: the rows divided by the values of a field, and those where a field is active."""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .._common.errors import DataError, FieldError, nearest
from ..data.columns import TaskColumn
from ..data.task import Rows, Task

Codes = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

FREQUENT = 0.01  # of the rows, from which a value is a slice of its own
MOST_VALUES = 1_000  # of a field that the user names
SAMPLE = 20_000  # rows in which the most common value is looked for
MISSING, UNKNOWN, FIRST = range(3)  # ids of an encoded column
FIFTHS = ("lowest", "second", "middle", "fourth", "highest")


@dataclass(frozen=True)
class Partition:
    """Rows divided by one field.

    Attributes:
        field: The name of the field.
        codes: The number of each row's slice, (N,).
        count: The number of slices.
        name: Returns the name of a slice, such as "country = NL".
        examined: The slices to look into; others only complete the rows.
    """

    field: str
    codes: Codes
    count: int
    name: Callable[[int], str]
    examined: tuple[int, ...]


def partitions(
    rows: Rows, *, dropped: Collection[str] = (), by: Sequence[str] = ()
) -> Iterator[Partition]:
    """Yield the partitions of rows, one after the other, so that one is in memory at a time.

    They are those by the values of each categorical field and of the fields that the user names,
    and the rows where a dropped field differs from its most common value. The column of groups
    (users, queries) is left out: a single group says nothing about others.

    Args:
        rows: The rows.
        dropped: The names of dropped fields.
        by: The names of fields that the user names.
    """
    for place in range(len(rows.task.columns)):
        yield from partitions_by(rows, place, dropped=dropped, by=by)


def partitions_by(
    rows: Rows, place: int, *, dropped: Collection[str], by: Sequence[str]
) -> Iterator[Partition]:
    """Yield the partitions by one field; the arguments are those of `partitions`.

    Args:
        rows: The rows.
        place: The place of the field among those of the task.
        dropped: The names of dropped fields.
        by: The names of fields that the user names.
    """
    column = rows.task.columns[place]
    if column.name == rows.task.roles.get("group"):
        return
    is_named = column.name in by
    is_value = column.column.kind == "categorical"
    if not (is_value or is_named or column.name in dropped):
        return
    values = rows.column(column.name)
    if is_value:
        yield _by_value(rows.task, column, values[:, 0], is_named=is_named)
    elif is_named:
        yield _by_fifth(column, values)
    if column.name in dropped:
        yield from _by_activity(column, values)


def check_names(task: Task, names: Sequence[str]) -> None:
    """Raise an error unless each name is that of a field by which rows can be divided.

    Args:
        task: The data.
        names: The names that the user gives.
    """
    kinds = {column.name: column.column.kind for column in task.columns}
    divided = [name for name, kind in kinds.items() if kind in ("categorical", "numeric")]
    for name in names:
        if name not in kinds:
            raise FieldError(
                f"There is no field {name!r} to divide the rows by. {nearest(str(name), divided)}"
            )
        if name not in divided:
            raise DataError(
                f"Rows cannot be divided by {name!r}, a {kinds[name]} with several values per "
                "row. Name a field with one value per row."
            )


def _by_value(
    task: Task, column: TaskColumn, ids: npt.NDArray[np.int32], *, is_named: bool
) -> Partition:
    """Return the rows divided by category: each frequent one, and the rest together."""
    counts = np.bincount(ids, minlength=column.categories)
    least = 1 if is_named else max(1, FREQUENT * len(ids))
    frequent = np.flatnonzero(counts >= least)
    frequent = frequent[np.argsort(-counts[frequent], kind="stable")][:MOST_VALUES]
    is_rest = counts > 0
    is_rest[frequent] = False
    rest = np.flatnonzero(is_rest)
    if len(rest) == 1:  # a single value needs no other name
        frequent = np.append(frequent, rest)
        rest = rest[:0]
    lookup = np.full(len(counts), len(frequent))
    lookup[frequent] = np.arange(len(frequent))

    def name(code: int) -> str:
        if code == len(frequent):
            return f"{column.name} has one of {len(rest):,} rarer values"
        return _value_text(task, column, int(frequent[code]))

    count = len(frequent) + bool(len(rest))
    return Partition(column.name, lookup[ids], count, name, tuple(range(count)))


def _value_text(task: Task, column: TaskColumn, number: int) -> str:
    """Return the name of the rows with an id, such as "country = NL"."""
    if number == MISSING:
        return f"{column.name} is missing"
    if number == UNKNOWN:
        return f"{column.name} is rare or new"
    if column.column.buckets:
        return f"{column.name} is in bucket {number}"
    return f"{column.name} = {task.vocabulary(column.name)[number - FIRST]}"


def _by_fifth(column: TaskColumn, values: npt.NDArray[np.float32]) -> Partition:
    """Return the rows divided by a number, at the quantiles, and those where it is missing."""
    numbers = values[:, 0]
    missing = np.zeros(len(numbers), dtype=bool)
    if values.shape[1] > 1:  # the last slot marks missing values
        missing = values[:, -1] > 0
    present = numbers[~missing]
    edges = np.zeros(0)
    if len(present):
        edges = np.quantile(present, np.arange(1, len(FIFTHS)) / len(FIFTHS))
    codes = np.searchsorted(edges, numbers, "left")  # equal numbers stay together
    codes[missing] = len(FIFTHS)

    def name(code: int) -> str:
        if code == len(FIFTHS):
            return f"{column.name} is missing"
        return f"{column.name} is in its {FIFTHS[code]} fifth"

    count = len(FIFTHS) + 1
    return Partition(column.name, codes.astype(np.int64), count, name, tuple(range(count)))


def _by_activity(column: TaskColumn, values: npt.NDArray[np.generic]) -> Iterator[Partition]:
    """Yield the rows divided by whether a field differs from its most common value, if it has one.

    Where hardly a value occurs twice, the field is active in nearly all rows.
    """
    step = max(1, len(values) // SAMPLE)
    found, counts = np.unique(values[::step], axis=0, return_counts=True)
    if counts.max() < max(2, FREQUENT * counts.sum()):
        return
    active: Flags = (values != found[np.argmax(counts)]).any(1)
    yield Partition(
        column.name, active.astype(np.int64), 2, lambda code: f"{column.name} is active", (1,)
    )
