"""The rule for operations on each element: sums, products, activations."""

import operator
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, fx
from torch.nn import functional

from .base import CutRule
from .facts import Facts, Form, View, form_of
from .sums import MOST_WEIGHTS, Expression, Sums, union
from .writer import Writer
from .written import Written

# a pending scale and shift pass these
CARRIERS: set[Any] = {functional.dropout, "contiguous", "clone"}
ADDITIONS: set[Any] = {operator.add, torch.add, "add", operator.sub, torch.sub, "sub"}
DIVISIONS: set[Any] = {operator.truediv, torch.div, "div", torch.divide, "divide"}
NEGATIONS: set[Any] = {operator.neg, torch.neg, "neg"}
PRODUCTS: set[Any] = {operator.mul, torch.mul, torch.multiply, "mul", "multiply"}


class Elementwise(CutRule):
    """Each element of the result is made of the elements at its own place."""

    def applies(self, node: fx.Node, view: View) -> bool:
        rank = view.trace.values[node].dim()
        sources = view.row_sources(node)
        if not sources or any(view.trace.values[source].dim() != rank for source in sources):
            return False
        fixed = [view.trace.values[each] for each in node.all_input_nodes if view.is_fixed(each)]
        return all(_is_aligned(value, rank) for value in fixed)

    def facts(self, node: fx.Node, view: View) -> Facts:
        shape = view.trace.shape(node)
        facts = {source: view.facts[source] for source in view.row_sources(node)}
        const = torch.ones(shape, dtype=torch.bool)
        for fact in facts.values():
            const = const & fact.const
        value = view.evaluate(node, {source: fact.value for source, fact in facts.items()}).double()
        if node.target in PRODUCTS and len(facts) == 2:  # a product with 0 is 0
            for fact in facts.values():
                zero = (fact.const & (fact.value == 0)).expand(shape)
                const = const | zero
                value = torch.where(zero, 0.0, value)
        if view.reach is None or not view.keeps_precision(node):
            return Facts(const, value)
        return self._with_sums(node, view, const, value)

    def _with_sums(self, node: fx.Node, view: View, const: Tensor, value: Tensor) -> Facts:
        """Return the facts, with the sums among the elements that are not constant."""
        sources = view.row_sources(node)
        if len(sources) == 2 and node.target in PRODUCTS:
            factors = [
                (source, partial(torch.broadcast_to, size=const.shape)) for source in sources
            ]
            return with_product_sums(view, Facts(const, value), factors)
        is_sum = len(sources) == 2 and node.target in ADDITIONS and not node.kwargs
        if not is_sum and not self._is_affine(node, view):
            return Facts(const, value)
        known = torch.ones_like(const)
        for source in sources:
            known = known & view.facts[source].known
        mask = known & ~const
        if not bool(mask.any()):
            return Facts(const, value)
        parts = []
        matrices = []
        for source in sources:
            sums = view.facts[source].sums
            if sums is not None:
                slope = self._slope(node, view, source).expand(const.shape)
                rows = torch.where(sums.mask[..., None], sums.matrix, 0.0)
                parts.append(sums.features)
                matrices.append(rows * slope[..., None])
        features, wide = union(parts, matrices)
        if not wide:
            return Facts(const, value)
        return Facts(const, value, Sums(mask, features, torch.stack(wide).sum(0)))

    def _is_affine(self, node: fx.Node, view: View) -> bool:
        """Return whether an operation on one input with rows is scale * x + shift."""
        if len(view.row_sources(node)) != 1 or not view.keeps_precision(node):
            return False
        if node.target in CARRIERS or view.is_carrier(node):
            return True
        if node.target in DIVISIONS:
            return view.is_rows(node.args[0])
        return node.target in PRODUCTS | ADDITIONS | NEGATIONS

    def _slope(self, node: fx.Node, view: View, source: fx.Node) -> Tensor:
        """Return the factor of one input of an affine operation or a sum, for each element."""
        arrays = {each: torch.zeros(view.trace.shape(each)) for each in view.row_sources(node)}
        arrays = {each: array.double() for each, array in arrays.items()}
        at_zero = view.evaluate(node, arrays).double()
        return view.evaluate(node, arrays | {source: arrays[source] + 1.0}).double() - at_zero

    def takes_sums(self, node: fx.Node, view: View, source: fx.Node) -> bool:
        """Return whether no element that is computed needs one of the sums."""
        facts = view.facts[node]
        sums = view.facts[source].sums
        return sums is None or not bool((sums.mask & ~facts.known).any())

    def express(self, node: fx.Node, view: View, index: Tensor) -> Expression | None:
        if not self._is_affine(node, view):
            return None
        (source,) = view.row_sources(node)
        shape = view.trace.shape(source)
        if shape != view.trace.shape(node):
            return None
        zeros = torch.zeros(shape, dtype=torch.float64)
        at_zero = view.evaluate(node, {source: zeros}).flatten()[index]
        found = view.express(source, index).scaled(self._slope(node, view, source).flatten()[index])
        return Expression(found.features, found.matrix, found.offset + at_zero)

    def request(self, node: fx.Node, view: View) -> None:
        live = view.live(node)
        for source in node.all_input_nodes:
            if view.is_rows(source):  # which may be broadcast
                view.request(source, live.double().sum_to_size(view.trace.shape(source)) > 0)
            else:
                view.request(source)

    def write(self, node: fx.Node, writer: Writer) -> Written:
        view = writer.view
        every = view.row_sources(node)
        sources = [source for source in every if writer.is_written(source)]
        form = self._form(node, writer, sources)
        if len(every) == len(sources) == 1 and (node.target in CARRIERS or view.is_carrier(node)):
            return writer.carry(node, {sources[0]: writer.as_form(sources[0], form)}, form)
        rank = view.trace.values[node].dim()
        new = writer.copy(
            node,
            lambda source: writer.operand(source, form),
            lambda source: writer.fixed_operand(source, form, rank),
        )
        return Written(new, form)

    def _form(self, node: fx.Node, writer: Writer, sources: list[fx.Node]) -> Form | None:
        """Return the common form of all inputs, or else that of the live elements."""
        view = writer.view
        shape = view.trace.shape(node)
        live = view.live(node)
        if not sources:
            return form_of(live)
        form = writer.written[sources[0]].form
        for source in sources:
            if writer.written[source].form != form or view.trace.shape(source) != shape:
                return form_of(live)
        if form is not None and bool((live & ~form.mask(shape)).any()):
            return form_of(live)
        return form


