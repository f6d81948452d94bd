"""The arguments of one call of a model."""

from typing import Any

import torch
from torch import Tensor

from ..distributed.torchrec import is_jagged, rows_of, take_rows
from .batches import flatten, map_leaves

EXAMPLE_ROWS = 8
Call = tuple[tuple[Any, ...], dict[str, Any]]  # the arguments by position and by name


def as_call(example: Any) -> Call:
    """Return a batch as the arguments of the model; a tuple is several arguments."""
    if isinstance(example, tuple):
        return example, {}
    return (example,), {}


def few_rows(call: Call, rows: int | None = EXAMPLE_ROWS) -> Call:
    """Return a copy of the first rows of a batch.

    Args:
        call: The arguments of the model. If their tensors have different numbers of rows, all rows
            are copied.
        rows: How many rows to copy; None is all of them.
    """
    counts = {rows_of(leaf) for leaf in flatten(call)[0]}
    if len(counts - {None}) != 1:
        rows = None

    def copied(leaf: Any) -> Any:
        if is_jagged(leaf):
            return take_rows(leaf, torch.arange(leaf.stride())[:rows])
        if not isinstance(leaf, Tensor):
            return leaf
        first = leaf[:rows] if leaf.dim() else leaf
        return first.detach().clone()

    few: Call = map_leaves(copied, call)
    return few


def on_device(call: Call, device: torch.device) -> Call:
    """Return the arguments with their tensors on a device."""

    def moved(leaf: Any) -> Any:
        return leaf.to(device) if isinstance(leaf, Tensor) else leaf

    found: Call = map_leaves(moved, call)
    return found
