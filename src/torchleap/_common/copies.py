"""Copies of models."""

from typing import Any

from torch import Tensor, nn
from torch.utils._pytree import tree_leaves


def memo_of(model: nn.Module, *, share: bool) -> dict[int, Any]:
    """What copy.deepcopy need not copy, or cannot: tensors that are shared, and results that the model has kept."""
    tensors = (*model.parameters(), *model.buffers())
    memo: dict[int, Any] = {id(tensor): tensor for tensor in tensors} if share else {}
    for leaf in tree_leaves([vars(module) for module in model.modules()]):
        if isinstance(leaf, Tensor) and not leaf.is_leaf:
            memo[id(leaf)] = leaf.detach().clone()
    return memo
