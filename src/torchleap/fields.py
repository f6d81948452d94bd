"""Field and Fields: the words that everybody shares.

A field is a block of neighbouring columns that carries one input feature: a scalar is 1 wide, an id's embedding 64, a
behaviour embedding 256. `Fields` lays them side by side, in order, over the columns of the model's input.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import accumulate
from typing import Any

from ._common.checks import is_number, is_whole
from ._common.errors import FieldError, nearest


@dataclass(frozen=True, slots=True)
class Field:
    """One input feature: its name, how many columns it fills, and what may happen to it.

    Args:
        cost: What it costs to keep the field, in any unit that adds up; its width if left out.
        protected: The field is always kept: its gate stays at 1.
        group: Fields with the same group share one gate and are kept or dropped together.

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
            object.__setattr__(self, "width", int(self.width))  # numpy's integers are no JSON
            if self.cost is None:
                object.__setattr__(self, "cost", float(self.width))

    def problems(self) -> list[str]:
        """What is wrong with this field; empty if nothing is."""
        found = []
        if not isinstance(self.name, str) or not self.name:
            found.append(f"a field's name must be a non-empty string, but one is {self.name!r}")
        if not is_whole(self.width) or self.width < 1:
            found.append(
                f"the width of {self.name!r} must be a whole number of at least 1, but is {self.width!r}"
            )
        if self.cost is not None and not (is_number(self.cost) and 0 <= self.cost < math.inf):
            found.append(
                f"the cost of {self.name!r} must be a finite number of at least 0, but is {self.cost!r}"
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


class Fields:
    """The ordered fields of a model's input.

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
        self.gates: tuple[int, ...] = _number_gates(
            self._fields
        )  # one a field or group, by first appearance
        self._index = {name: index for index, name in enumerate(self.names)}
        self._starts = (0, *accumulate(self.widths))

    @property
    def dims(self) -> int:
        """The number of columns of all fields together, D."""
        return self._starts[-1]

    def index(self, name: str) -> int:
        """The position of the field called `name`."""
        if name not in self._index:
            raise FieldError(f"There is no field {name!r}. {nearest(str(name), self.names)}")
        return self._index[name]

    def columns(self, name: str) -> slice:
        """The columns that the field called `name` fills."""
        index = self.index(name)
        return slice(self._starts[index], self._starts[index + 1])

    def gates_of(self, columns: slice) -> slice:
        """The gates of a block of columns; they are neighbours, being numbered by first appearance."""
        if columns.start == 0 and columns.stop == self.dims:
            return slice(0, max(self.gates) + 1)
        if columns.start not in self._starts or columns.stop not in self._starts:
            raise FieldError(
                f"Columns {columns.start} to {columns.stop} cut through a field. {self.describe()}"
            )
        first, last = self._starts.index(columns.start), self._starts.index(columns.stop)
        inside, outside = self.gates[first:last], self.gates[:first] + self.gates[last:]
        if set(inside) & set(outside):
            raise FieldError(
                f"A group has fields inside and outside the columns {columns.start} to {columns.stop}; it needs one place."
            )
        return slice(min(inside), max(inside) + 1)

    def per_dimension(self) -> "Fields":
        """Each dimension as a field of its own.

        >>> Fields({"age": 1, "clicks": 2}).per_dimension().names
        ('age', 'clicks[0]', 'clicks[1]')
        """
        grouped = [field.name for field in self if field.group is not None]
        if grouped:
            raise FieldError(
                f"Gates per dimension have no groups, but {grouped[0]!r} has one. Leave out one of the two."
            )
        return Fields(
            [
                Field(
                    f.name if f.width == 1 else f"{f.name}[{place}]",
                    1,
                    (f.cost or 0.0) / f.width,
                    f.protected,
                )
                for f in self
                for place in range(f.width)
            ]
        )

    def describe(self) -> str:
        """Names and widths, for an error message."""
        shown = ", ".join(f"{field.name} {field.width}" for field in self._fields[:6])
        return f"Widths: {shown}{', ...' if len(self) > 6 else ''}."

    def to_json(self) -> list[dict[str, Any]]:
        """Plain records, one a field, in order; `from_json` reads them back."""
        return [asdict(field) for field in self]

    @classmethod
    def from_json(cls, records: list[dict[str, Any]]) -> "Fields":
        """The fields that `to_json` wrote."""
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
        shown = ", ".join(f"{field.name!r}: {field.width}" for field in self._fields[:4])
        return f"Fields({{{shown}{', ...' if len(self) > 4 else ''}}}: {len(self)} fields, {self.dims} dimensions)"


def _check(fields: tuple[Field, ...]) -> None:
    """Collect every problem of the list and raise them together."""
    if not fields:
        raise FieldError(
            "Expected at least one field, but the list is empty. Give name -> width for each input feature."
        )
    strangers = [field for field in fields if not isinstance(field, Field)]
    if strangers:
        raise FieldError(
            f"Expected tl.Field objects or a dict name -> width, but found {strangers[0]!r}."
        )
    problems = [problem for field in fields for problem in field.problems()]
    names = [field.name for field in fields if isinstance(field.name, str)]
    problems += [
        f"the name {name!r} is used {names.count(name)} times"
        for name in dict.fromkeys(names)
        if names.count(name) > 1
    ]
    if problems:
        raise FieldError("These fields cannot be used: " + "; ".join(problems) + ".")


def _number_gates(fields: tuple[Field, ...]) -> tuple[int, ...]:
    numbers: dict[tuple[str, str], int] = {}
    keys = [
        ("field", field.name) if field.group is None else ("group", field.group) for field in fields
    ]
    return tuple(numbers.setdefault(key, len(numbers)) for key in keys)