class SetElements(Elementwise):
    """Elements that are set to a number where a mask of the same shape says so: x[mask] = 0."""

    def applies(self, node: fx.Node, view: View) -> bool:
        arguments: Any = node.args
        x, mask, value = arguments
        if not isinstance(value, bool | int | float) or not super().applies(node, view):
            return False
        if not view.is_rows(x) or not view.is_rows(mask):
            return False
        known: Tensor = view.trace.values[mask]
        same: bool = known.shape == view.trace.values[x].shape
        return same and known.dtype == torch.bool


Align = Callable[[Tensor], Tensor]


def with_product_sums(view: View, facts: Facts, factors: Sequence[tuple[fx.Node, Align]]) -> Facts:
    """Return the facts of a product, in which a constant makes an element linear in the other.

    Args:
        view: The view.
        facts: The constants of the product.
        factors: The two factors, each with a function that returns a row of it, or of marks on it,
            in the shape of the product.
    """
    shape = facts.const.shape
    value = facts.value.clone(memory_format=torch.contiguous_format)
    places = []
    found = []
    for (source, align), (other, align_other) in (factors, factors[::-1]):
        fact = view.facts[source]
        factor = align(torch.where(fact.const, fact.value, 0.0)).flatten()
        mask = align(fact.const) & ~facts.const
        index = mask.flatten().nonzero().flatten()
        if not len(index):
            continue
        numbers = torch.arange(view.facts[other].const.numel()).reshape(view.trace.shape(other))
        distinct, again = torch.unique(align_other(numbers).flatten()[index], return_inverse=True)
        expression = view.express(other, distinct)
        if len(index) * len(expression.features) > MOST_WEIGHTS:
            return facts
        rows = Expression(
            expression.features, expression.matrix[again], expression.offset[again]
        ).scaled(factor[index])
        places.append(index)
        found.append(rows)
    if not found:
        return facts
    features, wide = union([rows.features for rows in found], [rows.matrix for rows in found])
    if not wide or facts.const.numel() * len(features) > MOST_WEIGHTS:
        return facts
    matrix = torch.zeros(facts.const.numel(), len(features), dtype=torch.float64)
    mask = torch.zeros(facts.const.numel(), dtype=torch.bool)
    for index, rows, part in zip(places, found, wide, strict=True):
        matrix[index] = part
        mask[index] = True
        value.view(-1)[index] = rows.offset
    return Facts(
        facts.const, value, Sums(mask.reshape(shape), features, matrix.reshape(*shape, -1))
    )


def _is_aligned(parameter: Tensor, rank: int) -> bool:
    """Return whether a parameter is broadcast along the rows."""
    return parameter.dim() < rank or (parameter.dim() == rank and parameter.shape[0] == 1)
