"""Rules for operations that move elements: views, slices, splits, concatenations."""

import operator

import torch
from torch import Tensor, fx

from .base import CutRule
from .facts import Facts, Form, View, form_of
from .sums import MOST_WEIGHTS, Expression, Sums, union
from .writer import Writer
from .written import Written


class Layout(CutRule):
    """The same elements in another order or shape; as it is, for permutations of the axes."""

    def applies(self, node: fx.Node, view: View) -> bool:
        return len(view.row_sources(node)) == 1

    def facts(self, node: fx.Node, view: View) -> Facts:
        facts = {source: view.facts[source] for source in view.row_sources(node)}
        const = view.evaluate(node, {source: fact.const for source, fact in facts.items()})
        value = view.evaluate(node, {source: fact.value for source, fact in facts.items()})
        return Facts(const.bool(), value.double(), self._sums(node, view))

    def _sums(self, node: fx.Node, view: View) -> Sums | None:
        """Return the sums of the inputs at the places where they arrive."""
        sources = view.row_sources(node)
        held = {source: view.facts[source].sums for source in sources}
        found = {source: sums for source, sums in held.items() if sums is not None}
        if not found or not view.keeps_precision(node):
            return None
        features, wide = union(
            [sums.features for sums in found.values()], [sums.matrix for sums in found.values()]
        )
        shape = view.trace.shape(node)
        if not wide or torch.Size(shape).numel() * len(features) > MOST_WEIGHTS:
            return None
        numbered, count = self._numbered(node, view)
        mask = torch.zeros(count, dtype=torch.bool)
        matrix = torch.zeros(count, len(features), dtype=torch.float64)
        for (source, sums), rows in zip(found.items(), wide, strict=True):
            numbers = numbered[source].flatten()
            mask[numbers] = sums.mask.flatten()
            matrix[numbers] = rows.reshape(-1, len(features))
        arrived = view.evaluate(node, numbered)
        return Sums(mask[arrived], features, matrix[arrived])

    def takes_sums(self, node: fx.Node, view: View, source: fx.Node) -> bool:
        return view.facts[node].sums is not None

    def express(self, node: fx.Node, view: View, index: Tensor) -> Expression | None:
        numbered, _ = self._numbered(node, view)
        arrived = view.evaluate(node, numbered).flatten()[index]
        parts = []
        matrices = []
        offset = torch.zeros(len(index), dtype=torch.float64)
        for source, numbers in numbered.items():
            start = int(numbers.flatten()[0]) if numbers.numel() else 0
            own = (arrived >= start) & (arrived < start + numbers.numel())
            if not bool(own.any()):
                continue
            found = view.express(source, arrived[own] - start)
            rows = torch.zeros(len(index), len(found.features), dtype=torch.float64)
            rows[own] = found.matrix
            offset[own] = found.offset
            parts.append(found.features)
            matrices.append(rows)
        features, wide = union(parts, matrices)
        return Expression(features, torch.stack(wide).sum(0), offset) if wide else None

    def request(self, node: fx.Node, view: View) -> None:
        numbered, count = self._numbered(node, view)
        arrived = torch.zeros(count, dtype=torch.bool)
        arrived[view.evaluate(node, numbered)[view.live(node)]] = True
        for source, numbers in numbered.items():
            mask = arrived[numbers]
            if bool(mask.any()):
                view.request(source, mask)
        for source in node.all_input_nodes:
            if not view.is_rows(source):
                self.request_other(source, view)

    def _numbered(self, node: fx.Node, view: View) -> tuple[dict[fx.Node, Tensor], int]:
        """Number all elements of the inputs, to see which of them arrive at live places."""
        start = 0
        numbered = {}
        for source in view.row_sources(node):
            stop = start + view.facts[source].const.numel()
            numbered[source] = torch.arange(start, stop).reshape(view.trace.shape(source))
            start = stop
        return numbered, start

    def request_other(self, source: fx.Node, view: View) -> None:
        """Request an input without rows."""
        view.request(source)

    def write(self, node: fx.Node, writer: Writer) -> Written:
        view = writer.view
        (source,) = view.row_sources(node)
        held = writer.written.get(source) or writer.as_form(source, None)
        if held.form is None:
            return self.write_complete(node, writer, source, held)
        mask = held.form.mask(view.trace.shape(source))
        present = view.evaluate(node, {source: mask}).bool()
        form = form_of(present)
        if form is None and not present.all():
            return self.write_complete(node, writer, source, writer.as_form(source, None))
        return self.write_part(node, writer, source, held, present, form)

    def write_complete(
        self, node: fx.Node, writer: Writer, source: fx.Node, held: Written
    ) -> Written:
        """Write the operation for all elements."""
        return writer.carry(node, {source: held}, None)

    def write_part(
        self,
        node: fx.Node,
        writer: Writer,
        source: fx.Node,
        held: Written,
        present: Tensor,
        form: Form | None,
    ) -> Written:
        """Write the operation for the elements that are computed.

        Args:
            node: The old operation.
            writer: The writer.
            source: The input.
            held: What was written of the input.
            present: Which elements of the result are computed.
            form: The same as a form.
        """
        return writer.carry(node, {source: held}, form)


class Reshape(Layout):
    """view, reshape, flatten, unsqueeze: the order stays, so a part takes the shape of the part."""

    reads = frozenset(("rows", "fixed", "mode", "batch"))

    def applies(self, node: fx.Node, view: View) -> bool:
        squeezes = node.target in ("squeeze", torch.squeeze)
        if squeezes and len(node.args) + len(node.kwargs) == 1:
            return False  # the dimension of a single row disappears too
        return super().applies(node, view)

    def write_part(
        self,
        node: fx.Node,
        writer: Writer,
        source: fx.Node,
        held: Written,
        present: Tensor,
        form: Form | None,
    ) -> Written:
        shape = list(present.shape)
        if form is not None:
            shape[form.axis - 1] = len(form.index)
        new = writer.graph.call_method("reshape", (held.node, -1, *shape))
        return writer.carry(node, {source: held}, form, new)


