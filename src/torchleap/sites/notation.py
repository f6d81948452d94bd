"""The notation of attach(): which fields arrive at which places of the model."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any, Literal, NamedTuple, get_args

from .._common.checks import is_whole
from .._common.errors import AttachError, FieldError
from ..fields import Fields

Side = Literal["input", "output"]


@dataclass(frozen=True, slots=True)
class Place:
    """A place in a model where fields pass: one value that a submodule receives or returns.

    Args:
        at: The name of the submodule, as in `model.named_modules()`; "" is the model itself.
        side: Whether its "input" or its "output" passes the gates; None is the side of `attach`.
        part: The element to gate, where the submodule returns several values: an index of a tuple
            or list, or a name in a dict or named tuple. On the side of the input it is the
            position or the name of an argument. None is the complete value, or the first argument.
        call: The call to gate, counted from 0, where the submodule is called several times in one
            forward pass. None is every call that fits the fields.
        columns: The first column to gate and the one after the last, where a tensor of the shape
            (B, D) also has columns that are not fields, such as ids that are embedded later. Those
            pass unchanged. None is all columns.

    >>> Place("encoder", side="output", part=0)
    Place(at='encoder', side='output', part=0, call=None, columns=None)
    """

    at: str
    side: Side | None = None
    part: int | str | None = None
    call: int | None = None
    columns: tuple[int, int] | None = None

    @property
    def label(self) -> str:
        """How messages call this place."""
        details = [str(self.side)]
        if self.part is not None:
            details.append(f"part {self.part!r}")
        if self.call is not None:
            details.append(f"call {self.call}")
        if self.columns is not None:
            details.append(f"columns {self.columns[0]} to {self.columns[1] - 1}")
        return f"at={self.at!r} ({', '.join(details)})"

    def overlaps(self, other: "Place") -> bool:
        """Return whether another place has some columns of the same call, and not the same ones."""
        if self.columns == other.columns or replace(self, columns=other.columns) != other:
            return False
        if self.columns is None or other.columns is None:
            return True
        return max(self.columns[0], other.columns[0]) < min(self.columns[1], other.columns[1])

    def problems(self) -> list[str]:
        """Return a sentence about each problem of this place; empty if there is none."""
        found = []
        if not isinstance(self.at, str):
            found.append(
                f"at= must be the name of a submodule, or a list of names, but is {self.at!r}"
            )
        if self.side not in get_args(Side):
            found.append(f"side must be 'input' or 'output', but is {self.side!r}")
        is_index = isinstance(self.part, int) and not isinstance(self.part, bool)
        if self.part is not None and not is_index and not isinstance(self.part, str):
            found.append(f"part must be an index or a name, but is {self.part!r}")
        if self.call is not None and not (is_whole(self.call) and self.call >= 0):
            found.append(f"call must be a whole number of at least 0, but is {self.call!r}")
        if self.columns is not None and not _is_range(self.columns):
            found.append(
                "columns must be the first column and the one after the last, such as (8, 12), but "
                f"is {self.columns!r}"
            )
        return found


def _is_range(columns: Any) -> bool:
    """Return whether this is a range of columns that is not empty."""
    if not isinstance(columns, tuple) or len(columns) != 2 or not all(map(is_whole, columns)):
        return False
    return bool(0 <= columns[0] < columns[1])


class Entry(NamedTuple):
    """The fields at one place.

    Attributes:
        place: The place.
        widths: The width of each field there, in the order of the columns; a width of None is
            that of the value in the example. None instead of a dict leaves the fields open.
    """

    place: Place
    widths: Mapping[str, int | None] | None


class Notation(NamedTuple):
    """What a user has written: the fields at each place, and facts about single fields."""

    entries: list[Entry]
    fields: Fields | None

    @property
    def is_by_place(self) -> bool:
        """Whether each place names its fields, so that a field may have several places."""
        return self.entries[0].widths is not None


def read_notation(fields: Any, at: Any, side: Side) -> Notation:
    """Return the fields at each place; all problems are raised in one error.

    Args:
        fields: The fields, the places of each field by name, or None.
        at: A place or a list of places, or the widths of the fields at each place.
        side: The side of places that have none of their own.
    """
    if isinstance(at, Mapping):
        found = _by_place(at, side)
        given = None if fields is None else Fields(fields)
        if given is not None:
            _refuse_other_fields(found, given)
    elif _is_by_field(fields):
        if at != "":
            raise AttachError(
                f"Expected the places in fields= or in at=, but found both, at={at!r}. Leave out "
                "at=."
            )
        found = _by_field(fields, side)
        given = None
    else:
        is_list = isinstance(at, Sequence) and not isinstance(at, str)
        places = [_as_place(one, side) for one in (at if is_list else [at])]
        found = [Entry(place, None) for place in places]
        given = None if fields is None else Fields(fields)
    places = [entry.place for entry in found]
    _refuse_places(places)
    _refuse_repeated(places)
    refuse_overlaps(places)
    return Notation(found, given)


def _as_place(given: Any, side: Side) -> Place:
    if not isinstance(given, Place):
        return Place(given, side)
    if given.side is None:
        return replace(given, side=side)
    return given


def _is_by_field(fields: Any) -> bool:
    """Return whether a dict has the places of each field, and not its width."""
    if not isinstance(fields, Mapping) or isinstance(fields, Fields):
        return False
    return any(isinstance(value, str | Place | Sequence) for value in fields.values())


def _by_place(at: Mapping[Any, Any], side: Side) -> list[Entry]:
    """Return the entries of at={place: {name: width}}."""
    found = []
    for given, widths in at.items():
        place = _as_place(given, side)
        if not isinstance(widths, Mapping) or not widths:
            raise FieldError(
                f"{place.label}: expected the width of each field there, name -> width, but found "
                f"{widths!r}."
            )
        Fields(widths)  # raises if a name or a width cannot be used
        found.append(Entry(place, {name: int(width) for name, width in widths.items()}))
    if not found:
        raise AttachError("Expected places with their fields in at=, but it is empty.")
    return found


def _by_field(fields: Mapping[str, Any], side: Side) -> list[Entry]:
    """Return the entries of fields={name: places}."""
    named: list[tuple[str, Place]] = []
    problems = []
    for name, given in fields.items():
        is_list = isinstance(given, Iterable) and not isinstance(given, str)
        places = [_as_place(one, side) for one in (given if is_list else [given])]
        named += [(name, place) for place in places]
        if not places:
            problems.append(f"{name!r} reaches no place, name at least one")
    _refuse_places([place for _, place in named])
    owners: dict[Place, str] = {}
    for name, place in named:
        owner = owners.setdefault(place, name)
        if owner != name:
            problems.append(f"{owner!r} and {name!r} have the same columns, {place.label}")
    if problems:
        raise FieldError(
            f"These fields cannot be used: {'; '.join(problems)}. Where several fields pass side "
            "by side, give their widths: at={place: {name: width}}."
        )
    return [Entry(place, {name: None}) for place, name in owners.items()]


def _refuse_places(places: list[Place]) -> None:
    """Raise every problem of the places in one error."""
    problems = [problem for place in places for problem in place.problems()]
    if problems:
        raise AttachError(f"Cannot attach: {'; '.join(dict.fromkeys(problems))}.")


def _refuse_repeated(places: list[Place]) -> None:
    if not places or len(set(places)) < len(places):
        names = [place.at for place in places]
        raise AttachError(f"at= must name one or more submodules, each once, but is {names}.")


def refuse_overlaps(places: list[Place]) -> None:
    """Refuse places that would gate some columns twice."""
    problems = []
    partial = {(place.at, place.side, place.part) for place in places if place.columns is not None}
    found = [place for place in places if (place.at, place.side, place.part) in partial]
    for one, other in combinations(found, 2):
        if one.overlaps(other):
            problems.append(f"{one.label} and {other.label}")
    if problems:
        raise FieldError(
            "Expected each column to belong to one place, but found places with columns in "
            f"common: {'; '.join(problems)}. Give each place other columns: columns=(first, stop)."
        )


def _refuse_other_fields(entries: list[Entry], given: Fields) -> None:
    """Refuse fields that are not those of the places."""
    widths: dict[str, list[int]] = {}
    for entry in entries:
        for name, width in (entry.widths or {}).items():
            widths.setdefault(name, []).append(width or 0)
    problems = [f"{name!r} is not in fields=" for name in widths if name not in given]
    for field in given:
        found = widths.get(field.name)
        if found is None:
            problems.append(f"the field {field.name!r} reaches no place in at=")
        elif field.width not in (sum(found), *found):
            problems.append(
                f"{field.name!r} is {field.width} wide in fields=, but {sum(found)} at its places"
            )
    if problems:
        raise FieldError(f"fields= and at= do not agree: {'; '.join(problems)}.")
