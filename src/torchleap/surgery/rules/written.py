"""The results of writing: nodes of the new graph, and cut parameters."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, fx

from .facts import Form

# Behind the name of a weight, that of a new one:
OF_SUMS = "_of_sums"  # by which its layer reads features
OF_PART = "_of_part"  # a part of it, where each part is cut in another way


@dataclass(frozen=True)
class Written:
    """A node of the new graph that holds a part of an old node.

    The old values are `scale` times the new ones plus `shift`: a scale and shift that are pending
    can be folded into the weights of the next layer.

    Attributes:
        node: The node of the new graph.
        form: The part of the old node that it holds; None is all of it.
        scale: A factor for each element of one complete row; None is 1.
        shift: A summand for each element of one complete row; None is 0.
    """

    node: fx.Node
    form: Form | None = None
    scale: Tensor | None = None
    shift: Tensor | None = None


@dataclass(frozen=True)
class Origin:
    """Where a new parameter comes from: a part of an old one, times a factor.

    Attributes:
        name: The name of the old parameter.
        index: The indices that are kept of each of its dimensions; None is all.
        factor: A factor that is broadcast to the part; None is 1.
    """

    name: str
    index: tuple[Tensor | None, ...]
    factor: Tensor | None = None

    def take(self, old: Tensor) -> Tensor:
        """Return the same part of a tensor that has the old parameter's shape."""
        for dim, index in enumerate(self.index):
            if index is not None:
                old = old.index_select(dim, index.to(old.device))
        return old

    def numel(self, old: Tensor) -> int:
        """Return the number of elements of the new parameter."""
        kept = zip(old.shape, self.index, strict=True)
        return torch.Size(size if index is None else len(index) for size, index in kept).numel()

    def cut(self, old: Tensor) -> Tensor:
        """Return the new parameter from the old one, with memory of its own."""
        part = self.take(old.detach())
        if self.factor is not None:
            return (part.double() * self.factor.to(part.device)).to(part.dtype)
        return part.clone() if all(index is None for index in self.index) else part


def runs_of(index: Sequence[int]) -> list[tuple[int, int]]:
    """Return rising numbers as runs of neighbours, each with its start and length.

    >>> runs_of([0, 1, 2, 5])
    [(0, 3), (5, 1)]
    """
    runs: list[tuple[int, int]] = []
    for place in index:
        if runs and place == sum(runs[-1]):
            start, length = runs[-1]
            runs[-1] = (start, length + 1)
        else:
            runs.append((place, 1))
    return runs


def made_from(name: str) -> str | None:
    """Return the name of the weight that a new weight of surgery was made from.

    >>> made_from("deep.0.weight_of_sums"), made_from("deep.0.weight")
    ('deep.0.weight', None)
    """
    for ending in (OF_SUMS, OF_PART):
        weight, found, _ = name.rpartition(ending)
        if found:
            return weight
    return None
