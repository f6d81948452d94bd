"""Find which rows of one table for all fields belong to which field: table(ids + offsets)."""

import operator
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn

from ..runtime import own_rows, with_item
from .elementwise import Elementwise
from .facts import Facts, Form, View
from .writer import Writer

ADDITIONS: set[Any] = {operator.add, torch.add, "add"}
CASTS: set[Any] = {"long", "int", "to", "contiguous", "clone"}
FILLS: set[Any] = {with_item, torch.masked_fill, "masked_fill"}  # (x, mask, value)


CLAMPS: set[Any] = {torch.clamp, "clamp", own_rows}  # ids are read as they leave these


@dataclass(frozen=True)
class RowBlocks:
    """The rows of the fields that are left of one table for all fields.

    Rows in front of all fields belong to none of them, and stay.

    Attributes:
        start: The first row of the field of each place along the first axis of the ids, (n,); or
            of the one field that is looked up, ().
        stop: The row behind its last one, of the same shape.
        left: The rows that are left, rising.
        first: The first row of the first field; the rows before it are reserved.
    """

    start: Tensor
    stop: Tensor
    left: Tensor
    first: int

    @property
    def moves(self) -> Tensor:
        """Return what to add to ids, so that they find their rows among those that are left."""
        return torch.searchsorted(self.left, self.start) - self.start


class OwnRows(Elementwise):
    """The check of an earlier pruning that ids lie within the rows of their fields."""

    def facts(self, node: fx.Node, view: View) -> Facts:
        return view.facts[view.row_sources(node)[0]]


def row_blocks(
    node: fx.Node, view: View, calls: Mapping[fx.Node, Form | None], table: nn.Embedding
) -> RowBlocks | None:
    """Return the rows that are left of a table for several fields; None if all rows stay.

    The ids must be made of ids of the fields, by adding numbers that no batch changes and by
    replacing some of them with a reserved row. They lie within the rows of their own fields on the
    example; the new model checks that they do on other batches, see `own_rows`.

    Args:
        node: The lookup whose rows are wanted.
        view: The view.
        calls: All lookups in the table, those that are computed with the part that is computed.
        table: The table.
    """
    found = {call: _starts(call.all_input_nodes[0], view) for call in _calls_of(node, view)}
    starts = [each[0] for each in found.values() if each is not None]
    if len(starts) < len(found):
        return None
    every = torch.tensor(sorted({row for start in starts for row in start.flatten().tolist()}))
    reserved = {row for each in found.values() if each is not None for row in each[1]}
    if table.padding_idx is not None:
        reserved.add(table.padding_idx)
    first = int(every[0])
    rows = table.num_embeddings
    is_apart = len(every) > 1 and first >= 0 and int(every[-1]) < rows
    if not is_apart or any(not 0 <= row < first for row in reserved):
        return None
    stops = torch.cat([every[1:], torch.tensor([rows])])
    kept: set[int] = set()
    blocks = {}
    for call, form in calls.items():
        known = found[call]
        assert known is not None
        start = known[0] if form is None else known[0][list(form.index)]
        stop = stops[torch.searchsorted(every, start)]
        if not _are_within(view.trace.values[call.all_input_nodes[0]], form, start, stop, first):
            return None
        blocks[call] = (start, stop)
        kept.update(start.flatten().tolist())
    pairs = zip(every.tolist(), stops.tolist(), strict=True)
    ranges = [torch.arange(start, stop) for start, stop in pairs if start in kept]
    left = torch.cat([torch.arange(first), *ranges])
    return RowBlocks(*blocks[node], left, first) if len(left) < rows else None


def _calls_of(node: fx.Node, view: View) -> list[fx.Node]:
    """Return all calls of the layer that a node calls."""
    nodes = view.trace.graph.nodes
    return [other for other in nodes if (other.op, other.target) == (node.op, node.target)]


def _are_within(ids: Tensor, form: Form | None, start: Tensor, stop: Tensor, first: int) -> bool:
    """Return whether ids of the example, (B, ...), lie within the rows of their own fields."""
    own = ids.cpu() if form is None else ids.cpu().index_select(1, torch.tensor(form.index))
    shape = (-1, *(1 for _ in own.shape[2:])) if start.dim() else ()
    is_own = (own >= start.reshape(shape)) & (own < stop.reshape(shape))
    return bool((is_own | ((own >= 0) & (own < first))).all())


def _starts(ids: fx.Node, view: View) -> tuple[Tensor, set[int]] | None:
    """Return the first row of each field of a lookup, (n,) or (), and the reserved rows."""
    found = _added(ids, view)
    if found is None:
        return None
    added, reserved = found
    if not added.dim():
        return added, reserved
    lines = added.reshape(len(added), -1)  # (fields, ids per field)
    start = lines[:, 0]
    return (start, reserved) if bool((lines == start[:, None]).all()) else None


def _added(node: fx.Node, view: View) -> tuple[Tensor, set[int]] | None:
    """Return what is added to each id of a row, and the reserved rows; None if it is not known."""
    shape = view.trace.shape(node)
    if not view.is_rows(node) or 0 in shape:
        return None
    sources = view.row_sources(node)
    if node.target in CASTS and len(node.all_input_nodes) == 1:
        return _added(sources[0], view)
    if node.target in CLAMPS and len(sources) == 1 and view.trace.shape(sources[0]) == shape:
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


def write_moved(ids: fx.Node, blocks: RowBlocks, form: Form | None, writer: Writer) -> fx.Node:
    """Write the ids of kept fields, checked, and moved to the rows that their fields have now.

    They are written once where several tables look up the same ids.

    Args:
        ids: What the table looked up.
        blocks: The rows of each field.
        form: The fields that are kept.
        writer: The writer.
    """
    part = writer.plain_part(ids, form).node
    value: Tensor = writer.view.trace.values[ids]
    shape = (-1, *(1 for _ in value.shape[2:])) if blocks.start.dim() else ()

    def numbers(hint: str, array: Tensor) -> fx.Node:
        return writer.register(hint, array.reshape(shape).to(value))

    start = numbers("start", blocks.start)
    last = numbers("last", blocks.stop - 1)
    tables = [str(user.target) for user in ids.users if user.op == "call_module"]
    label = ", ".join(dict.fromkeys(tables))
    own = _once(writer, own_rows, part, start, last, blocks.first, label)
    moved = _once(writer, operator.add, own, numbers("moves", blocks.moves))
    if not blocks.first:
        return moved
    is_reserved = _once(writer, operator.lt, own, blocks.first)
    return _once(writer, torch.where, is_reserved, own, moved)


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
