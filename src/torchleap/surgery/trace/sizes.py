"""Sizes that depend on the values of a batch: no run on an example can show that they are constant."""

import operator
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, fx

from .inplace import tensors_of

FILTERS = {"nonzero", "argwhere", "unique", "unique_consecutive", "masked_select", "bincount"}
NUMBERS = {"item", "tolist", "size", "numel", "stride"}
ELEMENTWISE = {  # a number among their arguments changes no size
    *(
        "add",
        "sub",
        "mul",
        "truediv",
        "div",
        "floordiv",
        "floor_divide",
        "mod",
        "remainder",
        "pow",
        "neg",
        "abs",
    ),
    *(
        "iadd",
        "isub",
        "imul",
        "itruediv",
        "eq",
        "ne",
        "lt",
        "le",
        "gt",
        "ge",
        "clamp",
        "clamp_min",
        "clamp_max",
    ),
    *(
        "maximum",
        "minimum",
        "masked_fill",
        "where",
        "rsub",
        "multiply",
        "divide",
        "true_divide",
        "subtract",
    ),
    *("gather", "lerp", "addcmul", "full_like"),
}


def name_of(node: fx.Node) -> str:
    """Return the name of the function or method that a node calls."""
    return str(getattr(node.target, "__name__", node.target))


class Sizes:
    """Which dimensions of each node are as long as the values say, such as those of `nonzero` or `hist[:, :longest]`.

    A node passes on what its inputs have: a dimension that has the size of such a dimension on every run is taken for it.

    Args:
        runs: Each node's values on the runs of a trace.
    """

    def __init__(self, runs: Mapping[fx.Node, tuple[Any, ...]]) -> None:
        self.runs = runs
        self.free: dict[fx.Node, set[int]] = {}  # dimensions
        self.numbers: set[fx.Node] = set()  # Python numbers, and lists of them

    def adopt(self, node: fx.Node, other: "Sizes", known: fx.Node) -> None:
        """Take over what another trace knows about the same node."""
        if known in other.free:
            self.free[node] = other.free[known]
        if known in other.numbers:
            self.numbers.add(node)

    def learn(self, node: fx.Node) -> None:
        """Work out the dimensions of one more node."""
        value = self.runs[node][0]
        if node.op in ("placeholder", "get_attr", "output") or name_of(node) == "gated":
            return
        if isinstance(value, Tensor):
            found = self._of_tensor(node)
        elif tensors_of(value):
            found = {0} if self._filters(node) else set()
        else:
            found = set()
            self._learn_number(node)
        if found:
            self.free[node] = found

    def is_free(self, node: fx.Node, dim: int) -> bool:
        """Say whether a dimension depends on values."""
        return dim in self.free.get(node, ())

    def _learn_number(self, node: fx.Node) -> None:
        name = name_of(node)
        sources = node.all_input_nodes
        of_values = name in ("item", "tolist")
        of_sizes = name in NUMBERS and any(self.free.get(source) for source in sources)
        if of_values or of_sizes or any(source in self.numbers for source in sources):
            self.numbers.add(node)

    def _of_tensor(self, node: fx.Node) -> set[int]:
        shapes = [run.shape for run in self.runs[node]]
        if len({len(shape) for shape in shapes}) > 1:
            return set(range(len(shapes[0])))
        sizes = list(zip(*shapes, strict=True))
        counted = [
            self.runs[source] for source in node.all_input_nodes if self._counts(node, source)
        ]
        free, fixed = self._of_sources(self._producer(node))
        found = self._made(node, len(sizes))
        for dim, size in enumerate(sizes):
            if size in free or (counted and (size in counted or size not in fixed)):
                found.add(dim)
        return found

    def _producer(self, node: fx.Node) -> fx.Node:
        """Return the operation that a tensor comes from: of a part of a tuple, the one that makes the tuple."""
        first = node.args[0] if node.target in (operator.getitem, getattr) else None
        is_part = isinstance(first, fx.Node) and not isinstance(self.runs[first][0], Tensor)
        return first if is_part and isinstance(first, fx.Node) else node

    def _of_sources(self, node: fx.Node) -> tuple[set[tuple[int, ...]], set[tuple[int, ...]]]:
        """Return the sizes of all dimensions of a node's inputs, those that depend on values first."""
        free: set[tuple[int, ...]] = set()
        fixed: set[tuple[int, ...]] = set()
        for source in node.all_input_nodes:
            parts = [tensors_of(run) for run in self.runs[source]]
            if len({len(part) for part in parts}) > 1:
                continue
            for tensors in zip(*parts, strict=True):
                if len({tensor.dim() for tensor in tensors}) > 1:
                    continue
                for dim, size in enumerate(zip(*(tensor.shape for tensor in tensors), strict=True)):
                    (free if self.is_free(source, dim) else fixed).add(size)
        return free, fixed

    def _counts(self, node: fx.Node, source: fx.Node) -> bool:
        """Say whether an argument is a number from the data that may decide on a size."""
        if name_of(node) in ELEMENTWISE or node.target is operator.getitem:
            return False
        value = self.runs[source][0]
        scalar = isinstance(value, Tensor) and not value.dim() and not value.is_floating_point()
        return source in self.numbers or (scalar and source.op != "get_attr")

    def _filters(self, node: fx.Node) -> bool:
        name = name_of(node)
        alone = name == "where" and len(node.args) + len(node.kwargs) == 1
        return alone or name in FILTERS or self._repeats(node)

    def _repeats(self, node: fx.Node) -> bool:
        return name_of(node) == "repeat_interleave" and len(node.all_input_nodes) > 1

    def _made(self, node: fx.Node, rank: int) -> set[int]:
        """Return the dimensions that the operation itself makes as long as the values say."""
        if self._filters(node):
            dim = node.kwargs.get("dim")
            return {0, dim % rank} if isinstance(dim, int) and rank else {0}
        if name_of(node) == "one_hot":
            width: Any = node.args[1] if len(node.args) > 1 else node.kwargs.get("num_classes", -1)
            return set() if isinstance(width, int) and width > 0 else {rank - 1}
        if node.target is operator.getitem:
            first = node.args[0]
            assert isinstance(first, fx.Node)
            if isinstance(self.runs[first][0], Tensor):
                return self._indexed(node.args[1])
            inverse = node.args[1] == 1 and first.kwargs.get("return_inverse") is True
            return {0} if self.is_free(first, 0) and not inverse else set()
        return set()

    def _indexed(self, index: Any) -> set[int]:
        found = set()
        dim = 0
        for part in index if isinstance(index, tuple | list) else (index,):
            if isinstance(part, slice):
                if any(map(self._bounds, (part.start, part.stop, part.step))):
                    found.add(dim)
            elif isinstance(part, fx.Node):
                value = self.runs[part][0]
                if isinstance(value, Tensor) and value.dtype == torch.bool:
                    found.add(dim)
                if not isinstance(value, Tensor):
                    continue  # one row or column, which goes
            elif isinstance(part, int):
                continue
            dim += 1
        return found

    def _bounds(self, bound: Any) -> bool:
        if not isinstance(bound, fx.Node):
            return False
        return bound in self.numbers or isinstance(self.runs[bound][0], Tensor)
