"""Facts about each node: which elements of a row are constant, and which are requested.

A dropped field is its mean in every row: a constant. Constants spread through the graph, since any
function of constants is constant. An element that is constant need not be computed, nor one that
nothing requests. The rest is what remains of the model.
"""

import operator
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx, nn

from ..._common.errors import SurgeryError
from ..._common.text import first_line
from ..trace.graph import Trace
from ..trace.proxies import SPLITS, split_dim
from .sums import MOST_WEIGHTS, Elements, Expression, Features, Sums, union


class UnsupportedError(SurgeryError):
    """A rule does not cover this call, which is then opaque; not a mistake of the rule."""


@dataclass(frozen=True)
class Facts:
    """The constants in one row of a node.

    Attributes:
        const: Which elements are the same in every row, of bool.
        value: Their values, of float64; for elements that are sums of features the summand; other
            elements hold any number.
        sums: Elements that are sums of few features, which are computed instead of them.

    **Shape**: all have the shape of one row, that is of the node without its batch dimension.
    """

    const: Tensor
    value: Tensor
    sums: Sums | None = None

    @property
    def known(self) -> Tensor:
        """Return which elements need not be computed by themselves: constants and sums."""
        return self.const if self.sums is None else self.const | self.sums.mask

    @classmethod
    def none(cls, shape: tuple[int, ...]) -> "Facts":
        """Return the facts of a node without constants."""
        return cls(torch.zeros(shape, dtype=torch.bool), torch.zeros(shape, dtype=torch.float64))


@dataclass(frozen=True)
class Form:
    """The part of a node that is computed: some indices along one axis.

    Attributes:
        axis: A dimension of the node; 1 is the first after the batch.
        index: The indices along it, in rising order.
    """

    axis: int
    index: tuple[int, ...]

    def places(self, index: Iterable[int]) -> list[int]:
        """Return where these indices stand among those of the form; others are left out."""
        place_of = {line: place for place, line in enumerate(self.index)}
        return [place_of[line] for line in index if line in place_of]

    def take(self, array: Tensor) -> Tensor:
        """Return the part of an array that has the shape of one row."""
        return array.index_select(self.axis - 1, torch.tensor(self.index, device=array.device))

    def mask(self, shape: tuple[int, ...]) -> Tensor:
        """Return the form as a mask over one row."""
        mask = torch.zeros(shape, dtype=torch.bool)
        return mask.index_fill_(self.axis - 1, torch.tensor(self.index), True)


def form_of(mask: Tensor) -> Form | None:
    """Return the form that holds just these elements of a row.

    None stands for the complete row: if all elements are in the mask, or if indices along one axis
    cannot describe them.
    """
    if mask.all():
        return None
    for axis in range(mask.dim()):
        others = [other for other in range(mask.dim()) if other != axis]
        line = mask.any(others) if others else mask
        shape = [1] * mask.dim()
        shape[axis] = -1
        if torch.equal(line.reshape(shape).expand_as(mask), mask):
            return Form(axis + 1, tuple(line.nonzero().flatten().tolist()))
    return None


