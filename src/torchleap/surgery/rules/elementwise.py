"""The rule for operations on each element: sums, products, activations."""

import operator
from typing import Any

import torch
from torch import Tensor, fx
from torch.nn import functional

from .base import CutRule
from .facts import Facts, Form, View, form_of
from .writer import Writer
from .written import Written

# a pending scale and shift pass these
CARRIERS: set[Any] = {functional.dropout, "contiguous", "clone"}
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
        return Facts(const, value)

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
        if len(every) == 1 and (node.target in CARRIERS or view.is_carrier(node)):
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
        form = writer.written[sources[0]].form
        for source in sources:
            if writer.written[source].form != form or view.trace.shape(source) != shape:
                return form_of(live)
        if form is not None and bool((live & ~form.mask(shape)).any()):
            return form_of(live)
        return form


def _is_aligned(parameter: Tensor, rank: int) -> bool:
    """Return whether a parameter is broadcast along the rows."""
    return parameter.dim() < rank or (parameter.dim() == rank and parameter.shape[0] == 1)
