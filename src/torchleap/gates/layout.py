"""Layout: which columns each field has, where the parts of a field arrive at different sites.

The columns of the gates are in the order in which they arrive: one site after the other. A field
that arrives at several sites has a block of columns at each of them, and one gate for all.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from ..fields import Field, Fields


class FieldBlock(NamedTuple):
    """The columns of one field at one site."""

    name: str
    columns: slice


class Joint(NamedTuple):
    """Sites that share gates: they are measured together when the last of them has been reached."""

    columns: slice  # of all of them, which are neighbours
    members: tuple[slice, ...]  # the columns of each site, in order


class Layout:
    """The columns of each field, in the order in which they arrive.

    Args:
        fields: The fields; the fields of a joint are neighbours, see `over`.
        blocks: Names and widths of the blocks, in the order of their columns; None is one block
            per field.
        joints: The sites that share gates.

    Attributes:
        is_plain: Whether every field has one block of columns, in the order of the fields.

    >>> layout = Layout(Fields({"user": 3, "item": 5}), [("user", 3), ("item", 4), ("item", 1)])
    >>> layout.columns("item")
    [slice(3, 7, None), slice(7, 8, None)]
    """

    def __init__(
        self,
        fields: Fields,
        blocks: Iterable[tuple[str, int]] | None = None,
        joints: Iterable[Joint] = (),
    ) -> None:
        if blocks is None:
            blocks = zip(fields.names, fields.widths, strict=True)
        self.fields = fields
        self.joints = tuple(joints)
        self._joint_by_start = {one.start: joint for joint in self.joints for one in joint.members}
        self.blocks: list[FieldBlock] = []
        start = 0
        for name, width in blocks:
            self.blocks.append(FieldBlock(name, slice(start, start + width)))
            start += width
        self.is_plain = tuple(block.name for block in self.blocks) == fields.names
        self._columns: dict[str, list[slice]] = {name: [] for name in fields.names}
        for block in self.blocks:
            self._columns[block.name].append(block.columns)
        self._gates: dict[tuple[int, int], slice] = {}
        self._fields_in: dict[tuple[int, int], Fields] = {}

    def columns(self, name: str) -> list[slice]:
        """Return the blocks of columns of the field called `name`."""
        self.fields.index(name)  # raises if there is no such field
        return self._columns[name]

    def blocks_in(self, columns: slice | None) -> dict[str, slice]:
        """Return the block of each field that lies within the columns of one site."""
        if columns is None:
            columns = slice(0, self.fields.dims)
        inside = {}
        for name, block in self.blocks:
            if columns.start <= block.start and block.stop <= columns.stop:
                inside[name] = block
        return inside

    def fields_in(self, columns: slice | None) -> Fields:
        """Return the fields that arrive within the columns of one site, as wide as they are there.

        Args:
            columns: The columns of the site; None is all of them.
        """
        if columns is None or (self.is_plain and columns == slice(0, self.fields.dims)):
            return self.fields
        key = (columns.start, columns.stop)
        if key not in self._fields_in:
            inside = self.blocks_in(columns)
            widths = {name: block.stop - block.start for name, block in inside.items()}
            self._fields_in[key] = Fields(widths)
        return self._fields_in[key]

    def gates_of(self, columns: slice) -> slice:
        """Return the smallest range of gates that has those of these columns."""
        key = (columns.start, columns.stop)
        if key not in self._gates:
            self._gates[key] = self._find_gates(columns)
        return self._gates[key]

    def _find_gates(self, columns: slice) -> slice:
        if self.is_plain and not self.joints:
            return self.fields.gates_of(columns)
        inside = self.blocks_in(columns)
        gates = [self.fields.gates[self.fields.index(name)] for name in inside]
        return slice(min(gates), max(gates) + 1)

    def joint_of(self, columns: slice) -> Joint | None:
        """Return the joint that these columns of one site belong to; None if it is not in one."""
        return self._joint_by_start.get(columns.start)

    def column_gates(self) -> list[int]:
        """Return the gate of each column."""
        gates = dict(zip(self.fields.names, self.fields.gates, strict=True))
        found = []
        for name, columns in self.blocks:
            found += [gates[name]] * (columns.stop - columns.start)
        return found

    def per_dimension(self) -> "Layout":
        """Return the layout of a field per dimension, in the order of the columns."""
        split = list(self.fields.per_dimension())
        dimensions = {name: split[self.fields.columns(name)] for name in self.fields.names}
        in_order: list[Field] = []
        for name, columns in self.blocks:
            width = columns.stop - columns.start
            in_order += dimensions[name][:width]
            dimensions[name] = dimensions[name][width:]
        return Layout(Fields(in_order))

    def to_json(self) -> Any:
        """Return plain values that `from_json` reads."""
        records = self.fields.to_json()
        if self.is_plain:
            return records
        blocks = [[name, block.stop - block.start] for name, block in self.blocks]
        joints = [[[one.start, one.stop] for one in joint.members] for joint in self.joints]
        return {"fields": records, "blocks": blocks, "joints": joints}

    @classmethod
    def from_json(cls, value: Any) -> "Layout":
        """Return the layout that `to_json` has written."""
        if isinstance(value, list):
            return cls(Fields.from_json(value))
        joints = []
        for members in value["joints"]:
            columns = slice(members[0][0], members[-1][1])
            joints.append(Joint(columns, tuple(slice(*member) for member in members)))
        return cls(Fields.from_json(value["fields"]), map(tuple, value["blocks"]), joints)

    def is_alike(self, other: "Layout") -> bool:
        """Return whether both have the same names and columns."""
        mine = (self.fields.names, self.fields.widths, self.blocks)
        return mine == (other.fields.names, other.fields.widths, other.blocks)

    def __repr__(self) -> str:
        if self.is_plain:
            return repr(self.fields)
        shown = [f"{name} {block.stop - block.start}" for name, block in self.blocks]
        return f"{self.fields} in the blocks {', '.join(shown)}"

    @classmethod
    def over(
        cls, sites: Sequence[Mapping[str, int]], fields: Sequence[Field] = ()
    ) -> tuple["Layout", list[slice]]:
        """Return the layout of fields that arrive at several sites, and the columns of each site.

        Sites that share a gate become neighbours, and so do their fields.

        Args:
            sites: The width of each field that arrives at each site, in order.
            fields: Cost, group and protection of the fields that are not as by default.
        """
        given = {field.name: field for field in fields}
        blocks: list[tuple[str, int]] = []
        joints = []
        columns = [slice(0, 0)] * len(sites)
        start = 0
        for members in _joined(sites, given):
            for site in members:
                stop = start + sum(sites[site].values())
                columns[site] = slice(start, stop)
                blocks += sites[site].items()
                start = stop
            if len(members) > 1:
                own = tuple(columns[site] for site in members)
                joints.append(Joint(slice(own[0].start, start), own))
        widths: dict[str, int] = {}
        for name, width in blocks:
            widths[name] = widths.get(name, 0) + width
        found = [_with_width(given.get(name), name, width) for name, width in widths.items()]
        return cls(Fields(found), blocks, joints), columns


def _with_width(field: Field | None, name: str, width: int) -> Field:
    """Return a field as it was given, with the width that its parts have together."""
    if field is None:
        return Field(name, width)
    cost = None if field.cost == field.width else field.cost  # by default it is the width
    return replace(field, width=width, cost=cost)


def _joined(sites: Sequence[Mapping[str, int]], given: Mapping[str, Field]) -> list[list[int]]:
    """Return the numbers of the sites that share gates, directly or through other sites."""
    joined: list[tuple[list[int], set[tuple[str, str]]]] = []
    for number, names in enumerate(sites):
        owners = {_owner(given.get(name), name) for name in names}
        members = [number]
        apart = []
        for others, theirs in joined:
            if owners & theirs:
                members = others + members
                owners |= theirs
            else:
                apart.append((others, theirs))
        joined = [*apart, (sorted(members), owners)]
    return sorted(members for members, _ in joined)


def _owner(field: Field | None, name: str) -> tuple[str, str]:
    """Return what has the gate of a field: the field, or its group."""
    if field is not None and field.group is not None:
        return ("group", field.group)
    return ("field", name)
