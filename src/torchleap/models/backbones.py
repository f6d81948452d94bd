"""The backbones: each is a few settings and the network that they make, from all fields side by side to one log odds a row."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from .._common.checks import check_settings
from ..fields import Fields
from .layers import FieldVectors, mlp, pair_sum, pairs_of


@dataclass(frozen=True)
class Backbone:
    """What all backbones have in common: a network of hidden layers.

    Args:
        hidden: Sizes of the hidden layers.
        batch_norm: Normalise each hidden layer over the batch.
    """

    hidden: tuple[int, ...] = (256, 128, 64)
    dropout: float = 0.1
    batch_norm: bool = True

    def __post_init__(self) -> None:
        check_settings(self)

    def net(self, fields: Fields) -> nn.Module:
        """The network for these fields, (B, D) -> (B,)."""
        raise NotImplementedError

    def deep(self, width: int, *, head: bool = True) -> nn.Sequential:
        """The hidden layers on an input of this width."""
        return mlp(width, self.hidden, dropout=self.dropout, batch_norm=self.batch_norm, head=head)


@dataclass(frozen=True)
class MLP(Backbone):
    """Hidden layers, and nothing else."""

    def net(self, fields: Fields) -> nn.Module:
        """The network for these fields."""
        return Sum(deep=self.deep(fields.dims))


@dataclass(frozen=True)
class WideDeep(Backbone):
    """A linear model beside the hidden layers (Cheng et al. 2016)."""

    def net(self, fields: Fields) -> nn.Module:
        """The network for these fields."""
        return Sum(wide=nn.Linear(fields.dims, 1), deep=self.deep(fields.dims))


@dataclass(frozen=True)
class DeepFM(Backbone):
    """A factorisation machine beside the hidden layers (Guo et al. 2017).

    Args:
        factors: Width of the vectors that are multiplied; fields of other widths are projected.
    """

    factors: int = 8

    def net(self, fields: Fields) -> nn.Module:
        """The network for these fields."""
        pairs = Pairs(FieldVectors(fields, self.factors))
        return Sum(first=nn.Linear(fields.dims, 1), pairs=pairs, deep=self.deep(fields.dims))


@dataclass(frozen=True)
class DCN(Backbone):
    """Crosses of ever higher order beside the hidden layers (DCN-v2, Wang et al. 2021).

    Args:
        crosses: How many cross layers.
        rank: Each cross layer is a product of two thin matrices of that rank; None is a full matrix.
    """

    crosses: int = 3
    rank: int | None = None

    def net(self, fields: Fields) -> nn.Module:
        """The network for these fields."""
        crosses = nn.Sequential(
            Crosses(fields.dims, self.crosses, self.rank), nn.Linear(fields.dims, 1)
        )
        return Sum(cross=crosses, deep=self.deep(fields.dims))


@dataclass(frozen=True)
class FiBiNET(Backbone):
    """Fields weighed by all fields, and a bilinear product of each pair (Huang et al. 2019).

    Args:
        factors: Width of the vectors that are multiplied; fields of other widths are projected.
        reduction: How much narrower the layer is that weighs the fields.
    """

    factors: int = 8
    reduction: int = 3

    def net(self, fields: Fields) -> nn.Module:
        """The network for these fields."""
        products = Products(FieldVectors(fields, self.factors), self.reduction)
        return Sum(
            wide=nn.Linear(fields.dims, 1), deep=nn.Sequential(products, *self.deep(products.width))
        )


@dataclass(frozen=True)
class DLRM(Backbone):
    """Numbers through layers of their own, then inner products of all pairs (Naumov et al. 2019).

    Args:
        factors: Width of the vectors that are multiplied; fields of other widths are projected.
    """

    factors: int = 16

    def net(self, fields: Fields) -> nn.Module:
        """The network for these fields."""
        return Dots(fields, self)


class Sum(nn.Module):
    """The sum of several networks on the same input, (B, D) -> (B,)."""

    def __init__(self, **parts: nn.Module) -> None:
        super().__init__()
        for name, part in parts.items():
            self.add_module(name, part)

    def forward(self, x: Tensor) -> Tensor:
        """Add what the parts say."""
        total: Tensor = sum(part(x) for part in self.children())
        return total.squeeze(1)


class Pairs(nn.Module):
    """The factorisation machine's sum over pairs of fields, (B, D) -> (B, 1)."""

    def __init__(self, vectors: FieldVectors) -> None:
        super().__init__()
        self.vectors = vectors

    def forward(self, x: Tensor) -> Tensor:
        """Multiply and add."""
        return pair_sum(self.vectors(x))


