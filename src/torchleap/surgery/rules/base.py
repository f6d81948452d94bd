"""One rule a kind of operation: what it makes of constants, what it needs, and how it is written for a part of its elements.

Where a rule does not hold the operation is opaque: it gets its inputs whole, with the constants put back in, and computes what
it always did. So whatever a model does, the result is exact; rules only make it smaller.
"""

import operator
from typing import Any

import torch
from torch import Tensor, fx
from torch.nn import functional

from ..trace.trace import Kind
from .facts import Facts, Form, View, form_of
from .writer import Writer, Written, kept_columns, runs_of

LONG_RUN = 64  # columns from which on copying neighbours beats picking columns one by one
CARRIERS: set[Any] = {
    functional.dropout,
    "contiguous",
    "clone",
}  # a pending scale and shift pass these
PRODUCTS: set[Any] = {operator.mul, torch.mul, torch.multiply, "mul", "multiply"}


class Opaque:
    """Any operation: it needs its inputs whole, and nothing is known of the result."""

    reads: frozenset[Kind] | None = frozenset(
        ("rows", "fixed", "mode")
    )  # rules hold for these inputs alone; None is for all

    def applies(self, node: fx.Node, view: View) -> bool:
        """Whether the rule holds for this call."""
        return True

    def known(self, node: fx.Node, view: View) -> Facts:
        """Which elements of the result are constants."""
        return Facts.none(view.trace.shape(node))

    def ask(self, node: fx.Node, view: View) -> None:
        """Ask for what is needed to compute the live elements."""
        for source in node.all_input_nodes:
            view.want(source)

    def write(self, node: fx.Node, writer: Writer) -> Written:
        """Write the operation into the new graph."""
        return Written(writer.copy(node, writer.whole))


class Input(Opaque):
    """A tensor of the batch: the columns that nobody reads need not be in it any more."""

    def ask(self, node: fx.Node, view: View) -> None:
        for source in node.all_input_nodes:
            view.want(source)

    def write(self, node: fx.Node, writer: Writer) -> Written:
        held = writer.placeholders.get(node) or writer.copy(node, writer.whole)
        form = form_of(writer.view.live(node))
        if form is None:
            return Written(held)
        index = writer.register("columns", torch.tensor(form.index))
        width = writer.view.trace.shape(node)[form.axis - 1]
        runs = runs_of(form.index)
        arguments = (
            held,
            form.axis,
            index,
            width,
            tuple(runs) if len(form.index) >= LONG_RUN * len(runs) else (),
        )
        return Written(writer.graph.call_function(kept_columns, arguments), form)


class Elementwise(Opaque):
    """Each element from the elements at its own place: a sum, a product, an activation."""

    def applies(self, node: fx.Node, view: View) -> bool:
        sources, rank = view.row_sources(node), view.trace.values[node].dim()
        fixed = [
            view.trace.values[source] for source in node.all_input_nodes if view.is_fixed(source)
        ]
        aligned = all(
            value.dim() < rank or (value.dim() == rank and value.shape[0] == 1) for value in fixed
        )
        return (
            bool(sources)
            and aligned
            and all(view.trace.values[source].dim() == rank for source in sources)
        )

    def known(self, node: fx.Node, view: View) -> Facts:
        shape = view.trace.shape(node)
        facts = {source: view.facts[source] for source in view.row_sources(node)}
        const = torch.ones(shape, dtype=torch.bool)
        for fact in facts.values():
            const = const & fact.const
        value = view.evaluate(node, {source: fact.value for source, fact in facts.items()}).double()
        if node.target in PRODUCTS and len(facts) == 2:  # nothing comes of a product with 0
            for fact in facts.values():
                zero = (fact.const & (fact.value == 0)).expand(shape)
                const, value = const | zero, torch.where(zero, 0.0, value)
        return Facts(const, value)

    def ask(self, node: fx.Node, view: View) -> None:
        live = view.live(node)
        for source in node.all_input_nodes:
            view.want(
                source, _sum_to(live, view.trace.shape(source)) if view.is_rows(source) else True
            )

    def write(self, node: fx.Node, writer: Writer) -> Written:
        view, shape = writer.view, writer.view.trace.shape(node)
        sources = [source for source in view.row_sources(node) if writer.is_written(source)]
        form = writer.written[sources[0]].form
        alike = all(
            writer.written[source].form == form and view.trace.shape(source) == shape
            for source in sources
        )
        if not alike or not _covers(form, view.live(node)):
            form = form_of(view.live(node))
        if len(view.row_sources(node)) == 1 and (node.target in CARRIERS or view.is_carrier(node)):
            return writer.carry(node, {sources[0]: writer.as_form(sources[0], form)}, form)
        rank = len(shape) + 1
        new = writer.copy(
            node, lambda s: writer.operand(s, form), lambda s: writer.fixed_operand(s, form, rank)
        )
        return Written(new, form)


def _covers(form: Form | None, live: Tensor) -> bool:
    return form is None or not bool((live & ~form.mask(tuple(live.shape))).any())


def _sum_to(mask: Tensor, shape: tuple[int, ...]) -> Tensor:
    return mask.double().sum_to_size(shape) > 0


