"""Whether two outputs are the same to rounding."""

from dataclasses import is_dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves


def alike(found: Any, expected: Any) -> bool:
    """Whether two ways to compute the same output agree, number by number, up to rounding."""
    pairs = _pairs(found, expected)
    return pairs is not None and all(_close(one, other) for one, other in pairs)


def difference(found: Any, expected: Any) -> float:
    """The largest difference between two outputs, infinite if they are not alike at all."""
    pairs = _pairs(found, expected)
    return float("inf") if pairs is None else max((float(_apart(*pair).max()) for pair in pairs if pair[0].numel()), default=0.0)


def _pairs(found: Any, expected: Any) -> list[tuple[Tensor, Tensor]] | None:
    """The tensors of two outputs, side by side; None if shapes, dtypes or anything that is no tensor differ."""
    ours, theirs = _leaves(found), _leaves(expected)
    if len(ours) != len(theirs):
        return None
    pairs = []
    for one, other in zip(ours, theirs, strict=True):
        if isinstance(one, Tensor) and isinstance(other, Tensor):
            if (one.shape, one.dtype) != (other.shape, other.dtype):
                return None
            pairs.append((one.detach().cpu(), other.detach().cpu()))
        elif isinstance(one, Tensor) or isinstance(other, Tensor) or (_is_plain(one) and one != other):
            return None
    return pairs


def _leaves(output: Any) -> list[Any]:
    """What an output is made of; outputs may be of a class with attributes."""
    leaves = []
    for leaf in tree_leaves(output):
        leaves += _leaves(vars(leaf)) if is_dataclass(leaf) else [leaf]
    return leaves


def _is_plain(value: Any) -> bool:
    return value is None or isinstance(value, bool | int | float | str)


def _apart(one: Tensor, other: Tensor) -> Tensor:
    apart = (one.double() - other.double()).abs()
    same = (one == other) | (one.isnan() & other.isnan())
    return torch.where(same, 0.0, apart).nan_to_num(float("inf"))


def _close(one: Tensor, other: Tensor) -> bool:
    if not one.numel():
        return True
    share = _rounding(one.dtype)
    size = other.double().abs()
    usual = size[size.isfinite()]  # one huge or infinite number must not excuse the others
    scale = 1 + (float(usual.median()) if usual.numel() else 0.0)
    return bool((_apart(one, other) <= share * (scale + size.nan_to_num(0.0, 0.0, 0.0))).all())


def _rounding(dtype: torch.dtype) -> float:
    """How far two sums of the same numbers may be apart, relative to their size."""
    if not dtype.is_floating_point:
        return 0.0
    return torch.finfo(dtype).eps * (500 if dtype in (torch.float32, torch.float64) else 16)