class Crosses(nn.Module):
    """x <- x0 * (W x + b) + x, for each layer, (B, D) -> (B, D)."""

    def __init__(self, width: int, layers: int, rank: int | None) -> None:
        super().__init__()
        self.layers = nn.ModuleList([self._layer(width, rank) for _ in range(layers)])

    def _layer(self, width: int, rank: int | None) -> nn.Module:
        return (
            nn.Linear(width, width)
            if rank is None
            else nn.Sequential(nn.Linear(width, rank, bias=False), nn.Linear(rank, width))
        )

    def forward(self, x: Tensor) -> Tensor:
        """Cross with the input again and again."""
        first = x
        for layer in self.layers:
            x = first * layer(x) + x
        return x


class Products(nn.Module):
    """Bilinear products of all pairs, of the vectors as they are and weighed, (B, D) -> (B, 2 * pairs * factors)."""

    def __init__(self, vectors: FieldVectors, reduction: int) -> None:
        super().__init__()
        count, width = vectors.shape
        narrow = max(1, count // reduction)
        self.vectors = vectors
        self.weigh = nn.Sequential(
            nn.Linear(count, narrow), nn.ReLU(), nn.Linear(narrow, count), nn.ReLU()
        )
        self.weight = nn.Parameter(
            torch.randn(count, width, width) / width**0.5
        )  # of the first of each pair
        first, second = pairs_of(count)
        self.register_buffer("first", first)
        self.register_buffer("second", second)
        self.width = 2 * len(first) * width

    def forward(self, x: Tensor) -> Tensor:
        """Weigh, multiply, and lay side by side."""
        vectors = self.vectors(x)  # (B, F, E)
        weighed = vectors * self.weigh(vectors.mean(2)).unsqueeze(2)
        return torch.cat([self._products(vectors), self._products(weighed)], dim=1)

    def _products(self, vectors: Tensor) -> Tensor:
        turned = torch.einsum("bfi,fio->bfo", vectors, self.weight)
        return (
            turned.index_select(1, self.get_buffer("first"))
            * vectors.index_select(1, self.get_buffer("second"))
        ).flatten(1)


class Dots(nn.Module):
    """DLRM, (B, D) -> (B,): fields of one or two columns are its numbers, the wider ones its embeddings."""

    def __init__(self, fields: Fields, settings: DLRM) -> None:
        super().__init__()
        narrow = [field for field in fields if field.width <= 2]
        wide = [field for field in fields if field.width > 2]
        self._places(fields, "numbers", [field.name for field in narrow])
        self._places(fields, "embeddings", [field.name for field in wide])
        dims = sum(field.width for field in narrow)
        last = settings.hidden[-1] if settings.hidden else dims
        bottom = (
            nn.Sequential(*settings.deep(dims, head=False), nn.Linear(last, settings.factors))
            if narrow
            else None
        )
        self.bottom = bottom
        self.vectors = FieldVectors(Fields(wide), settings.factors) if wide else None
        count = len(wide) + bool(narrow)
        first, second = pairs_of(count)
        self.register_buffer("first", first)
        self.register_buffer("second", second)
        self.top = settings.deep(len(first) + settings.factors)

    def _places(self, fields: Fields, name: str, members: list[str]) -> None:
        places = [
            torch.arange(fields.columns(member).start, fields.columns(member).stop)
            for member in members
        ]
        self.register_buffer(
            name, torch.cat(places) if places else torch.zeros(0, dtype=torch.int64)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Bottom layers, products, top layers."""
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
