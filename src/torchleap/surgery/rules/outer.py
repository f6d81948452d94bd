"""The rule for outer products of two nodes with rows, as `einsum("bhd,bmd->bhmd", x, y)`."""

from dataclasses import dataclass

import torch
from torch import Tensor, fx

from .base import CutRule
from .contraction import einsum_letters
from .elementwise import with_product_sums
from .facts import Facts, Form, View, form_of
from .writer import Writer
from .written import Written


@dataclass(frozen=True)
class Factor:
    """One factor of an outer product.

    Attributes:
        source: The node.
        letters: The letters of one of its rows.
        result: The letters of a row of the product.
        shape: The shape of a row of the product.
    """

    source: fx.Node
    letters: str
    result: str
    shape: tuple[int, ...]

    def align(self, row: Tensor) -> Tensor:
        """Return a row of the factor in the shape of one row of the product."""
        order = [self.letters.index(letter) for letter in self.result if letter in self.letters]
        sizes = dict(zip(self.letters, row.shape, strict=True))
        shape = [sizes.get(letter, 1) for letter in self.result]
        return row.permute(order).reshape(shape).expand(self.shape)

    def form(self, form: Form | None) -> Form | None:
        """Return the part of the factor that a part of the product needs."""
        if form is None or self.result[form.axis - 1] not in self.letters:
            return None
        return Form(self.letters.index(self.result[form.axis - 1]) + 1, form.index)


class Outer(CutRule):
    """Products of two constants are constants; those of one constant are linear in the other."""

    reads = frozenset(("rows",))

    def applies(self, node: fx.Node, view: View) -> bool:
        return len(factors_of(node, view)) == 2

    def facts(self, node: fx.Node, view: View) -> Facts:
        left, right = factors_of(node, view)
        one = view.facts[left.source]
        two = view.facts[right.source]
        const = left.align(one.const) & right.align(two.const)
        zero = left.align(one.const & (one.value == 0)) | right.align(two.const & (two.value == 0))
        value = torch.where(zero, 0.0, left.align(one.value) * right.align(two.value))
        found = Facts(const | zero, value)
        if view.reach is None or not view.keeps_precision(node):
            return found
        factors = [(left.source, left.align), (right.source, right.align)]
        return with_product_sums(view, found, factors)

    def takes_sums(self, node: fx.Node, view: View, source: fx.Node) -> bool:
        """Return whether no element that is computed needs one of the sums."""
        sums = view.facts[source].sums
        if sums is None:
            return True
        computed = ~view.facts[node].known
        own = [factor for factor in factors_of(node, view) if factor.source is source]
        return not any(bool((factor.align(sums.mask) & computed).any()) for factor in own)

    def request(self, node: fx.Node, view: View) -> None:
        live = view.live(node)
        for factor in factors_of(node, view):
            shape = view.trace.shape(factor.source)
            mask = torch.zeros(torch.Size(shape).numel(), dtype=torch.bool)
            numbers = torch.arange(len(mask)).reshape(shape)
            mask[factor.align(numbers)[live]] = True
            view.request(factor.source, mask.reshape(shape))

    def write(self, node: fx.Node, writer: Writer) -> Written:
        form = form_of(writer.view.live(node))
        factors = factors_of(node, writer.view)
        parts = [writer.plain_part(factor.source, factor.form(form)).node for factor in factors]
        arguments = (node.args[0], *parts)
        return Written(writer.graph.call_function(torch.einsum, arguments), form)


def factors_of(node: fx.Node, view: View) -> list[Factor]:
    """Return the two factors of an einsum that sums over nothing; none if it is another one."""
    parsed = einsum_letters(node)
    if parsed is None:
        return []
    terms, nodes, result = parsed
    if len(nodes) != 2 or set(result) != {*terms[0], *terms[1]}:
        return []
    if not terms[0][0] == terms[1][0] == result[0] or not all(map(view.is_rows, nodes)):
        return []
    shape = view.trace.shape(node)
    pairs = zip(nodes, terms, strict=True)
    return [Factor(source, term[1:], result[1:], shape) for source, term in pairs]
