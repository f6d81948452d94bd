"""Find which rows of one table for all fields belong to which field: table(ids + offsets)."""

import operator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

from ..runtime import with_item
from .facts import Form, View
from .writer import Writer

ADDITIONS: set[Any] = {operator.add, torch.add, "add"}
CASTS: set[Any] = {"long", "int", "to", "contiguous", "clone"}
FILLS: set[Any] = {with_item, torch.masked_fill, "masked_fill"}  # (x, mask, value)


@dataclass(frozen=True)
class RowBlocks:
    """The rows of each field in one table; rows in front of all fields belong to none of them.

    Attributes:
        start: The first row of each field, rising.
        rows: The number of rows of the table.
    """

    start: Tensor
    rows: int

    @property
    def first(self) -> int:
        """Return the first row of the first field; the rows before it are reserved."""
        return int(self.start[0])

    def rows_of(self, kept: Tensor) -> Tensor:
        """Return the rows that are left with these fields."""
        stop = self._stop()
        blocks = [torch.arange(self.first)]
        for place in kept.tolist():
            blocks.append(torch.arange(int(self.start[place]), int(stop[place])))
        return torch.cat(blocks)

    def moves(self, kept: Tensor) -> Tensor:
        """Return what to add to the ids of each of these fields, so that they find their rows."""
        start = self.start[kept]
        sizes = self._stop()[kept] - start
        return self.first + sizes.cumsum(0) - sizes - start

    def _stop(self) -> Tensor:
        return torch.cat([self.start[1:], torch.tensor([self.rows])])


def row_blocks(ids: fx.Node, view: View, rows: int, padding: int | None) -> RowBlocks | None:
    """Return the rows of each field; None if the ids do not show them.

    The ids must be made of ids of the fields, by adding numbers that no batch changes and by
    replacing some of them with a reserved row.

    Args:
        ids: What the table looks up, (B, fields, ...).
        view: The view.
        rows: The number of rows of the table.
        padding: The row that stands for no id; None if there is none.
    """
    found = _added(ids, view)
    if found is None:
        return None
    added, reserved = found
    lines = added.reshape(len(added), -1)  # (fields, ids per field)
    start = lines[:, 0]
    is_one = bool((lines == start[:, None]).all())
    rises = int(start[0]) >= 0 and bool((start.diff() > 0).all())
    if len(start) < 2 or not is_one or not rises or int(start[-1]) >= rows:
        return None
    if padding is not None:
        reserved = {*reserved, padding}
    if any(not 0 <= row < int(start[0]) for row in reserved):
        return None
    return RowBlocks(start, rows)


def _added(node: fx.Node, view: View) -> tuple[Tensor, set[int]] | None:
    """Return what is added to each id of a row, and the reserved rows; None if it is not known."""
    shape = view.trace.shape(node)
    if not shape:
        return None
    sources = view.row_sources(node)
    if node.target in CASTS and len(node.all_input_nodes) == 1:
        return _added(sources[0], view)
    if node.target in FILLS and len(node.args) == 3 and not node.kwargs:
        return _filled(node, view)
    number = _number_in(node, view) if node.target in ADDITIONS else None
    if number is None:
        return torch.zeros(shape, dtype=torch.int64), set()
    own = _added(sources[0], view)
    if own is None or own[1]:  # the reserved rows would be moved as well
        return None
    return own[0] + number, set()


def _filled(node: fx.Node, view: View) -> tuple[Tensor, set[int]] | None:
    """Return the same for ids of which some are replaced by a reserved row."""
    arguments: Any = node.args
    ids, mask, value = arguments
    is_row = isinstance(value, int) and not isinstance(value, bool)
    if not is_row or not view.is_rows(ids) or not view.is_rows(mask):
        return None
    known: Tensor = view.trace.values[mask]
    found = _added(ids, view)
    if found is None or known.dtype != torch.bool or view.trace.shape(mask) != found[0].shape:
        return None
    return found[0], {*found[1], value}


def _number_in(node: fx.Node, view: View) -> Tensor | None:
    """Return what a sum adds to ids, in the shape of a row; None if that depends on the batch."""
    shape = view.trace.shape(node)
    own = view.row_sources(node)
    if len(own) != 1 or len(node.args) != 2 or node.kwargs or view.trace.shape(own[0]) != shape:
        return None
    arguments: Any = node.args
    (other,) = (each for each in arguments if each is not own[0])
    value = view.trace.values[other] if view.is_fixed(other) else other
    if isinstance(value, int):
        value = torch.tensor(value)
    if not isinstance(value, Tensor) or value.is_floating_point():
        return None
    if value.dim() > len(shape) and len(value) > 1:
        return None
    return value.detach().cpu().expand(1, *shape)[0]


def write_moved(ids: fx.Node, blocks: RowBlocks, form: Form, writer: Writer) -> fx.Node:
    """Write the ids of kept fields, moved to the rows that their fields have now.

    They are written once where several tables look up the same ids.

    Args:
        ids: What the table looked up.
        blocks: The rows of each field.
        form: The fields that are kept.
        writer: The writer.
    """
    part = writer.plain_part(ids, form).node
    value: Tensor = writer.view.trace.values[ids]
    shape = (-1, *(1 for _ in value.shape[2:]))
    numbers = blocks.moves(torch.tensor(form.index)).reshape(shape)
    moves = writer.register("moves", numbers.to(value))
    moved = _once(writer, operator.add, part, moves)
    if not blocks.first:
        return moved
    is_reserved = _once(writer, operator.lt, part, blocks.first)
    return _once(writer, torch.where, is_reserved, part, moved)


def _once(writer: Writer, function: Any, part: fx.Node, *others: Any) -> fx.Node:
    """Write a call, unless it is written already."""
    args = (part, *others)
    for user in part.users:
        if user.target is function and list(map(_key, user.args)) == list(map(_key, args)):
            return user
    return writer.graph.call_function(function, args)


def _key(argument: Any) -> Any:
    """Return what identifies an argument: a buffer is read by several nodes."""
    is_buffer = isinstance(argument, fx.Node) and argument.op == "get_attr"
    return argument.target if is_buffer else argument
