"""The backbones: each one is a few settings and the network that they make.

A network maps all fields of a batch side by side, (B, D), to the raw outputs of the model: (B,) for
one output per row, such as log odds, or (B, outputs) for several.

To add a backbone, write a subclass of `Backbone` with one method, add one line to `BACKBONES`, and
add one test of its layers; the tests of all backbones run on it by themselves.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from .._common.checks import check_settings, with_settings
from .._common.errors import TorchleapError, nearest
from ..fields import Field, Fields
from .layers import Crosses, Dots, FieldVectors, Pairs, Products, Sum, mlp

NARROW = 2  # columns; DLRM takes fields of up to this width as numbers, wider ones as embeddings


@dataclass(frozen=True)
class Backbone:
    """The settings that all backbones have in common: a network of hidden layers.

    Args:
        hidden: The widths of the hidden layers.
        dropout: The fraction of each hidden layer that is dropped in training.
        batch_norm: Whether each hidden layer is normalised over the batch.
    """

    hidden: tuple[int, ...] = (256, 128, 64)
    dropout: float = 0.1
    batch_norm: bool = True

    def __post_init__(self) -> None:
        check_settings(self)

    def net(self, fields: Fields, outputs: int = 1) -> nn.Module:
        """Return the network for these fields: (B, D) -> (B,), or (B, outputs) if several.

        Args:
            fields: The fields of the input.
            outputs: The number of outputs per row.
        """
        raise NotImplementedError

    def deep(self, width: int, outputs: int | None = 1) -> nn.Sequential:
        """Return the hidden layers on an input of this width: (B, width) -> (B, outputs).

        Args:
            width: The width of the input.
            outputs: The width of the last linear layer; None ends with the last hidden layer.
        """
        return mlp(
            width, self.hidden, dropout=self.dropout, batch_norm=self.batch_norm, outputs=outputs
        )


@dataclass(frozen=True)
class MLP(Backbone):
    """Hidden layers, and nothing else."""

    def net(self, fields: Fields, outputs: int = 1) -> nn.Module:
        """Return the network for these fields."""
        return Sum(deep=self.deep(fields.dims, outputs))


@dataclass(frozen=True)
class WideDeep(Backbone):
    """A linear model beside the hidden layers (Cheng et al. 2016)."""

    def net(self, fields: Fields, outputs: int = 1) -> nn.Module:
        """Return the network for these fields."""
        wide = nn.Linear(fields.dims, outputs)
        return Sum(wide=wide, deep=self.deep(fields.dims, outputs))


@dataclass(frozen=True)
class DeepFM(Backbone):
    """A factorisation machine beside the hidden layers (Guo et al. 2017).

    Args:
        factors: The width of the vectors that are multiplied; fields of other widths are projected.
    """

    factors: int = 8

    def net(self, fields: Fields, outputs: int = 1) -> nn.Module:
        """Return the network for these fields."""
        pairs = Pairs(FieldVectors(fields, self.factors), outputs)
        first = nn.Linear(fields.dims, outputs)
        return Sum(first=first, pairs=pairs, deep=self.deep(fields.dims, outputs))


@dataclass(frozen=True)
class DCN(Backbone):
    """Crosses of rising order beside the hidden layers (DCN-v2, Wang et al. 2021).

    Args:
        crosses: The number of cross layers.
        rank: The rank of the matrix of each cross layer, as a product of two thin matrices; None
            is a full matrix.
    """

    crosses: int = 3
    rank: int | None = None

    def net(self, fields: Fields, outputs: int = 1) -> nn.Module:
        """Return the network for these fields."""
        crosses = Crosses(fields.dims, self.crosses, self.rank)
        cross = nn.Sequential(crosses, nn.Linear(fields.dims, outputs))
        return Sum(cross=cross, deep=self.deep(fields.dims, outputs))


@dataclass(frozen=True)
class FiBiNET(Backbone):
    """Fields weighted by all fields, and a bilinear product of each pair (Huang et al. 2019).

    Args:
        factors: The width of the vectors that are multiplied; fields of other widths are projected.
        reduction: How many times narrower the layer is that weights the fields.
    """

    factors: int = 8
    reduction: int = 3

    def net(self, fields: Fields, outputs: int = 1) -> nn.Module:
        """Return the network for these fields."""
        products = Products(FieldVectors(fields, self.factors), self.reduction)
        wide = nn.Linear(fields.dims, outputs)
        return Sum(wide=wide, deep=nn.Sequential(products, *self.deep(products.width, outputs)))


@dataclass(frozen=True)
class DLRM(Backbone):
    """Numbers through layers of their own, then inner products of all pairs (Naumov et al. 2019).

    Args:
        factors: The width of the vectors that are multiplied; fields of other widths are projected.
    """

    factors: int = 16

    def net(self, fields: Fields, outputs: int = 1) -> nn.Module:
        """Return the network for these fields."""
        numbers = [field for field in fields if field.width <= NARROW]
        embeddings = [field for field in fields if field.width > NARROW]
        count = len(embeddings)
        bottom = None
        vectors = None
        if numbers:
            bottom = self._bottom(numbers)
            count += 1
        if embeddings:
            vectors = FieldVectors(Fields(embeddings), self.factors)
        top = self.deep(count * (count - 1) // 2 + self.factors, outputs)
        return Dots(fields, numbers, embeddings, bottom=bottom, vectors=vectors, top=top)

    def _bottom(self, numbers: list[Field]) -> nn.Sequential:
        """Return the layers from all numbers to one vector, (B, columns) -> (B, factors)."""
        dims = sum(field.width for field in numbers)
        last = self.hidden[-1] if self.hidden else dims
        return nn.Sequential(*self.deep(dims, outputs=None), nn.Linear(last, self.factors))


BACKBONES: dict[str, type[Backbone]] = {
    "wide_deep": WideDeep,
    "deepfm": DeepFM,
    "dcn": DCN,
    "fibinet": FiBiNET,
    "mlp": MLP,
    "dlrm": DLRM,
}


def named(model: str | Backbone, settings: Mapping[str, Any] | None = None) -> Backbone:
    """Return the backbone with a name, or a given one, with some of its settings changed.

    >>> named("dcn", {"crosses": 2}).crosses
    2
    """
    if isinstance(model, Backbone):
        return with_settings(model, settings or {})
    if model not in BACKBONES:
        raise TorchleapError(f"There is no backbone {model!r}. {nearest(str(model), BACKBONES)}")
    return with_settings(BACKBONES[model](), settings or {})


def benchmark(model: str | Backbone) -> Backbone:
    """Return a backbone with the settings of the published benchmarks.

    They are hidden layers of 32 and 16 units, batch norm and a dropout of 0.2.
    """
    return replace(named(model), hidden=(32, 16), dropout=0.2, batch_norm=True)
