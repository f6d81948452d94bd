"""The base class of all rules, and how to write a rule.

A rule covers one kind of operation: a layer, a function or a method. Where no rule covers a call,
or its rule does not apply, the operation is opaque: it gets its complete inputs, with the constants
put back in, and computes what it always did. So whatever a model does, the result is exact; rules
only make it smaller. After all rules have run, surgery compares the pruned model with the masked
one; a wrong rule costs size, never exactness (`TORCHLEAP_STRICT=1` raises instead).

The terms:

- **node**: an operation of the traced model (`torch.fx.Node`). Most nodes have rows, that is the
  batch as first dimension; a rule reasons about one row, whose first dimension is number 0 in
  `Facts` and axis 1 in a `Form`.
- **facts** (`Facts`): which elements of a row are constant, and their values.
- **view** (`View`): the trace with the facts and requests of all nodes so far.
- **live** elements (`View.live`): requested by a later node and not constant. Only these have to
  be computed.
- **form** (`Form`): the part of a node that the new graph computes, as indices along one axis.
- **written** (`Written`): a node of the new graph, with the form of the old node that it holds, and
  a pending scale and shift that the next layer may fold into its weights.
- **origin** (`Origin`): which part of an old parameter a new one is, for the optimizer's state.

A rule is a subclass of `CutRule` and overrides up to four methods, which are called in this order:
`applies` for every call; `facts` from the batch to the output; `request` from the output back to
the batch; `write` from the batch to the output, for nodes with live elements. A rule for
`functional.normalize`, which scales each token (..., E) on its own:

    class TokenNorm(CutRule):
        def applies(self, node, view):
            last = len(view.trace.shape(node))  # the axis of the width
            return len(view.row_sources(node)) == 1 and node.kwargs.get("dim") in (-1, last)

        def facts(self, node, view):
            (source,) = view.row_sources(node)
            known = view.facts[source]
            value = view.evaluate(node, {source: known.value})
            return Facts(known.const.all(-1, keepdim=True).expand(value.shape), value)

        def request(self, node, view):
            (source,) = view.row_sources(node)
            view.request(source, spread(view.live(node), -1, view.trace.shape(source)))

        def write(self, node, writer):
            (source,) = writer.view.row_sources(node)
            held = writer.plain(source)  # the part that is computed, scale and shift applied
            if held.form is not None and held.form.axis == len(writer.view.trace.shape(source)):
                held = writer.plain_part(source, None)  # it needs the complete width
            return Written(writer.copy(node, lambda _: held.node), held.form)

    CALLS[functional.normalize] = TokenNorm()  # in registry.py

`Elementwise`, `Layout` and `Tokenwise` are bases for operations that treat each element, move
elements, or treat each token on its own. Test a rule as in tests/surgery/rules/test_new_rule.py:
without the comparison, which would hide a wrong rule.
"""

import math

import torch
from torch import Tensor, fx

from ..trace.kinds import Kind
from .facts import Facts, Form, View
from .sums import Expression
from .writer import Writer
from .written import Written


class CutRule:
    """The rule for any operation: it needs its complete inputs, and no part of its result is known.

    Attributes:
        reads: The kinds of inputs for which the rule holds; None is all kinds.
    """

    reads: frozenset[Kind] | None = frozenset(("rows", "fixed", "mode"))

    def applies(self, node: fx.Node, view: View) -> bool:
        """Return whether the rule covers this call; else it is opaque."""
        return True

    def facts(self, node: fx.Node, view: View) -> Facts:
        """Return which elements of the result are constant.

        May raise `UnsupportedError`, which makes the operation opaque.
        """
        return Facts.none(view.trace.shape(node))

    def request(self, node: fx.Node, view: View) -> None:
        """Request the elements of the inputs that are needed to compute the live elements."""
        for source in node.all_input_nodes:
            view.request(source)

    def write(self, node: fx.Node, writer: Writer) -> Written:
        """Write the operation into the new graph, and cut its weights."""
        return Written(writer.copy(node, writer.complete))

    def takes_sums(self, node: fx.Node, view: View, source: fx.Node) -> bool:
        """Return whether elements of an input may be sums of features that are not computed."""
        return False

    def express(self, node: fx.Node, view: View, index: Tensor) -> Expression | None:
        """Return elements as sums of features of earlier nodes; None if they are no such sums.

        Args:
            node: The node.
            view: The view.
            index: The elements, all computed ones, by their places in a flat row.
        """
        return None


class Opaque(CutRule):
    """The rule for operations that no rule covers."""

    def takes_sums(self, node: fx.Node, view: View, source: fx.Node) -> bool:
        return view.reach == math.inf  # they are restored in front of it, with the constants


OPAQUE = Opaque()


class LayerRule(CutRule):
    """The base of rules for layers with one input."""

    def applies(self, node: fx.Node, view: View) -> bool:
        return len(view.row_sources(node)) == 1 and len(node.all_input_nodes) == 1

    def stays(self, node: fx.Node, view: View) -> bool:
        """Return whether the weights must stay: the layer is called twice, or shares them."""
        module = view.trace.module(node)
        if module is None:
            return False
        return view.uncut(*module._parameters.values(), *module._buffers.values())


def spread(mask: Tensor, dim: int, shape: tuple[int, ...]) -> Tensor:
    """Return a mask of a shape that is True along a dimension wherever any of a mask is.

    >>> spread(torch.tensor([[True, False], [False, False]]), -1, (2, 3)).tolist()
    [[True, True, True], [False, False, False]]
    """
    return mask.any(dim, keepdim=True).expand(shape).clone()


def double(tensor: Tensor) -> Tensor:
    """Return a parameter or buffer as float64 on the CPU, where facts are computed."""
    return tensor.detach().cpu().double()


def kept_index(form: Form | None, width: int) -> Tensor:
    """Return the indices of a form, or of all `width` places if there is no form."""
    return torch.arange(width) if form is None else torch.tensor(form.index)
