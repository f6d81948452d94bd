"""What the backbones are made of."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ..fields import Fields


def mlp(
    width: int, hidden: Sequence[int], *, dropout: float, batch_norm: bool, head: bool = True
) -> nn.Sequential:
    """Linear, batch norm, ReLU and dropout for each hidden layer; then one number a row, if wanted."""
    layers: list[nn.Module] = []
    for size in hidden:
        layers.append(nn.Linear(width, size))
        layers += [nn.BatchNorm1d(size)] if batch_norm else []
        layers += [nn.ReLU(), nn.Dropout(dropout)] if dropout else [nn.ReLU()]
        width = size
    return nn.Sequential(*layers, nn.Linear(width, 1)) if head else nn.Sequential(*layers)


class FieldVectors(nn.Module):
    """A vector of one width for each field, for parts that multiply fields.

    Shape: (B, D) -> (B, F, width)

    Fields that all have this width are taken as they are; else each is projected, those of equal width at once.
    """

    def __init__(self, fields: Fields, width: int) -> None:
        super().__init__()
        self.shape = (len(fields), width)
        self.as_they_are = set(fields.widths) == {width}
        self.weights = nn.ParameterDict()  # by width: (fields, their width, width)
        order: list[int] = []
        for own in [] if self.as_they_are else sorted(set(fields.widths)):
            members = [place for place, other in enumerate(fields.widths) if other == own]
            ranges = [fields.columns(fields.names[place]) for place in members]
            columns = [torch.arange(place.start, place.stop) for place in ranges]
            self.register_buffer(f"columns_{own}", torch.cat(columns))
            self.weights[str(own)] = nn.Parameter(torch.randn(len(members), own, width) / own**0.5)
            order += members
        self.register_buffer("order", torch.tensor(order).argsort() if order else None)

    def forward(self, x: Tensor) -> Tensor:
        """Project."""
        if self.as_they_are:
            return x.view(-1, *self.shape)
        found = []
        for own, weight in self.weights.items():
            block = x.index_select(1, self.get_buffer(f"columns_{own}")).view(
                -1, weight.shape[0], weight.shape[1]
            )
            found.append(torch.einsum("bfi,fio->bfo", block, weight))
        return torch.cat(found, dim=1).index_select(1, self.get_buffer("order"))


def pair_sum(vectors: Tensor) -> Tensor:
    """The sum over all pairs of fields of their inner product, (B, F, E) -> (B, 1): half of (square of sum - sum of squares)."""
    return 0.5 * (vectors.sum(1).square() - vectors.square().sum(1)).sum(1, keepdim=True)


def pairs_of(count: int) -> tuple[Tensor, Tensor]:
    """The numbers of the first and the second of each pair."""
    first, second = torch.triu_indices(count, count, offset=1)
    return first, second