class Pick(Layout):
    """A slice, an index, or one part of a split."""

    def request_other(self, source: fx.Node, view: View) -> None:
        if view.is_fixed(source):  # else it is the split, which is written with its input
            view.request(source)

    def write_complete(
        self, node: fx.Node, writer: Writer, source: fx.Node, held: Written
    ) -> Written:
        split = writer.view.split_of(node)
        if split is None:
            return writer.carry(node, {source: held}, None)
        parts = writer.copy_once(split, held.node)
        part = writer.graph.call_function(operator.getitem, (parts, node.args[1]))
        return writer.carry(node, {source: held}, None, part)

    def write_part(
        self,
        node: fx.Node,
        writer: Writer,
        source: fx.Node,
        held: Written,
        present: Tensor,
        form: Form | None,
    ) -> Written:
        assert held.form is not None
        axis = held.form.axis
        shape = writer.view.trace.shape(source)
        numbers = torch.arange(torch.Size(shape).numel()).reshape(shape)
        picked = writer.view.evaluate(node, {source: numbers})
        lines = _lines(picked, axis, shape)
        if lines is not None and torch.equal(numbers.index_select(axis - 1, lines), picked):
            wanted = _by_line(writer.view.live(node), axis).any(1)
            of_form = torch.isin(lines, torch.tensor(held.form.index))
            chosen = (of_form & wanted).nonzero().flatten()
            form = None if len(chosen) == len(lines) else Form(axis, tuple(chosen.tolist()))
            places = [held.form.index.index(int(line)) for line in lines[chosen]]
            new = writer.select(held.node, axis, places)
        elif len(distinct := torch.unique(_along(axis, shape)[picked])) == 1:
            (place,) = held.form.places(distinct.tolist())
            if not torch.equal(numbers.select(axis - 1, int(distinct)), picked):
                return self.write_complete(node, writer, source, writer.as_form(source, None))
            new = writer.graph.call_method("select", (held.node, axis, place))
        else:
            return self.write_complete(node, writer, source, writer.as_form(source, None))
        return writer.carry(node, {source: held}, form, new)


def _along(axis: int, shape: tuple[int, ...]) -> Tensor:
    """Return the place along an axis of each element of a row, numbered one after the other."""
    along_shape = [1] * len(shape)
    along_shape[axis - 1] = -1
    return torch.arange(shape[axis - 1]).reshape(along_shape).expand(shape).flatten()


def _by_line(row: Tensor, axis: int) -> Tensor:
    """Return the elements of a row with those of each line along an axis beside each other."""
    return row.movedim(axis - 1, 0).reshape(row.shape[axis - 1], -1)


def _lines(picked: Tensor, axis: int, shape: tuple[int, ...]) -> Tensor | None:
    """Return the place along an axis from which each line of numbered elements was picked."""
    if picked.dim() != len(shape):
        return None
    along = _by_line(_along(axis, shape)[picked], axis)
    return along[:, 0] if bool((along == along[:, :1]).all()) else None


class Join(Layout):
    """cat, column_stack and stack: a piece without computed elements is left out."""

    def applies(self, node: fx.Node, view: View) -> bool:
        pieces = self._pieces(node)
        if not pieces or not all(view.is_rows(piece) for piece in pieces):
            return False
        return self._axis(node, view) > 0

    def _pieces(self, node: fx.Node) -> list[fx.Node]:
        """Return the pieces in order; a piece may occur twice."""
        pieces = node.args[0] if node.args else node.kwargs.get("tensors")
        if not isinstance(pieces, tuple | list):
            return []
        return [piece for piece in pieces if isinstance(piece, fx.Node)]

    def _axis(self, node: fx.Node, view: View) -> int:
        """Return the dimension along which the pieces are joined; 0 if it is not known."""
        if node.target in (torch.column_stack, torch.hstack):
            return 1 if all(view.trace.values[each].dim() > 1 for each in self._pieces(node)) else 0
        axis = node.kwargs.get("dim", node.kwargs.get("axis", 0))
        if len(node.args) > 1:
            axis = node.args[1]
        return axis % view.trace.values[node].dim() if isinstance(axis, int) else 0

    def write(self, node: fx.Node, writer: Writer) -> Written:
        axis = self._axis(node, writer.view)
        pieces = self._pieces(node)
        stacked = node.target is torch.stack
        held = {piece: writer.written[piece] for piece in pieces if writer.is_written(piece)}
        forms = [part.form for part in held.values() if part.form is not None]
        if any(stacked or form.axis != axis for form in forms):
            held = {piece: writer.as_form(piece, None) for piece in pieces}
        parts = []
        index: list[int] = []
        start = 0
        for piece in pieces:
            width = 1 if stacked else writer.view.trace.shape(piece)[axis - 1]
            if piece in held:
                form = held[piece].form
                parts.append(held[piece].node)
                inside = range(width) if form is None else form.index
                index += [start + place for place in inside]
            start += width
        joined_form = None if len(index) == start else Form(axis, tuple(index))
        if len(parts) == 1 and not stacked:
            return writer.carry(node, held, joined_form, parts[0])
        join = torch.stack if stacked else torch.cat
        new = writer.graph.call_function(join, (parts, axis))
        return writer.carry(node, held, joined_form, new)
