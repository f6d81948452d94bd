"""The rule for products with a matrix that is not the right-hand side of a linear layer."""

import math
import operator
import string
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn

from .base import CutRule, double
from .facts import Facts, Form, View, form_of
from .sums import MOST_WEIGHTS, Expression, Sums
from .writer import Writer
from .written import Written

MATMULS: set[Any] = {torch.matmul, operator.matmul, "matmul"}


@dataclass(frozen=True)
class Letters:
    """A product of rows with a matrix in the letters of einsum, without that of the batch.

    Attributes:
        source: The node with rows.
        matrix: The node of the matrix, or of a tensor with more dimensions.
        rows: The letters of one row.
        fixed: The letters of the matrix.
        result: The letters of one row of the result.
    """

    source: fx.Node
    matrix: fx.Node
    rows: str
    fixed: str
    result: str

    def forward(self, rows: Tensor, matrix: Tensor) -> Tensor:
        """Multiply a row, whose last dimension may be one of features, by the matrix."""
        return torch.einsum(f"{self.rows}...,{self.fixed}->{self.result}...", rows, matrix)

    def reaches(self, mask: Tensor, shape: torch.Size) -> Tensor:
        """Return which elements of the result depend on some of a row."""
        return self.forward(mask.double(), torch.ones(shape, dtype=torch.float64)) > 0

    def reads(self, mask: Tensor, shape: torch.Size) -> Tensor:
        """Return which elements of a row some of the result depend on."""
        ones = torch.ones(shape, dtype=torch.float64)
        equation = f"{self.result},{self.fixed}->{self.rows}"
        return torch.einsum(equation, mask.double(), ones) > 0


