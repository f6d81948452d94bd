"""Field and Fields: the names and columns of a model's input features.

A field is a block of neighbouring columns that carries one input feature: a number is 1 wide, the
embedding of an id 64, that of a behaviour sequence 256. `Fields` puts them side by side, in order,
over the columns of the model's input.
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import accumulate
from typing import Any

from ._common.checks import is_number, is_whole
from ._common.errors import FieldError, nearest


@dataclass(frozen=True, slots=True)
class Field:
    """One input feature: its name, the number of its columns, and how it may be treated.

    Args:
        name: The name of the feature; no other field has the same.
        width: The number of columns, at least 1.
        cost: The cost of keeping the field, in any unit that adds up; by default it is the width.
        protected: Whether the field is always kept: its gate stays at 1.
        group: Fields of the same group share one gate and are kept or dropped together; None is a
            gate of its own.

    >>> Field("clicks", 256).cost
    256.0
    """

    name: str
    width: int
    cost: float | None = None
    protected: bool = False
    group: str | None = None

    def __post_init__(self) -> None:
        if is_whole(self.width):
            object.__setattr__(self, "width", int(self.width))  # JSON has no integers of numpy
            if self.cost is None:
                object.__setattr__(self, "cost", float(self.width))

    def problems(self) -> list[str]:
        """Return a sentence about each problem of this field; empty if there is none."""
        found = []
        if not isinstance(self.name, str) or not self.name:
            found.append(f"a field's name must be a non-empty string, but one is {self.name!r}")
        if not is_whole(self.width) or self.width < 1:
            found.append(
                f"the width of {self.name!r} must be a whole number of at least 1, "
                f"but is {self.width!r}"
            )
        if self.cost is not None and not (is_number(self.cost) and 0 <= self.cost < math.inf):
            found.append(
                f"the cost of {self.name!r} must be a finite number of at least 0, "
                f"but is {self.cost!r}"
            )
        if not isinstance(self.protected, bool):
            found.append(
                f"protected of {self.name!r} must be True or False, but is {self.protected!r}"
            )
        if self.group is not None and not isinstance(self.group, str):
            found.append(
                f"the group of {self.name!r} must be a string or None, but is {self.group!r}"
            )
        return found

    def _split(self) -> Iterator["Field"]:
        """Yield each dimension as a field of its own, with its part of the cost."""
        for place in range(self.width):
            name = self.name if self.width == 1 else f"{self.name}[{place}]"
            yield Field(name, 1, (self.cost or 0.0) / self.width, self.protected)


class Fields:
    """The ordered fields of a model's input.

    Args:
        fields: The width of each field by name, or a list of `Field`.

    Attributes:
        names: The name of each field.
        widths: The width of each field.
        gates: The number of each field's gate: one per field or group, by first appearance.

    >>> fields = Fields({"user_id": 64, "ctr_7d": 1, "clicks": 256})
    >>> len(fields), fields.dims, fields.columns("ctr_7d")
    (3, 321, slice(64, 65, None))
    >>> fields["clicks"].width
    256
    """

    def __init__(self, fields: "Fields | Mapping[str, int] | Iterable[Field]") -> None:
        if isinstance(fields, Mapping):
            fields = [Field(name, width) for name, width in fields.items()]
        if not isinstance(fields, Iterable):
            raise FieldError(
                f"Expected a dict name -> width or a list of tl.Field, but found {fields!r}."
            )
        self._fields: tuple[Field, ...] = tuple(fields)
        _check(self._fields)
        self.names: tuple[str, ...] = tuple(field.name for field in self._fields)
        self.widths: tuple[int, ...] = tuple(field.width for field in self._fields)
        self.gates: tuple[int, ...] = _number_gates(self._fields)
        self._index = {name: index for index, name in enumerate(self.names)}
        self._starts = (0, *accumulate(self.widths))

    @property
    def dims(self) -> int:
        """Return the number of columns of all fields together, D."""
        return self._starts[-1]

    def index(self, name: str) -> int:
        """Return the position of the field called `name`."""
        if name not in self._index:
            raise FieldError(f"There is no field {name!r}. {nearest(str(name), self.names)}")
        return self._index[name]

    def columns(self, name: str) -> slice:
        """Return the columns of the field called `name`."""
        index = self.index(name)
        return slice(self._starts[index], self._starts[index + 1])

    def gates_of(self, columns: slice) -> slice:
        """Return the gates of a block of columns, which are neighbours by their numbering."""
        if columns.start == 0 and columns.stop == self.dims:
            return slice(0, max(self.gates) + 1)
        if columns.start not in self._starts or columns.stop not in self._starts:
            raise FieldError(
                f"Columns {columns.start} to {columns.stop} cut through a field. {self.describe()}"
            )
        first = self._starts.index(columns.start)
        last = self._starts.index(columns.stop)
        inside = self.gates[first:last]
        outside = self.gates[:first] + self.gates[last:]
        if set(inside) & set(outside):
            raise FieldError(
                "A group has fields inside and outside the columns "
                f"{columns.start} to {columns.stop}; it needs one place."
            )
        return slice(min(inside), max(inside) + 1)

    def per_dimension(self) -> "Fields":
        """Return fields of width 1, one per dimension.

        >>> Fields({"age": 1, "clicks": 2}).per_dimension().names
        ('age', 'clicks[0]', 'clicks[1]')
        """
        grouped = [field.name for field in self if field.group is not None]
        if grouped:
            raise FieldError(
                f"Gates per dimension have no groups, but {grouped[0]!r} has one. "
                "Leave out one of the two."
            )
        return Fields([part for field in self for part in field._split()])

    def describe(self) -> str:
        """Return a sentence with names and widths, for an error message."""
        shown = [f"{field.name} {field.width}" for field in self]
        return f"Widths: {_first_of(shown, 6)}."

    def to_json(self) -> list[dict[str, Any]]:
        """Return plain records, one per field, in order; `from_json` reads them."""
        return [asdict(field) for field in self]

    @classmethod
    def from_json(cls, records: list[dict[str, Any]]) -> "Fields":
        """Return the fields of the records that `to_json` has written."""
        try:
            return cls([Field(**record) for record in records])
        except TypeError as error:
            raise FieldError(
                f"Expected field records with name, width, cost, protected, group: {error}."
            ) from error

    def __getitem__(self, name: str) -> Field:
        return self._fields[self.index(name)]

    def __iter__(self) -> Iterator[Field]:
        return iter(self._fields)

    def __len__(self) -> int:
        return len(self._fields)

    def __contains__(self, name: object) -> bool:
        return name in self._index

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Fields) and self._fields == other._fields

    def __hash__(self) -> int:
        return hash(self._fields)

    def __repr__(self) -> str:
        shown = [f"{field.name!r}: {field.width}" for field in self]
        return f"Fields({{{_first_of(shown, 4)}}}: {len(self)} fields, {self.dims} dimensions)"


def _first_of(entries: list[str], most: int) -> str:
    """Return the first entries separated by commas, with dots where some are left out."""
    if len(entries) > most:
        entries = [*entries[:most], "..."]
    return ", ".join(entries)


def _check(fields: tuple[Field, ...]) -> None:
    """Raise a FieldError with all problems of a list of fields together."""
    if not fields:
        raise FieldError(
            "Expected at least one field, but the list is empty. "
            "Give name -> width for each input feature."
        )
    problems = []
    for field in fields:
        if not isinstance(field, Field):
            raise FieldError(
                f"Expected tl.Field objects or a dict name -> width, but found {field!r}."
            )
        problems += field.problems()
    names = Counter(field.name for field in fields if isinstance(field.name, str))
    for name, times in names.items():
        if times > 1:
            problems.append(f"the name {name!r} is used {times} times")
    if problems:
        raise FieldError("These fields cannot be used: " + "; ".join(problems) + ".")


def _number_gates(fields: tuple[Field, ...]) -> tuple[int, ...]:
    """Return the number of each field's gate; fields of one group have the same."""
    numbers: dict[tuple[str, str], int] = {}
    gates = []
    for field in fields:
        owner = ("field", field.name)
        if field.group is not None:
            owner = ("group", field.group)
        gates.append(numbers.setdefault(owner, len(numbers)))
    return tuple(gates)
