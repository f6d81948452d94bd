"""Rules for operations that move elements around: views, slices, splits, concatenations."""

import operator

import torch
from torch import Tensor, fx

from .base import Opaque
from .facts import Facts, Form, View, form_of
from .writer import Writer, Written


class Layout(Opaque):
    """The same elements in another order or shape: a permutation of the axes, to begin with."""

    def applies(self, node: fx.Node, view: View) -> bool:
        return len(view.row_sources(node)) == 1

    def known(self, node: fx.Node, view: View) -> Facts:
        facts = {source: view.facts[source] for source in view.row_sources(node)}
        const = view.evaluate(node, {source: fact.const for source, fact in facts.items()})
        return Facts(
            const.bool(),
            view.evaluate(node, {source: fact.value for source, fact in facts.items()}).double(),
        )

    def ask(self, node: fx.Node, view: View) -> None:
        sources = view.row_sources(node)
        live = view.live(node)
        start, numbered = 0, {}
        for source in sources:  # number all elements, and see which of them arrive at live places
            size = view.facts[source].const.numel()
            numbered[source] = torch.arange(start, start + size).reshape(view.trace.shape(source))
            start += size
        arrived = torch.zeros(start, dtype=torch.bool)
        arrived[view.evaluate(node, numbered)[live]] = True
        for source in sources:
            mask = arrived[numbered[source]]
            if bool(mask.any()):
                view.want(source, mask)
        for source in node.all_input_nodes:
            if not view.is_rows(source):
                self.ask_other(source, view)

    def ask_other(self, source: fx.Node, view: View) -> None:
        """Ask for an input without rows."""
        view.want(source)

    def write(self, node: fx.Node, writer: Writer) -> Written:
        (source,) = writer.view.row_sources(node)
        held = writer.written[source]
        if held.form is None:
            return self.write_whole(node, writer, source, held)
        present = writer.view.evaluate(
            node, {source: held.form.mask(writer.view.trace.shape(source))}
        ).bool()
        form = form_of(present)
        if form is None and not present.all():
            return self.write_whole(node, writer, source, writer.as_form(source, None))
        return self.write_part(node, writer, source, held, present, form)

    def write_whole(self, node: fx.Node, writer: Writer, source: fx.Node, held: Written) -> Written:
        """Write it for all elements."""
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
        """Write it for the elements that are there."""
        return writer.carry(node, {source: held}, form)


class Reshape(Layout):
    """view, reshape, flatten, unsqueeze, ...: the order stays, so a part of the elements takes the shape of that part."""

    reads = Layout.reads and Layout.reads | {"batch"}

    def applies(self, node: fx.Node, view: View) -> bool:
        by_chance = (
            node.target in ("squeeze", torch.squeeze) and len(node.args) + len(node.kwargs) == 1
        )  # a lone row goes too
        return super().applies(node, view) and not by_chance

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
        return writer.carry(
            node, {source: held}, form, writer.graph.call_method("reshape", (held.node, -1, *shape))
        )


class Pick(Layout):
    """A slice, an index, or one part of a split."""

    def ask_other(self, source: fx.Node, view: View) -> None:
        if view.is_fixed(
            source
        ):  # else it is the split, which is written for each part of its input
            view.want(source)

    def write_whole(self, node: fx.Node, writer: Writer, source: fx.Node, held: Written) -> Written:
        split = writer.view.split_of(node)
        if split is None:
            return writer.carry(node, {source: held}, None)
        part = writer.graph.call_function(
            operator.getitem, (writer.copy_once(split, held.node), node.args[1])
        )
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
        axis, shape = held.form.axis, writer.view.trace.shape(source)
        numbers = torch.arange(torch.Size(shape).numel()).reshape(shape)
        picked = writer.view.evaluate(node, {source: numbers})
        along = torch.arange(shape[axis - 1]).reshape(
            [-1 if dim == axis - 1 else 1 for dim in range(len(shape))]
        )
        lines = torch.unique(
            along.expand(shape).flatten()[picked]
        )  # which places along the axis are picked
        places = held.form.places(lines.tolist())
        if torch.equal(numbers.index_select(axis - 1, lines), picked):
            return writer.carry(node, {source: held}, form, writer.select(held.node, axis, places))
        if len(lines) == 1 and torch.equal(numbers.select(axis - 1, int(lines)), picked):
            return writer.carry(
                node,
                {source: held},
                form,
                writer.graph.call_method("select", (held.node, axis, places[0])),
            )
        return self.write_whole(node, writer, source, writer.as_form(source, None))


class Join(Layout):
    """cat and stack: a piece of which nothing is computed is left out."""

    def applies(self, node: fx.Node, view: View) -> bool:
        pieces = self.pieces(node)
        return (
            bool(pieces)
            and all(view.is_rows(piece) for piece in pieces)
            and self.axis(node, view) > 0
        )

    def pieces(self, node: fx.Node) -> list[fx.Node]:
        """What is put together."""
        pieces = node.args[0] if node.args else node.kwargs.get("tensors")
        return (
            [piece for piece in pieces if isinstance(piece, fx.Node)]
            if isinstance(pieces, tuple | list)
            else []
        )

    def axis(self, node: fx.Node, view: View) -> int:
        """The dimension along which it is put together."""
        axis = (
            node.args[1]
            if len(node.args) > 1
            else node.kwargs.get("dim", node.kwargs.get("axis", 0))
        )
        return axis % view.trace.values[node].dim() if isinstance(axis, int) else 0

    def write(self, node: fx.Node, writer: Writer) -> Written:
        axis, pieces, stacked = (
            self.axis(node, writer.view),
            self.pieces(node),
            node.target is torch.stack,
        )
        held = {piece: writer.written[piece] for piece in pieces if writer.is_written(piece)}
        if any(
            part.form is not None and (stacked or part.form.axis != axis) for part in held.values()
        ):
            held = {piece: writer.as_form(piece, None) for piece in pieces}
        parts, index, start = [], [], 0
        for piece in pieces:
            width = 1 if stacked else writer.view.trace.shape(piece)[axis - 1]
            if piece in held:
                part = held[piece].form
                parts.append(held[piece].node)
                index += [start + place for place in (range(width) if part is None else part.index)]
            start += width
        form = None if len(index) == start else Form(axis, tuple(index))
        if len(parts) == 1 and not stacked:
            return writer.carry(node, held, form, parts[0])
        return writer.carry(
            node,
            held,
            form,
            writer.graph.call_function(torch.stack if stacked else torch.cat, (parts, axis)),
        )
