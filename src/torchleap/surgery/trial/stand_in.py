"""Make a batch that stands in for an example: of the same form, with none of its rows."""

from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from ...distributed.torchrec import is_jagged
from ...sites.calls import Call


def stand_in(example: Call, seed: int = 0) -> Call | None:
    """Return a batch with numbers drawn between the smallest and largest of each column.

    None if the example holds anything that cannot be drawn, such as an object of the user's class.

    Args:
        example: A batch.
        seed: The seed of the numbers.
    """
    rng = torch.Generator().manual_seed(seed)
    known = True

    def draw(leaf: Any) -> Any:
        nonlocal known
        if isinstance(leaf, Tensor) and not leaf.is_complex() and leaf.layout == torch.strided:
            return _drawn(leaf.detach().cpu(), rng).to(leaf.device)
        known = known and (leaf is None or isinstance(leaf, bool | int | float | str))
        return leaf

    batch: Call = tree_map(draw, example, is_leaf=is_jagged)
    return batch if known else None


def _drawn(values: Tensor, rng: torch.Generator) -> Tensor:
    """Return a tensor of the same shape with other numbers."""
    if values.dtype == torch.bool:
        return torch.rand(values.shape, generator=rng) < 0.5
    if not values.numel():
        return values.clone()
    numbers = values.double()
    low, high = (end.expand_as(numbers) for end in _ends(numbers))
    drawn = low + torch.rand(values.shape, generator=rng, dtype=torch.float64) * (high - low)
    if bool((numbers == numbers.round()).all()):  # ids, even where they are stored as floats
        drawn = drawn.round()
    if _are_offsets(values):
        drawn = drawn.sort().values
        drawn[0] = 0
    return drawn.nan_to_num().to(values.dtype)


def _ends(numbers: Tensor) -> tuple[Tensor, Tensor]:
    """Return the smallest and the largest number of each column."""
    if numbers.dim() < 2:
        return numbers.min(), numbers.max()
    return numbers.amin(0, keepdim=True), numbers.amax(0, keepdim=True)


def _are_offsets(values: Tensor) -> bool:
    """Return whether numbers begin with 0 and never fall, as the offsets of an EmbeddingBag."""
    if values.dim() != 1 or values.is_floating_point() or len(values) < 2:
        return False
    return int(values[0]) == 0 and bool((values[1:] >= values[:-1]).all())