class Reduce(Opaque):
    """sum and mean: constants among the summands become one constant that is added."""

    def applies(self, node: fx.Node, view: View) -> bool:
        dims = self.dims(node, view)
        return (
            len(view.row_sources(node)) == 1
            and bool(dims)
            and 0 not in dims
            and "dtype" not in node.kwargs
        )

    def dims(self, node: fx.Node, view: View) -> tuple[int, ...]:
        """The dimensions that are summed over."""
        dims: Any = (
            node.args[1] if len(node.args) > 1 else node.kwargs.get("dim", node.kwargs.get("axis"))
        )
        dims = (dims,) if isinstance(dims, int) else dims
        if not isinstance(dims, tuple | list) or not all(isinstance(dim, int) for dim in dims):
            return ()
        rank = view.trace.values[node.all_input_nodes[0]].dim()
        return tuple(dim % rank for dim in dims)

    def known(self, node: fx.Node, view: View) -> Facts:
        (source,) = view.row_sources(node)
        facts = view.facts[source]
        return Facts(
            view.evaluate(node, {source: (~facts.const).double()}) == 0,
            view.evaluate(node, {source: facts.value}),
        )

    def ask(self, node: fx.Node, view: View) -> None:
        (source,) = view.row_sources(node)
        live = view.live(node)
        if live.dim() < len(view.trace.shape(source)):
            for dim in sorted(self.dims(node, view)):
                live = live.unsqueeze(dim - 1)
        view.want(source, live.expand(view.trace.shape(source)).clone())

    def write(self, node: fx.Node, writer: Writer) -> Written:
        (source,) = writer.view.row_sources(node)
        dims, held, shape = (
            self.dims(node, writer.view),
            writer.plain(source),
            writer.view.trace.shape(source),
        )
        if held.form is None:
            return Written(writer.copy(node, lambda _: held.node))
        present = held.form.mask(shape)
        if held.form.axis not in dims:
            form = form_of(writer.view.evaluate(node, {source: present.double()}) > 0)
            return Written(writer.copy(node, lambda _: held.node), form)
        keepdim = len(writer.view.trace.shape(node)) == len(shape)
        total = writer.graph.call_method("sum", (held.node, dims, keepdim))
        if node.target in ("mean", torch.mean):
            total = writer.graph.call_function(
                operator.truediv, (total, torch.Size(shape[d - 1] for d in dims).numel())
            )
        rest = writer.view.evaluate(
            node, {source: torch.where(present, 0.0, writer.view.facts[source].value)}
        )
        return Written(writer.add(total, rest, node) if bool(rest.any()) else total)


class Product(Opaque):
    """torch.bmm: the product of two constant tokens is a constant, such as the interactions between dropped fields."""

    def applies(self, node: fx.Node, view: View) -> bool:
        return len(node.args) == 2 and all(view.is_rows(side) for side in node.args)

    def sides(self, node: fx.Node) -> tuple[fx.Node, fx.Node]:
        """What is multiplied."""
        left, right = node.args
        assert isinstance(left, fx.Node)
        assert isinstance(right, fx.Node)
        return left, right

    def known(self, node: fx.Node, view: View) -> Facts:
        left, right = (view.facts[side] for side in self.sides(node))  # (n, k), (k, m)
        const = left.const.all(-1)[:, None] & right.const.all(-2)
        nothing = (left.const & (left.value == 0)).all(-1)[:, None] | (
            right.const & (right.value == 0)
        ).all(-2)
        return Facts(const | nothing, torch.where(nothing, 0.0, left.value @ right.value))

    def ask(self, node: fx.Node, view: View) -> None:
        left, right = self.sides(node)
        live = view.live(node)
        view.want(left, live.any(-1, keepdim=True).expand(view.trace.shape(left)).clone())
        view.want(right, live.any(-2, keepdim=True).expand(view.trace.shape(right)).clone())


class Gate(Opaque):
    """Where the gates sit: dropped columns are their means; the others have a scale and a shift that what follows may absorb."""

    def known(self, node: fx.Node, view: View) -> Facts:
        scale, shift = self.affine(node, view)
        return Facts(scale == 0, shift)

    def affine(self, node: fx.Node, view: View) -> tuple[Tensor, Tensor]:
        """Scale and shift of one row."""
        start, stop = node.args[1:]
        shape = view.trace.shape(node)
        return view.scale[start:stop].reshape(shape), view.shift[start:stop].reshape(shape)

    def ask(self, node: fx.Node, view: View) -> None:
        (source,) = view.row_sources(node)
        view.want(source, view.live(node))

    def write(self, node: fx.Node, writer: Writer) -> Written:
        (source,) = writer.view.row_sources(node)
        scale, shift = self.affine(node, writer.view)
        held = writer.plain_part(source, form_of(writer.view.live(node)))
        present = (
            held.form.mask(tuple(scale.shape))
            if held.form
            else torch.ones_like(scale, dtype=torch.bool)
        )
        if bool((scale == 1)[present].all()) and not bool(shift[present].any()):
            return held
        return Written(held.node, held.form, scale, shift)
