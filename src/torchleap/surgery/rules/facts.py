"""What is known of each node of a traced model: which elements of a row are constants, and which must be computed.

A dropped field is its mean in every row: a constant. Constants spread through the graph: a slice of constants is constant, so
is any function of them. What is constant need not be computed, and what nothing asks for need not be computed either. The rest
is what remains of the model.
"""

import operator
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx, nn

from ..trace.proxies import SPLITS, split_dim
from ..trace.trace import Trace


@dataclass(frozen=True)
class Facts:
    """One row of a node: `const` says which elements are the same in every row, `value` which value they have."""

    const: Tensor  # bool
    value: Tensor  # float64

    @classmethod
    def none(cls, shape: tuple[int, ...]) -> "Facts":
        """Nothing is constant."""
        return cls(torch.zeros(shape, dtype=torch.bool), torch.zeros(shape, dtype=torch.float64))


@dataclass(frozen=True)
class Form:
    """Which part of a node is computed: these indices along this axis (1 is the first after the batch)."""

    axis: int
    index: tuple[int, ...]

    def places(self, index: Iterable[int]) -> list[int]:
        """Where these indices stand among those that are there."""
        place_of = {line: place for place, line in enumerate(self.index)}
        return [place_of[line] for line in index if line in place_of]

    def take(self, array: Tensor) -> Tensor:
        """The part of an array that holds one row, or of a tensor without the batch."""
        return array.index_select(self.axis - 1, torch.tensor(self.index, device=array.device))

    def mask(self, shape: tuple[int, ...]) -> Tensor:
        """The same as a mask over one row."""
        mask = torch.zeros(shape, dtype=torch.bool)
        return mask.index_fill_(self.axis - 1, torch.tensor(self.index), True)


def form_of(mask: Tensor) -> Form | None:
    """The form that holds just these elements, if indices along one axis describe them; None is the whole row."""
    if mask.all():
        return None
    for axis in range(mask.dim()):
        others = [other for other in range(mask.dim()) if other != axis]
        line = mask.any(others) if others else mask
        if torch.equal(
            line.reshape([-1 if place == axis else 1 for place in range(mask.dim())]).expand_as(
                mask
            ),
            mask,
        ):
            return Form(axis + 1, tuple(line.nonzero().flatten().tolist()))
    return None


@dataclass
class View:
    """A trace with what is known about it, as far as it is known."""

    trace: Trace
    scale: Tensor  # (D,) what eval() does to the gated columns: scale * x + shift
    shift: Tensor  # (D,)
    facts: dict[fx.Node, Facts] = field(default_factory=dict)
    wanted: dict[fx.Node, Any] = field(
        default_factory=dict
    )  # a mask over one row; True for what has no rows
    uses: Mapping[int, int] = field(
        default_factory=dict
    )  # how often the graph uses a parameter or buffer, by its id

    def is_rows(self, node: Any) -> bool:
        """Whether it is a node with the batch as its first dimension."""
        return isinstance(node, fx.Node) and self.trace.kinds[node] == "rows"

    def is_fixed(self, node: Any) -> bool:
        """Whether it is a node that depends on parameters alone."""
        return isinstance(node, fx.Node) and self.trace.kinds[node] == "fixed"

    def live(self, node: fx.Node) -> Tensor:
        """The elements of a row that must be computed."""
        mask: Tensor = self.wanted.get(node, torch.zeros(self.trace.shape(node), dtype=torch.bool))
        return mask & ~self.facts[node].const

    def is_live(self, node: fx.Node) -> bool:
        """Whether anything of it must be computed."""
        return (
            bool(self.live(node).any()) if self.is_rows(node) else self.wanted.get(node) is not None
        )

    def want(self, node: fx.Node, mask: Any = True) -> None:
        """Ask for elements of a node."""
        if not self.is_rows(node):
            self.wanted[node] = True
        else:
            before = self.wanted.get(node)
            whole = (
                mask is True or node in self.trace.varying
            )  # of what has no fixed length, no part can be named
            mask = torch.ones(self.trace.shape(node), dtype=torch.bool) if whole else mask
            self.wanted[node] = mask if before is None else mask | before

    def row_sources(self, node: fx.Node) -> list[fx.Node]:
        """The inputs that have the batch as their first dimension; of a part of a split, what was split."""
        split = self.split_of(node)
        return [source for source in (split or node).all_input_nodes if self.is_rows(source)]

    def split_of(self, node: fx.Node) -> fx.Node | None:
        """The split that a node is a part of."""
        split = (
            node.args[0]
            if node.target is operator.getitem and isinstance(node.args[1], int)
            else None
        )
        if (
            not isinstance(split, fx.Node)
            or split.target not in SPLITS
            or len(split.all_input_nodes) != 1
        ):
            return None
        dim, rank = split_dim(split), self.trace.values[split.all_input_nodes[0]].dim()
        return (
            split
            if isinstance(dim, int) and dim % rank and self.is_rows(split.all_input_nodes[0])
            else None
        )

    def is_carrier(self, node: fx.Node) -> bool:
        """Whether it is a layer that does nothing in eval()."""
        return type(self.trace.module(node)) in (nn.Dropout, nn.Identity)

    def uncut(self, *tensors: Tensor | None) -> bool:
        """Whether any of these must stay as it is, because the model uses it more than once."""
        return any(self.uses.get(id(tensor), 0) > 1 for tensor in tensors)

    def evaluate(self, node: fx.Node, arrays: dict[fx.Node, Tensor]) -> Tensor:
        """Run one operation on arrays that stand for one row each, and return one row of the result."""
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

        result = self._call(node, substitute)
        return torch.as_tensor(result)[0]

    def _call(self, node: fx.Node, substitute: Any) -> Any:
        args, kwargs = fx.map_arg(node.args, substitute), fx.map_arg(node.kwargs, substitute)
        if node.op == "call_module":
            module = self.trace.module(node)
            assert module is not None
            return module.forward(*args, **kwargs)
        if node.op == "call_method":
            return getattr(args[0], str(node.target))(*args[1:], **kwargs)
        assert callable(node.target)
        return node.target(*args, **kwargs)
