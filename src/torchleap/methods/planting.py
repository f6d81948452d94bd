"""Plant products of two fields into a network, so that it learns them in a fraction of the time."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ..models.layers import Sum

Signs = tuple[int, int]  # of the first and of the second factor

SIGNS: tuple[Signs, ...] = ((1, 1), (-1, -1), (1, -1), (-1, 1))
MOST = 0.5  # of the hidden units of a layer that are replaced, at most


class Product(NamedTuple):
    """Two directions whose product says something about the label.

    Attributes:
        one: The weight of each column in the first factor, (D,); 0 outside of its field.
        other: The same for the second factor, (D,).
        means: The means of both factors.
    """

    one: Tensor
    other: Tensor
    means: tuple[float, float]


@torch.no_grad()
def plant(net: nn.Module, products: Sequence[Product]) -> int:
    """Replace the least used hidden units of a network by units that see both factors.

    With a and b the factors, |a + b| - |a - b| has the sign of a b, and is a sum of four rectified
    units. A network starts with units that see each factor by chance, and the part of the gradient
    that turns them towards the product is of second order, so that it learns a product late. Units
    that see both factors make it of first order. The outgoing weights of a unit stay as they are.

    Args:
        net: The network, changed in place.
        products: The products, the most important ones first.

    Returns:
        How many products were planted, in the layer with the most room.
    """
    parts = list(net.children()) if type(net) is Sum else [net]
    return max([_plant_part(part, products) for part in parts], default=0)


def _plant_part(part: nn.Module, products: Sequence[Product]) -> int:
    """Plant products into a part that begins with a hidden linear layer; return how many."""
    layers = list(part) if isinstance(part, nn.Sequential) else []
    linear = [layer for layer in layers if isinstance(layer, nn.Linear)]
    if len(linear) < 2 or layers[0] is not linear[0]:
        return 0
    first, second = linear[:2]
    norm = layers[1] if isinstance(layers[1], nn.BatchNorm1d) else None
    influence = second.weight.norm(dim=0)  # (H,)
    if norm is not None:
        influence = influence * norm.weight.abs()
    units = influence.argsort().tolist()
    room = int(MOST * first.out_features) // len(SIGNS)
    for place, product in enumerate(products[:room]):
        own = units[place * len(SIGNS) : (place + 1) * len(SIGNS)]
        for unit, signs in zip(own, SIGNS, strict=True):
            _plant_unit(first, norm, unit, product, signs)
    return min(room, len(products))


def _plant_unit(
    layer: nn.Linear, norm: nn.BatchNorm1d | None, unit: int, product: Product, signs: Signs
) -> None:
    """Let a hidden unit see the sum of both factors with these signs, centred."""
    weight = signs[0] * product.one + signs[1] * product.other
    centre = signs[0] * product.means[0] + signs[1] * product.means[1]
    scale = 1.0
    if norm is None:  # the unit shall be as large as a usual one
        size = layer.weight.norm(dim=1).median()
        scale = float(size / weight.norm().clamp_min(1e-12))
    else:
        assert norm.running_mean is not None
        assert norm.running_var is not None
        norm.running_mean[unit] = 0.0
        norm.running_var[unit] = 2.0  # of the sum of two standardised factors
        norm.bias[unit] = 0.0
    layer.weight[unit] = scale * weight
    if layer.bias is not None:
        layer.bias[unit] = -scale * centre
