"""Copy models."""

import copy
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils._pytree import tree_leaves

from .functions import Rebuild


def memo_of(model: nn.Module, *, share: bool) -> dict[int, Any]:
    """Return the memo for copy.deepcopy of a model: what it need not copy, or cannot.

    Args:
        model: The model.
        share: Whether the copy uses the parameters and buffers of the model itself.

    Returns:
        Objects to use in the copy, by the id of the original. Results of computations that the
        model has kept, which deepcopy refuses, are copied without their history. Optimizers are
        not copied, since their state may be larger than the model.
    """
    memo: dict[int, Any] = {}
    if share:
        memo = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    for leaf in tree_leaves([vars(module) for module in model.modules()]):
        if isinstance(leaf, Tensor) and not leaf.is_leaf:
            memo[id(leaf)] = leaf.detach().clone()
        elif isinstance(leaf, Optimizer):
            memo[id(leaf)] = leaf
    return memo


def copied(model: nn.Module, memo: dict[int, Any]) -> nn.Module:
    """Return a copy of a model whose functions, such as closures, refer to the copy.

    Args:
        model: The model.
        memo: The memo for copy.deepcopy, as `memo_of` returns it.
    """
    small = copy.deepcopy(model, memo)
    Rebuild(memo).rebuild_in([vars(module) for module in small.modules()])
    return small