@dataclass
class View:
    """A trace with everything that is known about its nodes so far.

    Attributes:
        trace: The trace.
        scale: What the gates do to their columns, scale * x + shift, (D,); 0 where dropped.
        shift: The shift, (D,).
        facts: The constants of each node with rows.
        requested: The elements of each node that are requested, as a mask over one row; True for
            a node without rows.
        uses: How often the graph uses each parameter and buffer, by its id.
        reach: How far products with constants are expressed as sums: a linear layer whose outputs
            they read is replaced by its inputs if these are at most `reach` times as many; None
            is not at all.
        features: The features of all sums.
        rules: The rule of each node with rows.
        known: The constants in arguments of a module that is cut inside a larger model, by name.
        label: The name of that module in messages.
    """

    trace: Trace
    scale: Tensor
    shift: Tensor
    facts: dict[fx.Node, Facts] = field(default_factory=dict)
    requested: dict[fx.Node, Any] = field(default_factory=dict)
    uses: Mapping[int, int] = field(default_factory=dict)
    reach: float | None = None
    features: Features = field(default_factory=Features)
    rules: dict[fx.Node, Any] = field(default_factory=dict)
    known: Mapping[str, Facts] = field(default_factory=dict)
    label: str = ""

    def is_rows(self, node: Any) -> bool:
        """Return whether it is a node with the batch as its first dimension."""
        return isinstance(node, fx.Node) and self.trace.kinds[node] == "rows"

    def is_fixed(self, node: Any) -> bool:
        """Return whether it is a node that depends on parameters alone."""
        return isinstance(node, fx.Node) and self.trace.kinds[node] == "fixed"

    def request(self, node: fx.Node, mask: Tensor | None = None) -> None:
        """Request elements of a node.

        Args:
            node: The node.
            mask: Which elements of one row, of bool; all if left out.
        """
        if not self.is_rows(node):
            self.requested[node] = True
            return
        if mask is None or node in self.trace.varying:  # rows without a fixed length have no parts
            mask = torch.ones(self.trace.shape(node), dtype=torch.bool)
        before = self.requested.get(node)
        self.requested[node] = mask if before is None else mask | before
        sums = self.facts[node].sums
        if sums is not None:
            for elements, index in self.features.groups(sums.read(mask)):
                elements.request(self, index)

    def live(self, node: fx.Node) -> Tensor:
        """Return the elements of a row that must be computed: requested and not known.

        Sums of features are computed too where the other elements alone would have no form.
        """
        mask = self.requested.get(node)
        if mask is None:
            return torch.zeros(self.trace.shape(node), dtype=torch.bool)
        facts = self.facts[node]
        requested: Tensor = mask & ~facts.const
        live: Tensor = mask & ~facts.known
        if facts.sums is not None and form_of(live) is None and bool(live.any()):
            return requested
        return live

    def express(self, node: fx.Node, index: Tensor) -> Expression:
        """Return elements of a node, by their places in a flat row, as sums of features."""
        facts = self.facts[node]
        parts = [torch.zeros(0, dtype=torch.long)]
        matrices = [torch.zeros(len(index), 0, dtype=torch.float64)]
        offset = facts.value.flatten()[index]
        if facts.sums is not None:
            is_sum = facts.sums.mask.flatten()[index]
            rows = facts.sums.matrix.flatten(0, -2)[index] * is_sum[:, None]
            parts.append(facts.sums.features)
            matrices.append(rows)
        computed = ~facts.known.flatten()[index]
        if bool(computed.any()):
            found = self._expressed(node, index[computed])
            rows = torch.zeros(len(index), len(found.features), dtype=torch.float64)
            rows[computed] = found.matrix
            offset = offset.clone()
            offset[computed] = found.offset
            parts.append(found.features)
            matrices.append(rows)
        features, wide = union(parts, matrices)
        if not wide:
            raise UnsupportedError(f"{node} would need more than {MOST_WEIGHTS:,} weights")
        return Expression(features, torch.stack(wide).sum(0), offset)

    def keeps_precision(self, node: fx.Node) -> bool:
        """Return whether a node and its inputs with rows are floats of the same precision."""
        precision = self.trace.values[node].dtype
        sources = self.row_sources(node)
        same = all(self.trace.values[source].dtype == precision for source in sources)
        return same and precision.is_floating_point

    def _expressed(self, node: fx.Node, index: Tensor) -> Expression:
        """Return elements that are computed by what the node is made of, or else by themselves."""
        if node in self.rules and self.keeps_precision(node):
            found: Expression | None = self.rules[node].express(node, self, index)
            if found is not None:
                return found
        value = self.trace.values[node]
        if node in self.trace.varying or not value.is_floating_point():
            raise UnsupportedError(f"{node} has no fixed number of features")
        numbers = self.features.of(node, Elements(node, self), index)
        features, places = torch.unique(numbers, return_inverse=True)
        matrix = torch.zeros(len(index), len(features), dtype=torch.float64)
        matrix[torch.arange(len(index)), places] = 1.0
        return Expression(features, matrix, torch.zeros(len(index), dtype=torch.float64))

    def is_live(self, node: fx.Node) -> bool:
        """Return whether anything of a node must be computed."""
        if self.is_rows(node):
            return bool(self.live(node).any())
        return node in self.requested

    def row_sources(self, node: fx.Node) -> list[fx.Node]:
        """Return the inputs with rows; for a part of a split, those of the split."""
        split = self.split_of(node)
        return [source for source in (split or node).all_input_nodes if self.is_rows(source)]

    def split_of(self, node: fx.Node) -> fx.Node | None:
        """Return the split, along another dimension than the rows, that a node is a part of."""
        if node.target is not operator.getitem or not isinstance(node.args[1], int):
            return None
        split = node.args[0]
        if not isinstance(split, fx.Node) or split.target not in SPLITS:
            return None
        if len(split.all_input_nodes) != 1:
            return None
        (source,) = split.all_input_nodes
        dim = split_dim(split)
        if not isinstance(dim, int) or not dim % self.trace.values[source].dim():
            return None
        return split if self.is_rows(source) else None

    def is_carrier(self, node: fx.Node) -> bool:
        """Return whether a node calls a layer that does nothing in eval()."""
        return type(self.trace.module(node)) in (nn.Dropout, nn.Identity)

    def uncut(self, *tensors: Tensor | None) -> bool:
        """Return whether any of these must stay as it is, since the model uses it twice."""
        return any(self.uses.get(id(tensor), 0) > 1 for tensor in tensors)

    def evaluate(self, node: fx.Node, arrays: Mapping[fx.Node, Tensor]) -> Tensor:
        """Run one operation on arrays that stand for one row each, and return a row of the result.

        Args:
            node: The operation.
            arrays: One row of each input with rows.

        Raises:
            UnsupportedError: The operation does not run on such arrays.
        """
        rows = self.trace.rows

        def substitute(source: fx.Node) -> Any:
            if source in arrays:
                array = arrays[source]
                return array.expand(rows, *array.shape).contiguous()
            value = self.trace.values.get(source)
            if isinstance(value, Tensor):
                return value.cpu().double() if value.is_floating_point() else value.cpu()
            if isinstance(value, tuple | list) and source.all_input_nodes:  # the parts of a split
                return self._call(source, substitute)
            return value

        try:
            return torch.as_tensor(self._call(node, substitute))[0]
        except Exception as error:  # anything: the operation is the model's, not the rule's
            raise UnsupportedError(f"{node} does not run on a row: {first_line(error)}") from error

    def _call(self, node: fx.Node, substitute: Any) -> Any:
        args = fx.map_arg(node.args, substitute)
        kwargs = fx.map_arg(node.kwargs, substitute)
        if node.op == "call_module":
            module = self.trace.module(node)
            assert module is not None
            return module.forward(*args, **kwargs)
        if node.op == "call_method":
            return getattr(args[0], str(node.target))(*args[1:], **kwargs)
        assert callable(node.target)
        return node.target(*args, **kwargs)
