"""FSDP2 (`fully_shard`): what has to be known of a model whose weights are sharded over ranks, and a plain copy of it.

Nothing of FSDP is imported: a model can only be sharded where that has happened.
"""

import copy
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from .._common.copies import memo_of
from .._common.errors import SurgeryError
from . import ranks

FSDP = "torch.distributed.fsdp"
HOOKS = (
    "_forward_pre_hooks",
    "_forward_hooks",
    "_state_dict_pre_hooks",
    "_load_state_dict_pre_hooks",
    "_load_state_dict_post_hooks",
)
MARKS = (
    "__composable_api_state_key",
    "_is_fsdp_managed_module",
    "_fsdp_use_orig_params",
)  # how attributes of FSDP begin


def units(model: nn.Module) -> list[Any]:
    """The modules that `fully_shard` was called on."""
    kind = getattr(sys.modules.get(FSDP), "FSDPModule", None)
    return (
        [] if kind is None else [module for module in model.modules() if isinstance(module, kind)]
    )


def at_rest(model: nn.Module) -> None:
    """Let the model hold its sharded parameters, those that optimizers know: a forward pass may have left whole ones there."""
    for unit in units(model):
        unit.reshard()


@torch.no_grad()
def unsharded(model: nn.Module) -> nn.Module:
    """A copy with whole weights, of the classes that the model had and without the hooks of FSDP; all ranks have to ask.

    All get the same: buffers that FSDP leaves to each rank, such as batch norm's, are those of the first one.
    """
    at_rest(model)
    memo = memo_of(model, share=False)
    for parameter in model.parameters():
        if hasattr(parameter, "full_tensor"):
            memo[id(parameter)] = nn.Parameter(
                ranks.full(parameter.detach()).clone(), parameter.requires_grad
            )
    for module in model.modules():
        memo |= {id(kept): kept for kept in _of_fsdp(module)}
    try:
        with _plain_classes(model):
            plain = copy.deepcopy(model, memo)
    except Exception as error:
        raise SurgeryError(
            f"pruning a sharded model needs a plain copy of it, but {type(model).__name__} cannot be copied: {error}. Load "
            "get_model_state_dict(model, options=StateDictOptions(full_state_dict=True)) into an attached model that is not "
            "sharded, and prune that"
        ) from error
    for module in plain.modules():
        _strip(module)
    for buffer in plain.buffers():
        ranks.broadcast(buffer)
    return plain


@contextmanager
def _plain_classes(model: nn.Module) -> Iterator[None]:
    """Within this context the modules are of the classes that they were before; those of FSDP refuse to be copied."""
    kinds = {module: type(module) for module in units(model)}
    try:
        for module, kind in kinds.items():
            line = kind.__mro__  # (FSDPNet, FSDPModule, Net, ...)
            module.__class__ = line[line.index(sys.modules[FSDP].FSDPModule) + 1]
        yield
    finally:
        for module, kind in kinds.items():
            module.__class__ = kind


def _of_fsdp(module: nn.Module) -> list[Any]:
    """What FSDP has put into a module, parameters apart; none of it is to be copied."""
    hooks = [hook for name in HOOKS for hook in getattr(module, name).values() if _is_of_fsdp(hook)]
    return [*hooks, *(value for name, value in vars(module).items() if name.startswith(MARKS))]


def _strip(module: nn.Module) -> None:
    for name in HOOKS:
        hooks = getattr(module, name)
        for key in [key for key, hook in hooks.items() if _is_of_fsdp(hook)]:
            del hooks[key]
            module._forward_pre_hooks_with_kwargs.pop(key, None)
            module._forward_hooks_always_called.pop(key, None)
    for name in [name for name in vars(module) if name.startswith(MARKS)]:
        del vars(module)[name]


def _is_of_fsdp(hook: Any) -> bool:
    return (getattr(hook, "__module__", None) or "").startswith(FSDP)