class Contraction(CutRule):
    """Products with a matrix on the left, tensordot, einsum: constants become an added constant."""

    reads = frozenset(("rows", "fixed"))

    def applies(self, node: fx.Node, view: View) -> bool:
        letters = letters_of(node, view)
        return letters is not None and _owner(letters.matrix, view) is not None

    def facts(self, node: fx.Node, view: View) -> Facts:
        letters = _letters(node, view)
        facts = view.facts[letters.source]
        matrix = double(view.trace.values[letters.matrix])
        const = ~letters.reaches(~facts.const, matrix.shape)
        value = letters.forward(facts.value, matrix)
        mask = ~letters.reaches(~facts.known, matrix.shape) & ~const
        if facts.sums is None or not bool(mask.any()):
            return Facts(const, value)
        rows = torch.where(facts.sums.mask[..., None], facts.sums.matrix, 0.0)
        if const.numel() * rows.shape[-1] > MOST_WEIGHTS:
            return Facts(const, value)
        return Facts(const, value, Sums(mask, facts.sums.features, letters.forward(rows, matrix)))

    def takes_sums(self, node: fx.Node, view: View, source: fx.Node) -> bool:
        letters = _letters(node, view)
        sums = view.facts[letters.source].sums
        if sums is None:
            return True
        shape = view.trace.values[letters.matrix].shape
        mixed = sums.mask & letters.reads(~view.facts[node].known, shape)
        if not bool(mixed.any()):
            return True
        free = set(letters.rows) - set(letters.fixed)
        sizes = dict(zip(letters.rows, view.trace.shape(source), strict=True))
        if any(sizes[letter] > 1 for letter in free):
            return False
        return view.reach == math.inf or len(sums.read(mixed)) <= int(mixed.sum())

    def express(self, node: fx.Node, view: View, index: Tensor) -> Expression | None:
        letters = _letters(node, view)
        matrix = double(view.trace.values[letters.matrix])
        chosen = torch.zeros(view.facts[node].const.numel(), dtype=torch.bool)
        chosen[index] = True
        mask = letters.reads(chosen.reshape(view.trace.shape(node)), matrix.shape)
        places = mask.flatten().nonzero().flatten()
        found = view.express(letters.source, places)
        size = max(mask.numel(), len(chosen)) * len(found.features)
        if view.reach is None or found.used() > view.reach * len(index) or size > MOST_WEIGHTS:
            return None
        rows = torch.zeros(mask.numel(), len(found.features) + 1, dtype=torch.float64)
        rows[places] = torch.cat([found.matrix, found.offset[:, None]], 1)
        product = letters.forward(rows.reshape(*mask.shape, -1), matrix).flatten(0, -2)[index]
        return Expression(found.features, product[:, :-1], product[:, -1])

    def request(self, node: fx.Node, view: View) -> None:
        letters = _letters(node, view)
        shape = view.trace.values[letters.matrix].shape
        view.request(letters.source, letters.reads(view.live(node), shape))
        view.request(letters.matrix)

    def write(self, node: fx.Node, writer: Writer) -> Written:
        view = writer.view
        letters = _letters(node, view)
        facts = view.facts[letters.source]
        held = self._held(letters, writer, form_of(view.live(node)))
        cuts: dict[int, Tensor] = {}
        form = None
        rest = torch.zeros_like(facts.const)
        if held.form is not None:
            letter = letters.rows[held.form.axis - 1]
            if letter in letters.fixed:
                cuts[letters.fixed.index(letter)] = torch.tensor(held.form.index)
            if letter in letters.result:
                form = Form(letters.result.index(letter) + 1, held.form.index)
            else:
                rest = ~held.form.mask(tuple(facts.const.shape))
        outputs = form_of(view.live(node)) if form is None else None
        if outputs is not None:
            letter = letters.result[outputs.axis - 1]
            if letter not in letters.rows:
                cuts[letters.fixed.index(letter)] = torch.tensor(outputs.index)
                form = outputs
        owner = _owner(letters.matrix, view)
        assert owner is not None
        new = writer.copy(node, lambda _: held.node)
        writer.cut_part(owner, letters.matrix, cuts, new)
        return Written(self._add_rest(node, writer, letters, rest, form, new, owner), form)

    def _held(self, letters: Letters, writer: Writer, live: Form | None) -> Written:
        """Return the part of the rows that is multiplied."""
        if live is not None and letters.result[live.axis - 1] in letters.rows:
            axis = letters.rows.index(letters.result[live.axis - 1]) + 1
            return writer.plain_part(letters.source, Form(axis, live.index))
        held = writer.plain(letters.source)
        varying = form_of(~writer.view.facts[letters.source].known)
        if held.form is None and varying is not None:
            held = writer.plain_part(letters.source, varying)
        return held

    def _add_rest(
        self,
        node: fx.Node,
        writer: Writer,
        letters: Letters,
        rest: Tensor,
        form: Form | None,
        new: fx.Node,
        owner: str,
    ) -> fx.Node:
        """Add what constants and sums of features that are left out add to the product."""
        facts = writer.view.facts[letters.source]
        matrix = double(writer.view.trace.values[letters.matrix])
        added = letters.forward(torch.where(rest, facts.value, 0.0), matrix)
        added = added if form is None else form.take(added)
        if bool(added.any()):
            new = writer.add(new, added, node)
        if facts.sums is None:
            return new
        rows = torch.where((rest & facts.sums.mask)[..., None], facts.sums.matrix, 0.0)
        if not bool(rows.any()):
            return new
        weights = letters.forward(rows, matrix)
        weights = weights if form is None else form.take(weights)
        total = writer.sum_of(facts.sums.features, weights, node, beside=owner)
        return writer.graph.call_function(torch.add, (new, total))


def _owner(matrix: fx.Node, view: View) -> str | None:
    """Return the parameter that a matrix is, or is a part of.

    None if anything but such products reads it, so that it must stay.
    """
    root = matrix
    while root.op != "get_attr":
        if len(root.all_input_nodes) != 1:
            return None
        (root,) = root.all_input_nodes
    path = str(root.target)
    whole = view.trace.values[root]
    if path in view.trace.constants or not isinstance(whole, nn.Parameter):
        return None
    nodes = [node for node in view.trace.graph.nodes if node.op == "get_attr"]
    waiting = [node for node in nodes if view.trace.values[node] is whole]
    while waiting:
        node = waiting.pop()
        part = view.trace.values[node]
        if part.untyped_storage().data_ptr() != whole.untyped_storage().data_ptr():
            return None
        for user in node.users:
            letters = letters_of(user, view)
            if view.is_fixed(user):
                waiting.append(user)
            elif letters is None or letters.matrix is not node:
                return None
    uses = sum(len(node.users) for node in nodes if view.trace.values[node] is whole)
    return path if view.uses.get(id(whole), 0) == uses else None


def _letters(node: fx.Node, view: View) -> Letters:
    letters = letters_of(node, view)
    assert letters is not None
    return letters


