"""The layers that backbones are built from.

Notation: B rows, D columns of all fields side by side, F fields, E the width of a field's vector,
K outputs of the model.
"""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

from ..fields import Field, Fields


def mlp(
    width: int, hidden: Sequence[int], *, dropout: float, batch_norm: bool, outputs: int | None = 1
) -> nn.Sequential:
    """Return linear, batch norm, ReLU and dropout for each hidden layer, then a linear layer.

    Args:
        width: The width of the input.
        hidden: The widths of the hidden layers.
        dropout: The fraction of each hidden layer that is dropped in training; 0 adds no layer.
        batch_norm: Whether each hidden layer is normalised over the batch.
        outputs: The width of the last linear layer; None ends with the last hidden layer.
    """
    layers: list[nn.Module] = []
    for size in hidden:
        layers.append(nn.Linear(width, size))
        if batch_norm:
            layers.append(nn.BatchNorm1d(size))
        layers.append(nn.ReLU())
        if dropout:
            layers.append(nn.Dropout(dropout))
        width = size
    if outputs is not None:
        layers.append(nn.Linear(width, outputs))
    return nn.Sequential(*layers)


class Sum(nn.Module):
    """The sum of several networks on the same input.

    **Shape**

    - Input: (B, D). Each part returns (B, K).
    - Output: (B,) if K is 1, else (B, K).
    """

    def __init__(self, **parts: nn.Module) -> None:
        super().__init__()
        for name, part in parts.items():
            self.add_module(name, part)

    def forward(self, x: Tensor) -> Tensor:
        """Add the outputs of the parts."""
        total: Tensor = sum(part(x) for part in self.children())
        return total.squeeze(1)


class FieldVectors(nn.Module):
    """A vector of one width for each field, for networks that multiply fields.

    If all fields have this width, they are taken as they are; else each field is projected, those
    of equal width in one product.

    **Shape**

    - Input: (B, D)
    - Output: (B, F, E)
    """

    def __init__(self, fields: Fields, width: int) -> None:
        super().__init__()
        self.shape = (len(fields), width)
        self.as_they_are = set(fields.widths) == {width}
        self.weights = nn.ParameterDict()  # by width of the fields: (fields, that width, E)
        if self.as_they_are:
            self.register_buffer("order", None)
        else:
            self._project(fields, width)

    def _project(self, fields: Fields, width: int) -> None:
        """Make one weight for the fields of each width, narrow ones first."""
        order: list[int] = []
        for own in sorted(set(fields.widths)):
            members = [place for place, field in enumerate(fields) if field.width == own]
            names = [fields.names[place] for place in members]
            self.register_buffer(f"columns_{own}", columns_of(fields, names))
            self.weights[str(own)] = nn.Parameter(torch.randn(len(members), own, width) / own**0.5)
            order += members
        self.register_buffer("order", torch.tensor(order).argsort())

    def forward(self, x: Tensor) -> Tensor:
        """Project each field, and put them back into their order."""
        if self.as_they_are:
            return x.view(-1, *self.shape)
        found = []
        for own, weight in self.weights.items():
            columns = x.index_select(1, self.get_buffer(f"columns_{own}"))
            block = columns.view(-1, weight.shape[0], weight.shape[1])
            found.append(torch.einsum("bfi,fio->bfo", block, weight))
        return torch.cat(found, dim=1).index_select(1, self.get_buffer("order"))


class Pairs(nn.Module):
    """The factorisation machine's products of all pairs of fields.

    One output is the sum over the products, as published. Several outputs are linear in the sum
    over pairs of each of the E products, so that they can differ.

    **Shape**

    - Input: (B, D)
    - Output: (B, K)
    """

    def __init__(self, vectors: FieldVectors, outputs: int = 1) -> None:
        super().__init__()
        self.vectors = vectors
        self.head = None
        if outputs > 1:
            self.head = nn.Linear(vectors.shape[1], outputs)

    def forward(self, x: Tensor) -> Tensor:
        """Multiply and add."""
        products = pair_products(self.vectors(x))
        if self.head is None:
            return 0.5 * products.sum(1, keepdim=True)
        found: Tensor = self.head(0.5 * products)
        return found


class Crosses(nn.Module):
    """Cross layers, x <- x0 * (W x + b) + x for each one.

    **Shape**

    - Input and output: (B, D)
    """

    def __init__(self, width: int, layers: int, rank: int | None) -> None:
        super().__init__()
        self.layers = nn.ModuleList([_cross(width, rank) for _ in range(layers)])

    def forward(self, x: Tensor) -> Tensor:
        """Multiply the input with a linear layer of the crosses so far, layer by layer."""
        first = x
        for layer in self.layers:
            x = first * layer(x) + x
        return x


