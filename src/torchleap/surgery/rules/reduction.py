"""Rules for operations that combine elements: sums, means and products of tokens."""

import operator
from typing import Any

import torch
from torch import fx

from .base import CutRule, spread
from .facts import Facts, View, form_of
from .writer import Writer
from .written import Written


class Reduce(CutRule):
    """sum and mean: constant summands become one constant that is added."""

    def applies(self, node: fx.Node, view: View) -> bool:
        dims = self._dims(node, view)
        if not dims or 0 in dims or "dtype" in node.kwargs:
            return False
        return len(view.row_sources(node)) == 1

    def _dims(self, node: fx.Node, view: View) -> tuple[int, ...]:
        """Return the dimensions that are summed over; none if they are not plain numbers."""
        dims: Any = node.kwargs.get("dim", node.kwargs.get("axis"))
        if len(node.args) > 1:
            dims = node.args[1]
        if isinstance(dims, int):
            dims = (dims,)
        if not isinstance(dims, tuple | list) or not all(isinstance(dim, int) for dim in dims):
            return ()
        rank = view.trace.values[node.all_input_nodes[0]].dim()
        return tuple(dim % rank for dim in dims)

    def facts(self, node: fx.Node, view: View) -> Facts:
        (source,) = view.row_sources(node)
        facts = view.facts[source]
        const = view.evaluate(node, {source: (~facts.const).double()}) == 0
        return Facts(const, view.evaluate(node, {source: facts.value}))

    def request(self, node: fx.Node, view: View) -> None:
        (source,) = view.row_sources(node)
        live = view.live(node)
        shape = view.trace.shape(source)
        if live.dim() < len(shape):
            for dim in sorted(self._dims(node, view)):
                live = live.unsqueeze(dim - 1)
        view.request(source, live.expand(shape).clone())

    def write(self, node: fx.Node, writer: Writer) -> Written:
        view = writer.view
        (source,) = view.row_sources(node)
        held = writer.plain(source)
        if held.form is None:
            return Written(writer.copy(node, lambda _: held.node))
        dims = self._dims(node, view)
        shape = view.trace.shape(source)
        present = held.form.mask(shape)
        if held.form.axis not in dims:
            form = form_of(view.evaluate(node, {source: present.double()}) > 0)
            return Written(writer.copy(node, lambda _: held.node), form)
        keepdim = len(view.trace.shape(node)) == len(shape)
        total = writer.graph.call_method("sum", (held.node, dims, keepdim))
        if node.target in ("mean", torch.mean):
            count = torch.Size(shape[dim - 1] for dim in dims).numel()
            total = writer.graph.call_function(operator.truediv, (total, count))
        constants = torch.where(present, 0.0, view.facts[source].value)
        rest = view.evaluate(node, {source: constants})
        if bool(rest.any()):
            total = writer.add(total, rest, node)
        return Written(total)


class Product(CutRule):
    """torch.bmm: the product of two constant tokens is a constant.

    Such products are the interactions between dropped fields.
    """

    def applies(self, node: fx.Node, view: View) -> bool:
        return len(node.args) == 2 and all(view.is_rows(side) for side in node.args)

    def _sides(self, node: fx.Node) -> tuple[fx.Node, fx.Node]:
        """Return the two factors."""
        left, right = node.args
        assert isinstance(left, fx.Node)
        assert isinstance(right, fx.Node)
        return left, right

    def facts(self, node: fx.Node, view: View) -> Facts:
        left, right = (view.facts[side] for side in self._sides(node))  # (n, k), (k, m)
        const = left.const.all(-1)[:, None] & right.const.all(-2)
        left_zero = (left.const & (left.value == 0)).all(-1)
        right_zero = (right.const & (right.value == 0)).all(-2)
        zero = left_zero[:, None] | right_zero
        return Facts(const | zero, torch.where(zero, 0.0, left.value @ right.value))

    def request(self, node: fx.Node, view: View) -> None:
        left, right = self._sides(node)
        live = view.live(node)
        view.request(left, spread(live, -1, view.trace.shape(left)))
        view.request(right, spread(live, -2, view.trace.shape(right)))