def letters_of(node: fx.Node, view: View) -> Letters | None:
    """Return the letters of a product of rows with a fixed matrix; None if it is not one."""
    if not view.is_rows(node) or node in view.trace.varying or not view.keeps_precision(node):
        return None
    found = _found_letters(node, view)
    if found is None or not set(found.rows) <= {*found.fixed, *found.result}:
        return None
    return found


def _found_letters(node: fx.Node, view: View) -> Letters | None:
    name = getattr(node.target, "__name__", node.target)
    if name == "einsum":
        return _of_einsum(node, view)
    if len(node.args) < 2 or not all(isinstance(each, fx.Node) for each in node.args[:2]):
        return None
    left: Any = node.args[0]
    right: Any = node.args[1]
    if name == "tensordot":
        return _of_tensordot(node, left, right, view)
    if node.target in MATMULS:
        return _of_matmul(left, right, view)
    return None


def _of_matmul(left: fx.Node, right: fx.Node, view: View) -> Letters | None:
    """Return the letters of matrix @ rows, or of rows @ matrices with one matrix per token."""
    if view.is_fixed(left) and view.is_rows(right) and view.trace.values[left].dim() == 2:
        rank = len(view.trace.shape(right))
        if rank < 2:
            return None
        before = string.ascii_lowercase[: rank - 2]
        return Letters(right, left, f"{before}yz", "xy", f"{before}xz")
    if view.is_rows(left) and view.is_fixed(right) and view.trace.values[right].dim() == 3:
        shape = view.trace.shape(left)
        if len(shape) == 3 and shape[0] == view.trace.values[right].shape[0]:
            return Letters(left, right, "txy", "tyz", "txz")
    return None


def _of_tensordot(node: fx.Node, left: fx.Node, right: fx.Node, view: View) -> Letters | None:
    """Return the letters of tensordot(rows, matrix, dims) that keeps the batch first."""
    dims = node.args[2] if len(node.args) > 2 else node.kwargs.get("dims")
    if not view.is_rows(left) or not view.is_fixed(right) or not isinstance(dims, tuple | list):
        return None
    if len(dims) != 2 or not all(isinstance(side, tuple | list) for side in dims):
        return None
    of_left: Any = dims[0]
    of_right: Any = dims[1]
    rank = len(view.trace.shape(left)) + 1
    names = list(string.ascii_lowercase[:rank])
    others = list(string.ascii_uppercase[: view.trace.values[right].dim()])
    for place, other in zip(of_left, of_right, strict=True):
        if place % rank == 0:
            return None
        others[other % len(others)] = names[place % rank]
    result = [name for name in names[1:] if name not in others]
    result += [name for name in others if name not in names]
    return Letters(left, right, "".join(names[1:]), "".join(others), "".join(result))


def _of_einsum(node: fx.Node, view: View) -> Letters | None:
    """Return the letters of einsum with a node with rows and a matrix."""
    parsed = einsum_letters(node)
    if parsed is None:
        return None
    terms, nodes, result = parsed
    rows = [place for place, each in enumerate(nodes) if view.is_rows(each)]
    if len(nodes) != 2 or len(rows) != 1 or not view.is_fixed(nodes[1 - rows[0]]):
        return None
    of_rows = terms[rows[0]]
    of_fixed = terms[1 - rows[0]]
    batch = of_rows[0]
    if batch in of_fixed or not result.startswith(batch):
        return None
    source = nodes[rows[0]]
    return Letters(source, nodes[1 - rows[0]], of_rows[1:], of_fixed, result[1:])


def einsum_letters(node: fx.Node) -> tuple[list[str], list[fx.Node], str] | None:
    """Return the letters of each operand of an einsum, the operands, and the result's letters.

    None if the equation has an ellipsis or no arrow, or repeats a letter in one operand.
    """
    equation = node.args[0] if node.args else None
    if not isinstance(equation, str) or "." in equation or "->" not in equation:
        return None
    operands: Any = node.args[1:]
    if len(operands) == 1 and isinstance(operands[0], tuple | list):
        operands = operands[0]
    left, _, result = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    if len(terms) != len(operands) or not all(isinstance(each, fx.Node) for each in operands):
        return None
    if any(len(set(term)) != len(term) or not term for term in (*terms, result)):
        return None
    return terms, list(operands), result
