"""Let the first layers of a network skip columns that are constant for a while."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from torch import Tensor, nn
from torch.nn import functional

from .layers import Sum

WORTHWHILE = 0.8  # of the columns: with more of them left, copying costs what skipping saves


@contextmanager
def narrowed(net: nn.Module, varies: Tensor, constant: Tensor) -> Iterator[None]:
    """Let the linear layers that a network begins with read only the columns that vary.

    W x + b is computed as W_v x_v + (W_c constant + b), which has the same value and the same
    gradients up to rounding, but costs as much as the columns that vary. Other parts of the network
    read the complete input.

    Args:
        net: The network of a `Ranker`. Within the context it must not be copied.
        varies: Whether each column varies, (D,).
        constant: The value of each of the others in every row, (D,).
    """
    layers = []
    if float(varies.float().mean()) <= WORTHWHILE:
        layers = first_layers(net)
    read = varies.nonzero().flatten()
    skipped = (~varies).nonzero().flatten()
    for layer in layers:
        forward = partial(_forward, layer, read, skipped, constant[skipped])
        setattr(layer, "forward", forward)  # noqa: B010, mypy takes no assignment to a method
    try:
        yield
    finally:
        for layer in layers:
            delattr(layer, "forward")


def first_layers(net: nn.Module) -> list[nn.Linear]:
    """Return the linear layers that the parts of a network begin with.

    >>> net = Sum(wide=nn.Linear(9, 1), deep=nn.Sequential(nn.Linear(9, 4), nn.Linear(4, 1)))
    >>> [layer.out_features for layer in first_layers(net)]
    [1, 4]
    """
    found = []
    for part in net.children() if type(net) is Sum else [net]:
        first = part
        while isinstance(first, nn.Sequential) and len(first):
            first = first[0]
        if type(first) is nn.Linear:
            found.append(first)
    return found


def _forward(
    layer: nn.Linear, read: Tensor, skipped: Tensor, constant: Tensor, x: Tensor
) -> Tensor:
    """Return W x + b of rows, (B, D) -> (B, H), of which some columns are constant."""
    offset = layer.weight.index_select(1, skipped) @ constant.to(layer.weight)  # (H,)
    if layer.bias is not None:
        offset = offset + layer.bias
    weight = layer.weight.index_select(1, read)
    return functional.linear(x.index_select(1, read), weight, offset)