def _cross(width: int, rank: int | None) -> nn.Module:
    """Return the linear layer of a cross: a full matrix, or a product of two thin ones."""
    if rank is None:
        return nn.Linear(width, width)
    return nn.Sequential(nn.Linear(width, rank, bias=False), nn.Linear(rank, width))


class Products(nn.Module):
    """Bilinear products of all pairs of fields, of their vectors as they are and weighted.

    **Shape**

    - Input: (B, D)
    - Output: (B, 2 * pairs * E)
    """

    def __init__(self, vectors: FieldVectors, reduction: int) -> None:
        super().__init__()
        count, width = vectors.shape
        narrow = max(1, count // reduction)
        self.vectors = vectors
        self.weigh = nn.Sequential(
            nn.Linear(count, narrow), nn.ReLU(), nn.Linear(narrow, count), nn.ReLU()
        )
        # the matrix of the first field of each pair
        self.weight = nn.Parameter(torch.randn(count, width, width) / width**0.5)
        first, second = pairs_of(count)
        self.register_buffer("first", first)
        self.register_buffer("second", second)
        self.width = 2 * len(first) * width

    def forward(self, x: Tensor) -> Tensor:
        """Weight the fields by all fields, and multiply both versions."""
        vectors = self.vectors(x)  # (B, F, E)
        weighted = vectors * self.weigh(vectors.mean(2)).unsqueeze(2)
        return torch.cat([self._products(vectors), self._products(weighted)], dim=1)

    def _products(self, vectors: Tensor) -> Tensor:
        turned = torch.einsum("bfi,fio->bfo", vectors, self.weight)
        first = turned.index_select(1, self.get_buffer("first"))
        second = vectors.index_select(1, self.get_buffer("second"))
        return (first * second).flatten(1)


class Dots(nn.Module):
    """The network of DLRM: inner products of the numbers' vector and of all embeddings.

    **Shape**

    - Input: (B, D)
    - Output: (B,) if K is 1, else (B, K)

    Args:
        fields: All fields of the input.
        numbers: The fields that go through `bottom`.
        embeddings: The fields that `vectors` projects.
        bottom: (B, columns of the numbers) -> (B, E); None if there are no numbers.
        vectors: (B, columns of the embeddings) -> (B, F, E); None if there are no embeddings.
        top: (B, E + pairs) -> (B, K).
    """

    def __init__(
        self,
        fields: Fields,
        numbers: Sequence[Field],
        embeddings: Sequence[Field],
        *,
        bottom: nn.Module | None,
        vectors: FieldVectors | None,
        top: nn.Module,
    ) -> None:
        super().__init__()
        self.register_buffer("numbers", columns_of(fields, [field.name for field in numbers]))
        self.register_buffer("embeddings", columns_of(fields, [field.name for field in embeddings]))
        self.bottom = bottom
        self.vectors = vectors
        first, second = pairs_of(len(embeddings) + (bottom is not None))
        self.register_buffer("first", first)
        self.register_buffer("second", second)
        self.top = top

    def forward(self, x: Tensor) -> Tensor:
        """Apply the bottom layers, the products and the top layers."""
        vectors = []
        if self.bottom is not None:
            vectors.append(self.bottom(x.index_select(1, self.get_buffer("numbers"))).unsqueeze(1))
        if self.vectors is not None:
            vectors.append(self.vectors(x.index_select(1, self.get_buffer("embeddings"))))
        stacked = torch.cat(vectors, dim=1)  # (B, 1 + F, E)
        dots = stacked @ stacked.transpose(1, 2)  # (B, 1 + F, 1 + F)
        pairs = dots[:, self.get_buffer("first"), self.get_buffer("second")]
        top: Tensor = self.top(torch.cat([stacked[:, 0], pairs], dim=1))
        return top.squeeze(1)


def columns_of(fields: Fields, names: Iterable[str]) -> Tensor:
    """Return the numbers of the columns of some fields, one field after the other.

    >>> columns_of(Fields({"a": 2, "b": 1, "c": 2}), ["c", "a"])
    tensor([3, 4, 0, 1])
    """
    found: list[int] = []
    for name in names:
        columns = fields.columns(name)
        found += range(columns.start, columns.stop)
    return torch.tensor(found, dtype=torch.int64)


def pair_products(vectors: Tensor) -> Tensor:
    """Return twice the sum over all pairs of fields of their products, (B, F, E) -> (B, E).

    It is the square of the sum minus the sum of the squares.
    """
    return vectors.sum(1).square() - vectors.square().sum(1)


def pairs_of(count: int) -> tuple[Tensor, Tensor]:
    """Return the numbers of the first and of the second of each pair of `count` things.

    >>> pairs_of(3)
    (tensor([0, 0, 1]), tensor([1, 2, 2]))
    """
    first, second = torch.triu_indices(count, count, offset=1)
    return first, second
