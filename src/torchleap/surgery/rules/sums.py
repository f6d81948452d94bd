"""Sums: elements that are no constants, but fixed weighted sums of few features of the row.

In `x0 * (W x + b)` with a dropped column of x0, its constant times a product is linear in the
columns that are kept: it need not be computed by itself, and a linear layer behind it reads the
features, through weights of its own, in place of the element. Cross networks, products of pairs
and outer products all lead there.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, fx

from ..runtime import moments_of_layer_norm

if TYPE_CHECKING:
    from .facts import View
    from .writer import Writer

MOST_WEIGHTS = 2**24  # of the sums of one node, so that they fit into memory


@dataclass(frozen=True)
class Expression:
    """Some elements as sums: offset + matrix @ features.

    Attributes:
        features: The numbers of the features, rising, (K,).
        matrix: The weights, float64, (n, K).
        offset: The summands, float64, (n,).
    """

    features: Tensor
    matrix: Tensor
    offset: Tensor

    def scaled(self, factor: Tensor) -> "Expression":
        """Return the elements times a factor each, (n,)."""
        return Expression(self.features, self.matrix * factor[:, None], self.offset * factor)

    def used(self) -> int:
        """Return the number of features with a weight."""
        return int((self.matrix != 0).any(0).sum())


@dataclass(frozen=True)
class Sums:
    """Which elements of a row are sums of features; their summands are in `Facts.value`.

    Attributes:
        mask: The elements, of bool.
        features: The numbers of the features, rising, (K,).
        matrix: The weights of the features, float64, with the shape of a row and then K.
    """

    mask: Tensor
    features: Tensor
    matrix: Tensor

    def read(self, part: Tensor) -> Tensor:
        """Return the features that a part of the elements, as a mask, is made of."""
        rows = self.matrix[part & self.mask]
        return self.features[(rows != 0).any(0)]


class Elements:
    """Elements of a node as features.

    Args:
        node: The node.
        view: The view.
    """

    def __init__(self, node: fx.Node, view: "View") -> None:
        self.node = node
        self.shape = view.trace.shape(node)
        self.size = torch.Size(self.shape).numel()

    def request(self, view: "View", index: Tensor) -> None:
        """Request some of the elements, by their places in a flat row."""
        mask = torch.zeros(self.size, dtype=torch.bool)
        mask[index] = True
        view.request(self.node, mask.reshape(self.shape))

    def write(self, writer: "Writer", index: Tensor) -> fx.Node:
        """Return a new node with these elements, (B, n)."""
        held = writer.plain(self.node)
        numbers = torch.arange(self.size).reshape(self.shape)
        present = (numbers if held.form is None else held.form.take(numbers)).flatten()
        flat = held.node
        if len(self.shape) != 1:
            flat = writer.graph.call_method("reshape", (flat, -1, len(present)))
        places = torch.searchsorted(present, index)
        if len(places) == len(present):
            return flat
        return writer.select(flat, 1, places.tolist())


class Moments:
    """The inverse deviation of a layer norm, and its mean times that, as features.

    Args:
        source: What the layer norm reads.
        arguments: Those of `moments_of_layer_norm` behind the columns that vary.
    """

    size = 2

    def __init__(self, source: fx.Node, arguments: tuple[Any, ...]) -> None:
        self.source = source
        self.arguments = arguments

    def request(self, view: "View", index: Tensor) -> None:
        """Request the columns that vary."""
        view.request(self.source)

    def write(self, writer: "Writer", index: Tensor) -> fx.Node:
        """Return a new node with these features, (B, n)."""
        part = writer.varying_part(self.source)
        arguments = (part.node, *self.arguments)
        found = writer.graph.call_function(moments_of_layer_norm, arguments)
        return found if len(index) == self.size else writer.select(found, 1, index.tolist())


class Products:
    """Products of two features each, as features.

    Args:
        pairs: The numbers of the features of each product, (n, 2).
    """

    def __init__(self, pairs: Tensor) -> None:
        self.pairs = pairs
        self.size = len(pairs)

    def request(self, view: "View", index: Tensor) -> None:
        """Request the features that some of the products are made of."""
        for elements, own in view.features.groups(torch.unique(self.pairs[index])):
            elements.request(view, own)

    def write(self, writer: "Writer", index: Tensor) -> fx.Node:
        """Return a new node with these products, (B, n)."""
        sides = [writer.features(numbers) for numbers in self.pairs[index].unbind(1)]
        return writer.graph.call_function(torch.mul, tuple(sides))


class Features:
    """All features of a trace, numbered in the order in which they were found."""

    def __init__(self) -> None:
        self._found: dict[Any, Elements | Moments | Products] = {}
        self._starts: dict[Any, int] = {}
        self._stop = 0

    def of(self, key: Any, elements: Elements | Moments | Products, index: Tensor) -> Tensor:
        """Return the numbers of some features, by their places.

        Args:
            key: What stands for the features: a node for its elements.
            elements: The features.
            index: Their places, for elements in a flat row.
        """
        if key not in self._found:
            self._found[key] = elements
            self._starts[key] = self._stop
            self._stop += elements.size
        return index + self._starts[key]

    def groups(self, numbers: Tensor) -> list[tuple[Elements | Moments | Products, Tensor]]:
        """Return rising numbers of features, grouped by where they are, each with its places."""
        found = []
        for key, elements in self._found.items():
            start = self._starts[key]
            own = numbers[(numbers >= start) & (numbers < start + elements.size)]
            if len(own):
                found.append((elements, own - start))
        return found


def union(parts: Sequence[Tensor], matrices: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
    """Return the features of several matrices, and the matrices over all of them.

    Args:
        parts: The features of each matrix, (K,) each.
        matrices: The matrices, whose last dimension is that of the features.
    """
    features = torch.unique(torch.cat([part.reshape(-1) for part in parts]))
    wide = []
    for part, matrix in zip(parts, matrices, strict=True):
        if matrix[..., :1].numel() * len(features) > MOST_WEIGHTS:
            return features, []
        full = matrix.new_zeros((*matrix.shape[:-1], len(features)))
        full[..., torch.searchsorted(features, part)] = matrix
        wide.append(full)
    return features, wide
