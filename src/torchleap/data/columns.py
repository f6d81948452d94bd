"""Columns: the settings of an input column, and the facts that train rows have taught about it."""

import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal

import numpy as np

from .._common.checks import check_settings, is_number, is_whole, setting
from .._common.errors import DataError, TorchleapError

Kind = Literal["numeric", "categorical", "list", "vector"]
Scale = Literal["standard", "quantile", "log", "none"]

LEARNED = "learnt"  # the entry of a manifest with the facts about a column
MOST_BUCKETS = 100_000_000
LONGEST_LIST = 10_000  # values per row
MOST = 1 << 40  # more than any number of rows, slots or categories that a file can have


@dataclass(frozen=True)
class Column:
    """One input column: its kind, and the settings of its kind.

    Args:
        name: The name of the column in the file, which is also the name of its field.
        kind: "numeric", "categorical", "list" (several categories per row) or "vector".
        width: The dimensions of the embedding of categories. None follows a rule; numbers and
            vectors have a width of their own.
        scale: How numbers are scaled: "standard" subtracts the mean and divides by the standard
            deviation, "quantile" replaces each by its rank from -1 to 1, "log" standardises
            sign(x) * log(1 + |x|), "none" leaves them. All numbers of a vector are divided by
            the same deviation.
        min_count: Categories with fewer train rows than this share one id with those that train
            rows do not have.
        buckets: The number of ids that categories are hashed into; None keeps a vocabulary.
        separator: The text between the values of a list or vector that is given as text, such
            as "|"; None if the file has real lists.
        max_length: The number of categories per row that are read of a list; the rest is
            ignored.
    """

    name: str
    kind: Kind
    width: int | None = setting(None, at_least=1)
    scale: Scale = "standard"
    min_count: int = setting(2, at_least=1)
    buckets: int | None = setting(None, at_least=1, at_most=MOST_BUCKETS)
    separator: str | None = None
    max_length: int = setting(20, at_least=1, at_most=LONGEST_LIST)

    def __post_init__(self) -> None:
        for one in fields(self):
            object.__setattr__(self, one.name, plain(getattr(self, one.name)))
        fits_kind = self.buckets is None or self.kind == "categorical"
        rules = {
            "separator must not be empty": self.separator != "",
            f"buckets are for categories, not for kind={self.kind!r}": fits_kind,
        }
        try:
            check_settings(self, rules)
        except TorchleapError as error:
            raise DataError(f"Column {self.name!r}: {error}") from error


def plain(value: Any) -> Any:
    """Return a number of numpy as one of Python, which JSON can hold; anything else unchanged."""
    if isinstance(value, np.generic):
        return value.item()
    return value


@dataclass(frozen=True, kw_only=True)
class Learned:
    """The facts that train rows have taught about a column.

    Attributes:
        width: The dimensions of the column in the model.
        slots: The number of values that one row of the column has in a batch.
        categories: The number of ids, including those for missing and unseen values; 0 for
            numbers.
        missing: The fraction of train rows without a value.
        common: The fraction of train rows that have the most common value.
        numbers: Means, deviations and the like, by name.
    """

    width: int
    slots: int
    categories: int
    missing: float
    common: float
    numbers: dict[str, list[float]] = field(default_factory=dict)

    @property
    def is_ids(self) -> bool:
        """Whether rows of the column are ids; otherwise they are numbers."""
        return self.categories > 0

    def record(self, column: Column) -> dict[str, Any]:
        """Return the settings of a column and these facts as a plain dict, for a manifest."""
        facts = {fact.name: getattr(self, fact.name) for fact in fields(Learned)}
        return {**asdict(column), LEARNED: facts}


@dataclass(frozen=True, kw_only=True)
class TaskColumn(Learned):
    """One input column of a task: its settings, and what train rows have taught about it.

    Attributes:
        column: The settings of the column.
        file: The name of the file with its encoded rows, in the folder of the task.
    """

    column: Column
    file: str

    @classmethod
    def from_record(cls, record: Mapping[str, Any], file: str) -> "TaskColumn":
        """Return the column that `record` was made of.

        Args:
            record: The settings and facts as a manifest holds them.
            file: The name of the file with its encoded rows or its vocabulary.
        """
        settings = dict(record)
        facts = settings.pop(LEARNED)
        return cls(column=Column(**settings), file=file, **facts)

    def __post_init__(self) -> None:
        """Refuse facts that no train rows can have taught: a file may contain anything."""
        self.column.name.encode()  # raises on a name that is not text, or cannot be written
        if not self._is_possible():
            raise ValueError(f"no rows can teach these facts about the column {self.name!r:.80}")

    def _is_possible(self) -> bool:
        counts = (self.slots, self.width, self.categories)
        if not all(is_whole(count) and 0 <= count < MOST for count in counts) or not self.slots:
            return False
        fractions = (self.missing, self.common)
        if not all(is_number(fraction) and 0 <= fraction < MOST for fraction in fractions):
            return False
        if not self.is_ids and self.width != self.slots:
            return False
        return _can_scale(self.numbers, self.slots)

    @property
    def name(self) -> str:
        """The name of the column, which is also the name of its field."""
        return self.column.name

    @property
    def description(self) -> str:
        """The kind of the column in words, such as "numeric, log" or "list of up to 5"."""
        kind = self.column.kind
        if kind == "list":
            return f"list of up to {self.slots}"
        if not self.is_ids:
            return f"{kind}, {self.column.scale}"
        if self.column.buckets:
            return f"{kind}, hashed"
        return kind


@dataclass(frozen=True, kw_only=True)
class ShuffledColumn(TaskColumn):
    """A column that reads the rows of a file in a random order within each part of a task.

    It has the values of the column that the file belongs to, as often, but says nothing about the
    label of a row. Columns with the same order stay together: a row of them is a row of the file.

    Attributes:
        order: The seed of the order.
    """

    order: int


def _can_scale(numbers: Any, slots: int) -> bool:
    """Return whether a column of so many slots can be scaled by these numbers.

    The last slot may mark missing values, in which case it is not scaled.
    """
    if not isinstance(numbers, dict) or not all(map(_are_finite, numbers.values())):
        return False
    if not numbers:
        return True
    if "knots" in numbers:
        return slots in (1, 2)
    if numbers.keys() != {"shift", "scale"}:
        return False
    has_one_scale = len(numbers["scale"]) == 1 and numbers["scale"][0] > 0
    return has_one_scale and len(numbers["shift"]) in (slots, slots - 1)


def _are_finite(values: Any) -> bool:
    """Return whether a value is a list of at least one number, each of them finite."""
    if not isinstance(values, list) or not values:
        return False
    return all(is_number(value) and abs(value) <= sys.float_info.max for value in values)
