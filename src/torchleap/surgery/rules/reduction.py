"""Rules for operations that combine elements: sums, means and products of tokens."""

import operator
from typing import Any

import torch
from torch import Tensor, fx

from .base import CutRule, spread
from .facts import Facts, UnsupportedError, View, form_of
from .sums import MOST_WEIGHTS, Expression, Products, Sums
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
    """bmm, and matmul of two nodes with rows: the product of two constant tokens is a constant.

    Such products are the interactions between dropped fields. A constant token times one that is
    computed is linear in the latter, and a sum of features times it in products of features.
    """

    def applies(self, node: fx.Node, view: View) -> bool:
        if len(node.args) != 2 or not all(view.is_rows(side) for side in node.args):
            return False
        return all(len(view.trace.shape(side)) == 2 for side in self._sides(node))

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
        facts = Facts(const | zero, torch.where(zero, 0.0, left.value @ right.value))
        if view.reach is None or not view.keeps_precision(node):
            return facts
        mask = (left.known.all(-1)[:, None] | right.known.all(-2)) & ~facts.const
        return self._with_sums(node, view, facts, mask)

    def _with_sums(self, node: fx.Node, view: View, facts: Facts, mask: Tensor) -> Facts:
        """Return the facts with these elements as sums of features and products of features."""
        if not bool(mask.any()):
            return facts
        left, right = self._sides(node)
        width = view.trace.shape(left)[-1]
        height = facts.const.shape[1]
        lines = mask.any(1).nonzero().flatten()
        columns = mask.any(0).nonzero().flatten()
        inner = torch.arange(width)
        of_left = view.express(left, (lines[:, None] * width + inner).flatten())
        of_right = view.express(right, (inner[:, None] * height + columns).flatten())
        features, sums = multiplied(
            view, node, of_left, of_right, (len(lines), width, len(columns))
        )
        if facts.const.numel() * len(features) > MOST_WEIGHTS:
            return facts
        matrix = torch.zeros(*facts.const.shape, len(features), dtype=torch.float64)
        value = facts.value.clone()
        chosen = mask[lines][:, columns]
        places = (lines[:, None].expand_as(chosen)[chosen], columns.expand_as(chosen)[chosen])
        matrix[places] = sums[..., :-1][chosen]
        value[places] = sums[..., -1][chosen]
        return Facts(facts.const, value, Sums(mask, features, matrix))

    def takes_sums(self, node: fx.Node, view: View, source: fx.Node) -> bool:
        """Return whether no element that is computed needs one of the sums."""
        left, _ = self._sides(node)
        sums = view.facts[source].sums
        if sums is None:
            return True
        computed = ~view.facts[node].known
        if source is left:
            return not bool((sums.mask.any(-1)[:, None] & computed).any())
        return not bool((sums.mask.any(-2) & computed).any())

    def request(self, node: fx.Node, view: View) -> None:
        left, right = self._sides(node)
        live = view.live(node)
        view.request(left, spread(live, -1, view.trace.shape(left)))
        view.request(right, spread(live, -2, view.trace.shape(right)))

    def write(self, node: fx.Node, writer: Writer) -> Written:
        """Write the product of the tokens on either side that some live element needs."""
        form = form_of(writer.view.live(node))
        if form is None:
            return Written(writer.copy(node, writer.complete))
        parts = {}
        for axis, side in enumerate(self._sides(node), 1):
            parts[side] = writer.plain_part(side, form if axis == form.axis else None).node
        return Written(writer.copy(node, parts.__getitem__), form)


def multiplied(
    view: View,
    node: fx.Node,
    left: Expression,
    right: Expression,
    sizes: tuple[int, int, int],
) -> tuple[Tensor, Tensor]:
    """Return the product of two matrices whose elements are sums of features.

    Args:
        view: The view, whose features the products of two features join.
        node: The node of the product.
        left: The elements of the left matrix, (n * k).
        right: The elements of the right matrix, (k * m).
        sizes: n, k and m.

    Returns:
        The numbers of the features, and their weights with the summand at the end, (n, m, K + 1).
    """
    lines, inner, columns = sizes
    ones = torch.tensor([-1])  # stands for the summand
    of_left = torch.cat([left.features, ones])
    of_right = torch.cat([right.features, ones])
    if lines * columns * len(of_left) * len(of_right) > MOST_WEIGHTS:
        raise UnsupportedError(f"{node} would need more than {MOST_WEIGHTS:,} weights")
    weights = torch.einsum(
        "nkf,kmg->nmfg",
        torch.cat([left.matrix, left.offset[:, None]], 1).reshape(lines, inner, -1),
        torch.cat([right.matrix, right.offset[:, None]], 1).reshape(inner, columns, -1),
    ).reshape(lines, columns, -1)
    pairs = torch.cartesian_prod(of_left, of_right)
    offset = weights[..., -1:]
    used = (weights != 0).flatten(0, 1).any(0)
    used[-1] = False
    pairs = pairs[used].sort(1).values
    weights = weights[..., used]
    single = pairs[:, 0] == -1
    numbers = pairs[:, 1].clone()
    if not bool(single.all()):
        products, places = torch.unique(pairs[~single], dim=0, return_inverse=True)
        key = (node, "products")
        numbers[~single] = view.features.of(key, Products(products), places)
    features, places = torch.unique(numbers, return_inverse=True)
    total = torch.zeros(lines, columns, len(features), dtype=torch.float64)
    total.index_add_(2, places, weights)
    return features, torch.cat([total, offset], 2)
