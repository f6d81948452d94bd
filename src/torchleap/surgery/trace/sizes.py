"""Find sizes that depend on the values of a batch: no run on an example shows that they vary."""

import operator
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, fx

from ..._common.text import words
from ..trial.state import tensors_of

FILTERS = {"nonzero", "argwhere", "unique", "unique_consecutive", "masked_select", "bincount"}
NUMBERS = {"item", "tolist", "size", "numel", "stride"}
ELEMENTWISE = frozenset(  # a number among their arguments changes no size
    words(
        "add sub mul truediv div floordiv floor_divide mod remainder pow neg abs iadd isub imul "
        "itruediv eq ne lt le gt ge clamp clamp_min clamp_max maximum minimum masked_fill where "
        "rsub multiply divide true_divide subtract gather lerp addcmul full_like"
    )
)


def name_of(node: fx.Node) -> str:
    """Return the name of the function or method that a node calls."""
    return str(getattr(node.target, "__name__", node.target))


class Sizes:
    """The dimensions of each node whose size depends on values: free dimensions.

    Examples are those of `nonzero` and of `hist[:, :longest]`. A node passes on the free dimensions
    of its inputs: a dimension that has the size of a free one on every run is taken for it.

    Args:
        runs: Each node's values on the runs of a trace.
    """

    def __init__(self, runs: Mapping[fx.Node, tuple[Any, ...]]) -> None:
        self.runs = runs
        self.free: dict[fx.Node, set[int]] = {}  # dimensions
        self.numbers: set[fx.Node] = set()  # Python numbers, and lists of them

    def adopt(self, node: fx.Node, other: "Sizes", known: fx.Node) -> None:
        """Copy the dimensions of a node from those of the same node in another trace."""
        if known in other.free:
            self.free[node] = other.free[known]
        if known in other.numbers:
            self.numbers.add(node)

    def learn(self, node: fx.Node) -> None:
        """Find the free dimensions of one more node, from those of its inputs."""
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
        """Return whether the size of a dimension depends on values."""
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
        deciding = [source for source in node.all_input_nodes if self._counts(node, source)]
        counted = [self.runs[source] for source in deciding]
        free, fixed = self._of_sources(self._producer(node))
        found = self._made(node, len(sizes))
        for dim, size in enumerate(sizes):
            if size in free or (counted and (size in counted or size not in fixed)):
                found.add(dim)
        return found

    def _producer(self, node: fx.Node) -> fx.Node:
        """Return the operation that a tensor comes from; for a part of a tuple, the tuple's."""
        if node.target not in (operator.getitem, getattr):
            return node
        first = node.args[0]
        if isinstance(first, fx.Node) and not isinstance(self.runs[first][0], Tensor):
            return first
        return node

    def _of_sources(self, node: fx.Node) -> tuple[set[tuple[int, ...]], set[tuple[int, ...]]]:
        """Return the sizes of the free dimensions of a node's inputs, and those of the others."""
        free: set[tuple[int, ...]] = set()
        fixed: set[tuple[int, ...]] = set()
        for source in node.all_input_nodes:
            parts = [tensors_of(run) for run in self.runs[source]]
            if len({len(part) for part in parts}) > 1:
                continue
            for tensors in zip(*parts, strict=True):
                if len({tensor.dim() for tensor in tensors}) > 1:
                    continue
                sizes = zip(*(tensor.shape for tensor in tensors), strict=True)
                for dim, size in enumerate(sizes):
                    if self.is_free(source, dim):
                        free.add(size)
                    else:
                        fixed.add(size)
        return free, fixed

    def _counts(self, node: fx.Node, source: fx.Node) -> bool:
        """Return whether an argument is a number from the batch that may decide on a size."""
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
        """Return the dimensions that the operation itself makes free."""
        if self._filters(node):
            dim = node.kwargs.get("dim")
            return {0, dim % rank} if isinstance(dim, int) and rank else {0}
        if name_of(node) == "one_hot":
            width: Any = node.args[1] if len(node.args) > 1 else node.kwargs.get("num_classes", -1)
            return set() if isinstance(width, int) and width > 0 else {rank - 1}
        if node.target is operator.getitem:
            return self._made_by_index(node)
        return set()

    def _made_by_index(self, node: fx.Node) -> set[int]:
        first = node.args[0]
        assert isinstance(first, fx.Node)
        if isinstance(self.runs[first][0], Tensor):
            return self._indexed(node.args[1])
        is_inverse = node.args[1] == 1 and first.kwargs.get("return_inverse") is True
        return {0} if self.is_free(first, 0) and not is_inverse else set()

    def _indexed(self, index: Any) -> set[int]:
        """Return the dimensions of x[index] that a mask or a bound from the batch makes free."""
        found = set()
        dim = 0
        for part in index if isinstance(index, tuple | list) else (index,):
            if isinstance(part, slice):
                if any(map(self._is_from_batch, (part.start, part.stop, part.step))):
                    found.add(dim)
            elif isinstance(part, fx.Node):
                value = self.runs[part][0]
                if isinstance(value, Tensor) and value.dtype == torch.bool:
                    found.add(dim)
                if not isinstance(value, Tensor):
                    continue  # one row or column; its dimension disappears
            elif isinstance(part, int):
                continue
            dim += 1
        return found

    def _is_from_batch(self, bound: Any) -> bool:
        if not isinstance(bound, fx.Node):
            return False
        return bound in self.numbers or isinstance(self.runs[bound][0], Tensor)
